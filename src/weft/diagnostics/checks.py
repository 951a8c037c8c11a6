"""The settings `check_numerics` and `repro_after`: compare compiled graphs with PyTorch, reduce
failing ones.

Place in the pipeline: between capture and the backend (stage "capture"), and between aot and the
code generator (stage "aot")::

    compiled = checked("aot", lambda: compile_graph(gm), lambda inputs: gm, ..., again=compile_fx)

With `check_numerics`, the result of each call is compared with that of the graph run by PyTorch
(`numerics.compare`). If they differ, `NumericsError` names the operators that suffice to make them
differ (`minimize.py`) and the user's lines. With `repro_after`, a program that shows it is written
(`repro.py`), also for graphs that fail to compile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import fx

from weft.config import config
from weft.diagnostics import events, repro
from weft.diagnostics.failures import handle
from weft.diagnostics.minimize import Part, minimize
from weft.diagnostics.numerics import COARSE, Compiled, compare
from weft.errors import BadValue, InternalError, NumericsError, SourceLine
from weft.graph_call import GraphCall, graph_call
from weft.interrupts import surface

Compile = Callable[[fx.GraphModule, list[Any]], Compiled]

STAGES: Final = ("capture", "aot")
OFF: Final = {"check_numerics": False, "repro_after": ""}
_NAMED: Final = 8
"""Operators of the smallest failing part that a message names."""


def wanted(stage: str) -> bool:
    """Whether graphs of this stage are checked."""
    if not (config.check_numerics or config.repro_after):
        return False
    if config.repro_after not in ("", *STAGES):
        raise BadValue(f"repro_after={config.repro_after!r} is no stage",
                       do=f"use one of {', '.join(STAGES)}, or leave it empty")
    whole = stage == STAGES[0]  # what passes do wrong, no later stage can see
    return (config.check_numerics and whole) or (config.repro_after or STAGES[0]) == stage


def checked(
    stage: str, compile: Callable[[], Compiled], plain: Callable[[Sequence[Any]], fx.GraphModule],
    inputs: Callable[[], Sequence[Any]], again: Compile, backend: str = "inductor",
) -> GraphCall:
    """The compiled graph, checked as the settings say.

    plain: the graph as torch.fx runs it, for given inputs. inputs: values like those that the graph
    is compiled for. again: compiles a part of the graph. backend: its name, for the program that is
    written.
    """
    try:
        with config.patch(fallback_random=True):
            compiled = graph_call(compile())
    except Exception as error:
        surface(error)
        if config.repro_after == stage:
            examples = inputs()
            _tell_failure(plain(examples), examples, error, again, backend)
        raise
    if not config.check_numerics:
        return compiled
    write = bool(config.repro_after)

    def run(*call_args: Any) -> Any:
        arguments = call_args[0] if boxed else call_args
        gm = plain(arguments)
        problem = compare(gm, compiled, arguments)
        if problem:
            raise _numerics_error(stage, gm, list(arguments), problem, again, backend, write)
        return compiled(*call_args)

    boxed = compiled.boxed
    return GraphCall(run, boxed)


def tried(compiled: GraphCall, plain: fx.GraphModule) -> GraphCall:
    """The compiled graph, compared with `plain` in its first call; if they differ, `plain` is what
    runs, with one warning. For versions of PyTorch that may compute or lay out things in new ways.
    """
    chosen: list[Compiled] = []

    def run(*call_args: Any) -> Any:
        if not chosen:
            arguments = call_args[0] if boxed else call_args
            problem = compare(plain, compiled, arguments, COARSE)
            if problem:
                handle(InternalError(f"compiled, a graph differs from eager: {problem}"),
                       during="the trial of a graph", attachments={"graph.py": plain.code})
            as_compiled = (lambda inputs: plain(*inputs)) if boxed else plain
            chosen.append(as_compiled if problem else compiled)
        return chosen[0](*call_args)

    boxed = compiled.boxed
    return GraphCall(run, boxed)


def like(value: object) -> Any:
    """A real tensor for a fake one, numbers for symbolic ones."""
    if isinstance(value, torch.Tensor):
        sizes, strides = ([int(like(n)) for n in each] for each in (value.shape, value.stride()))
        tensor = torch.empty_strided(sizes, strides, dtype=value.dtype, device=value.device)
        return tensor.uniform_() if tensor.is_floating_point() else tensor.zero_()
    if isinstance(value, torch.SymInt | torch.SymFloat):
        return value.node.hint
    return value


def copy_of(gm: fx.GraphModule) -> fx.GraphModule:
    """A copy of the graph, because backends may change the one that they receive."""
    graph = fx.Graph()
    graph.output(graph.graph_copy(gm.graph, {}))
    return fx.GraphModule(gm, graph)


def _numerics_error(
    stage: str, gm: fx.GraphModule, inputs: list[Any], problem: str, again: Compile, backend: str,
    write: bool,
) -> NumericsError:
    def fails(part: fx.GraphModule, part_inputs: list[Any]) -> bool:
        difference = _problem(part, part_inputs, again)
        return bool(difference) and not difference.startswith("it raises")

    part = _smallest(gm, inputs, fails)
    if part is not None:
        problem = _problem(*part, again)
    path = _write_program(part or (gm, inputs), problem, backend) if write else None
    operators, stack = _operators(part[0] if part is not None else gm)
    return NumericsError(problem, stage=stage, operators=operators, stack=stack,
                         reduced=part is not None, path=path)


def _tell_failure(
    gm: fx.GraphModule, inputs: Sequence[object], error: Exception, again: Compile, backend: str
) -> None:
    """Write the smallest part that fails to compile with the same type of error."""

    def fails(part: fx.GraphModule, part_inputs: list[Any]) -> bool:
        return _error_type(part, part_inputs, again) is type(error)

    part = _smallest(gm, inputs, fails)
    path = _write_program(part or (gm, list(inputs)), f"{type(error).__name__}: {error}", backend)
    if path is not None:
        error.add_note(f"weft wrote a program that shows it: {path}")


def _smallest(
    gm: fx.GraphModule, inputs: Sequence[object], fails: Callable[..., bool]
) -> Part | None:
    with events.stage("minimize"), config.patch(OFF, strict=True, fallback_random=True):
        return minimize(gm, inputs, fails)


def _problem(gm: fx.GraphModule, inputs: list[Any], compile: Compile) -> str:
    """How the compiled part differs from PyTorch; empty if it does not, or cannot be compiled."""
    with config.patch(OFF, strict=True, fallback_random=True):
        try:
            compiled = compile(copy_of(gm), inputs)
        except Exception as error:  # noqa: BLE001  another failure than the one looked for
            surface(error)
            return ""
        return compare(gm, compiled, inputs)


def _error_type(gm: fx.GraphModule, inputs: list[Any], compile: Compile) -> type | None:
    with config.patch(OFF, strict=True):
        try:
            compile(copy_of(gm), inputs)
        except Exception as error:  # noqa: BLE001  this is what was asked
            surface(error)
            return type(error)
    return None


def _write_program(part: Part, problem: str, backend: str) -> Path | None:
    return repro.write(*part, problem, backend)


def _operators(gm: fx.GraphModule) -> tuple[list[str], Sequence[SourceLine]]:
    """The operators of a part, and the user's lines of its first one that has any."""
    nodes = [n for n in gm.graph.nodes if n.op.startswith("call")]
    names = [n.target if isinstance(n.target, str) else str(
        getattr(n.target, "__name__", n.target)) for n in nodes]
    stacks = [n.meta["stack"] for n in nodes if n.meta.get("stack")]
    shown = names[:_NAMED] + ["..."] * (len(names) > _NAMED)
    return shown, stacks[0] if stacks else ()
