"""The steps of ahead-of-time compilation, in order.

Place in the pipeline: backends call `compile_aot` with a captured graph and a compiler of ATen
graphs; it returns what the replacement function calls::

    run = compile_aot(gm, example_inputs, compiler=compile_calls)
    run([x, w])                 # boxed: takes a list, returns the outputs
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from torch.fx import GraphModule

from weft.aot.check_accounts import n_checks, verify_passes
from weft.aot.control_flow import compile_parts, has_parts
from weft.aot.data_dependent import data_symbols, expecting
from weft.aot.global_state import preserve_generator, without_autocast
from weft.aot.kept_forms import compile_with_kept_forms
from weft.aot.prepare import Compiler, finish, optimize
from weft.aot.rewrites.expand import Lowered
from weft.aot.runtime_wrapper import wrap
from weft.aot.tracing.trace import Traced, Tracer, trace
from weft.aot.training.compile import compile_joint
from weft.aot.training.joint import trace_backward
from weft.aot.training.small_graphs import runs_as_it_is
from weft.aot.views import Unsupported
from weft.aot.wrappers import (
    InputParts,
    gradient_plans,
    has_symbolic_wrappers,
    has_wrappers,
    unwrapped_graph,
    wrap_outputs,
)
from weft.config import config
from weft.diagnostics import events
from weft.errors import InternalError
from weft.graph_call import GraphCall
from weft.passes.framework import run_stage
from weft.runtime.restoring import run_captured, run_instead
from weft.shapes.context import ShapeContext
from weft.shapes.graph_facts import GraphFacts, graph_facts
from weft.shapes.symnode import UndecidedValue


def compile_aot(
    gm: GraphModule, example_inputs: Sequence[object], compiler: Compiler, *,
    lowered: Lowered | None = None,
) -> GraphCall:
    """`gm` as a functional ATen graph, compiled by `compiler`.

    `lowered` says which operators the compiler knows; others are decomposed. None: keep all.
    """
    checks = n_checks(gm)
    gm = run_stage("captured", gm)
    verify_passes(checks, gm)
    if has_wrappers(gm):
        return _compile_on_parts(gm, example_inputs, compiler, lowered)
    if has_parts(gm):
        part = partial(compile_aot, compiler=compiler, lowered=lowered)
        return compile_parts(gm, example_inputs, part)
    with data_symbols(gm, example_inputs) as symbols, preserve_generator():
        return _compile_traced(gm, example_inputs, compiler, lowered, symbols)


def _compile_on_parts(
    gm: GraphModule, example_inputs: Sequence[object], compiler: Compiler, lowered: Lowered | None
) -> GraphCall:
    """A graph with tensors made of tensors."""
    if has_symbolic_wrappers(gm):
        return _uncompiled(gm, "wrapped tensors of symbolic sizes")
    try:
        plans = gradient_plans(gm, example_inputs)
        parts = InputParts(gm, plans)(example_inputs)
        inner = compile_aot(unwrapped_graph(gm, plans), parts, compiler, lowered=lowered)
    except Unsupported as reason:
        if _may_be_captured_otherwise(gm):
            raise
        return _uncompiled(gm, str(reason))
    return wrap_outputs(inner, gm, plans)


def _compile_traced(
    gm: GraphModule, example_inputs: Sequence[object], compiler: Compiler, lowered: Lowered | None,
    symbols: ShapeContext,
) -> GraphCall:
    """A graph without branches: trace, optimize, compile, wrap."""
    try:
        with events.stage("aot"), expecting(symbols):
            tracer, traced = trace(gm, example_inputs)
            joint = trace_backward(tracer, traced)
        traced.asserts = symbols.asserts
        if lowered is not None and runs_as_it_is(gm, traced, joint, lowered):
            events.record("perf", text="run as it is, by PyTorch's own functions and nodes")
            return run_captured(gm)
        if joint is not None:
            call = compile_joint(gm, tracer, traced, joint, compiler, lowered)
            _verify_checks(tracer, traced, symbols)
            return call
    except (Unsupported, UndecidedValue, ZeroDivisionError) as reason:
        # (ZeroDivisionError: the mean of no elements.)
        if _may_be_captured_otherwise(gm):
            raise
        if graph_facts(gm).is_on_parts:  # as it is, it would change the joined wrappers only
            raise Unsupported(str(reason)) from reason
        return _uncompiled(gm, str(reason))
    aten_gm = optimize(traced.graph, GraphFacts(lowered=lowered))
    writable, asserts = _writable(traced), traced.hand_asserts()
    artifact = compile_with_kept_forms(
        aten_gm, lambda gm: compiler(finish(gm, writable, asserts)), gm, traced.mutated,
        example_inputs)
    silent = [i for i in traced.mutated if not traced.counts[i]]
    _verify_checks(tracer, traced, symbols)
    return wrap(traced, without_autocast(artifact), run_instead(gm), silent)


def _verify_checks(tracer: Tracer, traced: Traced, symbols: ShapeContext) -> None:
    """Raise InternalError if running code lacks a condition on data that was assumed."""
    for guard in traced.asserts[traced.n_handed:]:
        raise InternalError(f"assumed when the checks were written already: {guard}")
    if config.strict:
        tracer.accounts.verify(symbols, traced.asserts)


def _may_be_captured_otherwise(gm: GraphModule) -> bool:
    """Whether capture tries again, without values that depend on data."""
    shapes = graph_facts(gm).shapes
    return shapes is not None and shapes.data_dependent


def _writable(traced: Traced) -> list[tuple[int, int]]:
    """The (output, input) pairs of written inputs, if autograd sees none of the writes (and no
    check on data may fail)."""
    if traced.assumes or not traced.detached_mutations.issuperset(traced.mutated):
        return []
    return list(enumerate(traced.mutated))


def _uncompiled(gm: GraphModule, reason: str) -> GraphCall:
    """The captured graph itself; the reason is reported to the user."""
    events.record("uncompiled", reason=reason)
    events.count("uncompiled_graphs")
    return run_captured(gm)

