"""ATen graph → callable: the steps of code generation in one function.

Place in the pipeline: what `backends/` call (docs/architecture/aot.md).

    artifact = compile_graph(aten_graph)
    outputs = artifact([x, weight])
    print(artifact.source)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch.fx import GraphModule

from weft.codegen import targets
from weft.codegen.calls.call_sequence import CallSequence
from weft.codegen.calls.emit import write_calls
from weft.codegen.calls.memory import plan_memory, step_reads
from weft.codegen.ir.loop_ir import Kernel
from weft.codegen.kernels import build_kernel
from weft.codegen.lowering import GraphLowering
from weft.codegen.scheduling.groups import Group, device_of
from weft.codegen.scheduling.schedule import Schedule, make_schedule
from weft.codegen.values import Buffer, ExternCall, Value
from weft.diagnostics import events
from weft.diagnostics.regions import kernel_region, name_kernels
from weft.errors import SourceLine
from weft.graph_call import GraphCall, Packing
from weft.passes.framework import run_stage
from weft.runtime.generated_code import load
from weft.shapes.algebra.expr import Expr, IntExpr, subs
from weft.shapes.algebra.facts import Facts
from weft.shapes.symnode import expr_of, extents


@final
@dataclass
class Artifact:
    """A compiled graph: `artifact(list_of_inputs) -> list of outputs`; it clears the list.

    `source` is the call sequence, `kernels` the loop IR, `decisions` the scheduler's log.
    in_stages: the call returns an iterator of (number, output) pairs for each stage of
    the graph (`GraphFacts.stages`) instead.
    """

    call: Callable[[list[Any]], list[Any]]
    source: str
    kernels: list[Kernel] = field(default_factory=list)
    decisions: list[str] = field(default_factory=list)
    extern_ops: list[str] = field(default_factory=list)
    in_stages: bool = False
    weights: tuple[tuple[int, Packing], ...] = ()

    def __call__(self, args: list[Any]) -> list[object]:
        return self.call(args)

    def graph_call(self) -> GraphCall:
        """What runs the graph."""
        return GraphCall(self.call, boxed=True, in_stages=self.in_stages, source=self.source,
                         weights=self.weights)


def compile_graph(graph: GraphModule) -> Artifact:
    """Compile a functional ATen graph whose nodes have `meta["val"]`."""
    with events.stage("lower"):
        graph = run_stage("kernels", graph)
        lowered = GraphLowering.of(graph)  # operators as formulas and library calls
    with events.stage("schedule"):
        schedule = make_schedule(lowered)  # which formulas share a kernel
        kernels = _build_kernels(schedule)  # groups as loop IR
        plan = plan_memory(schedule, lowered, {g.id: k for g, k in kernels})  # lifetimes, reuse
    devices = [device_of(group) for group, _ in kernels]
    compiled = targets.compile_kernels(  # source, machine code
        [k for _, k in kernels], devices, _likely_sizes(graph, lowered.facts)
    )
    with events.stage("codegen"):
        launchers = {g.id: (k, c) for (g, k), c in zip(kernels, compiled, strict=True)}
        sequence = write_calls(lowered, schedule, plan, launchers)  # the call sequence
        call = load(sequence.text(), "<weft call sequence>", sequence.scope)
        name_kernels(call, {k.name: kernel_region(k.name, _lines(g)) for g, k in kernels})
    _report(lowered, schedule, kernels, sequence.text())
    return Artifact(
        call, sequence.text(), [k for _, k in kernels], schedule.decisions, lowered.extern_ops,
        in_stages=bool(lowered.stages), weights=_weights(sequence, lowered, schedule),
    )


def _weights(
    sequence: CallSequence, lowered: GraphLowering, schedule: Schedule
) -> tuple[tuple[int, Packing], ...]:
    """The inputs that are read as weights of products or of convolutions alone."""
    returned = {v.realize().buffer.name for v in lowered.outputs if isinstance(v, Value)}
    weights: list[tuple[int, Packing]] = []
    for position, item in enumerate(lowered.inputs):
        uses = sequence.weights.get(item.name) if isinstance(item, Buffer) else None
        if uses is None or not isinstance(item, Buffer) or item.name in returned:
            continue
        if len({type(packing) for _, packing in uses}) > 1:
            continue
        products = [call for call, _ in uses]
        readers = [step for step in schedule.steps if item.name in step_reads(step)]
        if all(any(step is call for call in products) for step in readers):
            weights.append((position, uses[0][1]))
    return tuple(weights)


def _likely_sizes(graph: GraphModule, facts: Facts | None) -> dict[str, int]:
    """The values of symbolic sizes in the call that is compiled for, by name; also those of the
    quotients that factors of sizes are written with."""
    likely: dict[IntExpr, IntExpr] = {}
    for node in graph.graph.find_nodes(op="placeholder"):
        value = node.meta["val"]
        for size in extents(value) if isinstance(value, torch.Tensor) else (value,):
            if isinstance(size, torch.SymInt) and size.node.hint is not None:
                likely[expr_of(size)] = int(size.node.hint)
    values = {size: value for size, value in likely.items() if isinstance(size, Expr)}
    for symbol, quotient in facts.quotients.items() if facts is not None else ():
        likely[symbol] = subs(quotient, values)
    return {str(size): value for size, value in likely.items() if isinstance(value, int)}


def _build_kernels(schedule: Schedule) -> list[tuple[Group, Kernel]]:
    groups = [s for s in schedule.steps if isinstance(s, Group)]
    return [(g, build_kernel(g, schedule.needed, _name(n, g))) for n, g in enumerate(groups)]


def _name(number: int, group: Group) -> str:
    """A kernel's name in the call sequence and in profiles: number and operators."""
    operators = dict.fromkeys(re.sub(r"\W", "", o.operator).strip("_") for o in group.origins)
    return "_".join([f"k{number}", *list(operators)[-3:]])


def _lines(group: Group) -> tuple[SourceLine, ...]:
    """The lines of the program that a kernel computes."""
    return tuple(dict.fromkeys(o.line for o in group.origins if o.line is not None))


def _report(
    lowered: GraphLowering,
    schedule: Schedule,
    kernels: Sequence[tuple[Group, Kernel]],
    source: str,
) -> None:
    events.count("kernels", len(kernels))
    events.count("extern_calls", len(lowered.extern_ops))
    for group, kernel in kernels:
        stack = _lines(group)
        events.record(
            "kernel",
            name=kernel.name,
            stack=stack,
            source=kernel,
            target=str(device_of(group)),
            ops=kernel.origins,
        )
    for step in schedule.steps:
        if isinstance(step, ExternCall):
            lines = tuple(o.line for o in step.origins if o.line is not None)
            events.record("extern_call", op=str(step.op), stack=lines)
    events.record("schedule", text="\n".join(schedule.decisions))
    events.record("output_code", name="call sequence", source=source)
