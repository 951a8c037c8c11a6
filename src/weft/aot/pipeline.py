"""The steps of ahead-of-time compilation, in order.

Place in the pipeline: backends call `compile_aot` with a captured graph and a compiler of ATen
graphs; it returns what the replacement function calls.

    call = compile_aot(gm, example_inputs, compiler=compile_calls)
    call([x, w])                # boxed: takes a list, returns the outputs
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from weft._torch import OpOverload
from weft.aot import graph as aten_graph
from weft.aot.expand import Lowered, expand
from weft.aot.graph import AtenGraph
from weft.aot.operators import Kind, facts
from weft.aot.runtime_wrapper import Boxed, wrap
from weft.aot.trace import Traced, trace
from weft.aot.views import Unsupported
from weft.config import config
from weft.diagnostics import events
from weft.passes import framework, standard  # noqa: F401  (registers the built-in passes)
from weft.passes.eliminate_dead_code import eliminate_dead_code

Compiler = Callable[[AtenGraph], Boxed]
aten = torch.ops.aten


def compile_aot(
    gm: GraphModule,
    example_inputs: Sequence[Any],
    compiler: Compiler,
    *,
    lowered: Lowered | None = None,
) -> Callable[..., Any]:
    """`gm` as a functional ATen graph compiled by `compiler`.

    `lowered` tells which operators the compiler knows; others are decomposed. None: keep all.
    """
    with events.stage("aot"):
        try:
            traced = trace(gm, example_inputs)
        except Unsupported as reason:
            events.record("perf", text=f"graph runs without aot: {reason}")
            return run_captured(gm)
    if any(spec.requires_grad for spec in traced.outputs):
        return run_captured(gm)
    aten_gm = optimize(traced, lowered)
    return wrap(traced, compiler(aten_gm))


def run_captured(gm: GraphModule) -> Callable[..., Any]:
    """The captured graph itself, operator by operator."""
    return gm.forward


def optimize(traced: Traced, lowered: Lowered | None) -> AtenGraph:
    """A traced graph after decomposition and passes, ready for a compiler."""
    with events.stage("passes"):
        gm = aten_graph.make(traced.graph)
        eliminate_dead_code(gm)
        if lowered is not None:
            expand(traced.graph, lowered)
        check = aten_graph.verify if config.strict else None
        gm = framework.run_pipeline(gm, framework.registered("aten"), verify=check)
        protect_outputs(gm.graph)
    if config.strict:
        aten_graph.verify(gm)
    events.record("aot", gm=gm)
    return gm


def protect_outputs(graph: Graph) -> None:
    """Every output is memory of its own: no input, no part of one, nothing returned twice."""
    node = aten_graph.output_node(graph)
    taken: set[Node] = set()
    results: list[Any] = []
    for value in node.args[0]:  # type: ignore[union-attr]
        if isinstance(value, Node) and not isinstance(value.meta["val"], torch.SymInt):
            value = _own(graph, node, value, taken)
        results.append(value)
    node.args = (tuple(results),)


def _own(graph: Graph, output: Node, value: Node, taken: set[Node]) -> Node:
    """`value`, or a copy of it if its memory belongs to something else."""
    owner = _memory_owner(value)
    if owner.op != "placeholder" and owner not in taken:
        taken.add(owner)
        return value
    with graph.inserting_before(output):
        copy = graph.create_node("call_function", aten.clone.default, (value,))
    copy.meta = dict(value.meta)
    taken.add(copy)
    return copy


def _memory_owner(node: Node) -> Node:
    """The node whose memory `node` views."""
    while node.op == "call_function" and isinstance(node.target, OpOverload):
        if facts(node.target).kind is not Kind.VIEW and node.target not in _MAY_ALIAS:
            break
        first = node.args[0]
        assert isinstance(first, Node)
        node = first
    return node


_MAY_ALIAS = frozenset({aten._unsafe_view.default, aten.reshape.default, aten.contiguous.default})
