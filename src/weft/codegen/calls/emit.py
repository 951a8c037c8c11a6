"""The call sequence of a compiled graph, as Python source.

Place in the pipeline: the last step of `compile_graph`. What it writes reads top to bottom:

    def call(args):
        in0, in1 = args
        args.clear()
        buf0 = empty1()  # (512, 768) float32
        k0(in0, buf0)  # layer_norm  model.py:31
        buf1 = mm2(buf0, in1)  # (512, 768) @ (768, 64)
        del buf0, in1
        return [buf1]
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from weft.codegen.calls.call_sequence import CallSequence
from weft.codegen.calls.library_calls import spell, spell_call, spell_write
from weft.codegen.calls.memory import MemoryPlan, aliased_buffers, last_uses, step_writes
from weft.codegen.ir.loop_ir import Kernel
from weft.codegen.lowering import GraphLowering
from weft.codegen.scheduling.groups import Group
from weft.codegen.scheduling.schedule import Schedule
from weft.codegen.values import Buffer, ExternCall, Value
from weft.errors import InternalError
from weft.runtime.data_checks import assume, check_places
from weft.runtime.launcher import bits_of
from weft.shapes.algebra.expr import Expr, IntExpr, symbols
from weft.shapes.algebra.floats import (
    SYMBOLIC_FLOATS,
    FloatSymbol,
    FloatValue,
    number_symbols,
    symbol_name,
    text,
)
from weft.shapes.algebra.printing import python_text
from weft.shapes.algebra.views import Shape
from weft.shapes.asserts import Asserts


def write_calls(
    lowered: GraphLowering,
    schedule: Schedule,
    plan: MemoryPlan,
    kernels: Mapping[int, tuple[Kernel, object]],
) -> CallSequence:
    """The call sequence; `kernels` has the kernel and the compiled callable of each group, by its
    id."""
    sequence = CallSequence(scope=dict(lowered.constants))
    _unpack(sequence, lowered, plan)
    pauses = _pauses(lowered, schedule)
    _check_places(sequence, plan, -1)
    for position, step in enumerate(schedule.steps):
        if isinstance(step, Group):
            _allocate(sequence, plan, step_writes(step, schedule.needed))
            _launch(sequence, *kernels[step.id])
        else:
            _call(sequence, step, lowered, plan)
        _check_places(sequence, plan, position)
        dead = [n for n in plan.dead_after.get(position, []) if n not in plan.reuse.values()]
        if dead:
            sequence.lines.append(f"del {', '.join(dead)}")
        for stage in pauses.get(position, ()):
            _hand_over(sequence, lowered, stage)
    if not lowered.stages:
        returned = [_result(sequence, v) for v in lowered.outputs]
        sequence.lines.append(f"return [{', '.join(returned)}]")
    sequence.asserts.finish()
    _bind_numbers(sequence, lowered)
    return sequence


def _check_places(sequence: CallSequence, plan: MemoryPlan, position: int) -> None:
    """Test the indices that the step computed, so that later steps cannot raise."""
    for check in plan.refusals.checks.get(position, ()):
        sequence.scope["check_places"] = check_places
        size = python_text(check.size)
        sequence.lines.append(f"check_places({check.buffer}, {size}, {check.wraps})")


def _pauses(lowered: GraphLowering, schedule: Schedule) -> dict[int, list[Sequence[int]]]:
    """The stages that end behind each step: all their outputs are computed and not read any
    more."""
    pauses: dict[int, list[Sequence[int]]] = defaultdict(list)
    last, aliased = last_uses(schedule, lowered), aliased_buffers(schedule)
    end = len(schedule.steps) - 1
    at = 0
    for stage in lowered.stages[:-1]:
        names = _buffer_names(lowered, stage)
        at = max([at, *(end if n in aliased else last[n] for n in names)])
        pauses[at].append(stage)
    for stage in lowered.stages[-1:]:
        pauses[end].append(stage)
    return pauses


def _buffer_names(lowered: GraphLowering, stage: Sequence[int]) -> list[str]:
    return [lowered.outputs[k].realize().buffer.name for k in stage]


def _hand_over(sequence: CallSequence, lowered: GraphLowering, stage: Sequence[int]) -> None:
    """Pause with a list of outputs and their numbers, which the caller then owns alone."""
    pairs = [f"({k}, {_result(sequence, lowered.outputs[k])})" for k in stage]
    names = _buffer_names(lowered, stage)
    gone = f"; del {', '.join(names)}" if names else ""
    sequence.lines.append(f"ready = [[{', '.join(pairs)}]]{gone}")
    sequence.lines.append("yield ready.pop()")


def _unpack(sequence: CallSequence, lowered: GraphLowering, plan: MemoryPlan) -> None:
    """Name the inputs, and bind the symbols of their sizes."""
    names: list[str] = []
    for number, item in enumerate(lowered.inputs):
        if isinstance(item, Expr) and symbols(item) == {item}:
            names.append(str(item))
        elif isinstance(item, FloatSymbol):
            names.append(item.name)
        else:
            names.append(f"in{number}")
    if names:
        sequence.lines.append(f"{', '.join(names)}{',' if len(names) == 1 else ''} = args")
    sequence.lines.append("args.clear()")
    bound = set(names)
    for item in lowered.inputs:
        if isinstance(item, Buffer):
            _bind_sizes(sequence, item.name, lowered.given[item.name], bound)
    sequence.asserts = Asserts(lowered.asserts, bound)
    sequence.scope.update(assume=assume, math=math)
    sequence.lines.extend(sequence.asserts.bound(()))
    unused = plan.dead_after.get(-1, [])
    if unused:
        sequence.lines.append(f"del {', '.join(unused)}")
    sequence.bound = dict.fromkeys(bound, len(sequence.lines))


def _bind_sizes(
    sequence: CallSequence, name: str, layout: tuple[Shape, Shape], bound: set[str]
) -> None:
    """Read symbols that are a whole size or stride of an input."""
    for extents, values in zip(("shape", "stride()"), layout, strict=True):
        targets = ["_"] * len(values)
        for dim, value in enumerate(values):
            if isinstance(value, Expr) and symbols(value) == {value} and str(value) not in bound:
                bound.add(str(value))
                targets[dim] = str(value)
        if any(target != "_" for target in targets):  # one call for all is faster than `size(dim)`
            comma = "," if len(targets) == 1 else ""
            sequence.lines.append(f"{', '.join(targets)}{comma} = {name}.{extents}")


def _bind_numbers(sequence: CallSequence, lowered: GraphLowering) -> None:
    """Compute the quotients and floats that the sequence uses, behind the sizes that they depend
    on."""
    sequence.scope["bits_of"] = bits_of
    used = set(re.findall(r"\b[qf]\d+\b", "\n".join(sequence.lines)))
    lines = [
        (_lines_before(sequence, value), f"{name} = {spelled}")
        for name, value, spelled in _numbers(lowered)
        if name in used
    ]
    for position, line in sorted(lines, key=lambda item: item[0], reverse=True):
        sequence.lines.insert(position, line)


def _numbers(lowered: GraphLowering) -> Iterator[tuple[str, IntExpr | FloatValue, str]]:
    """Names, values and expressions of those numbers."""
    if lowered.facts is not None:
        for symbol, quotient in lowered.facts.quotients.items():
            value = lowered.facts.simplify(quotient)
            yield str(symbol), value, python_text(value)
    for bits, number in lowered.floats.items():
        yield str(bits), number, f"bits_of({text(number)})"


def _lines_before(sequence: CallSequence, value: IntExpr | FloatValue) -> int:
    """The number of lines behind which all symbols of the value are bound."""
    names = list(map(symbol_name, number_symbols(value)))
    unknown = [name for name in names if name not in sequence.bound]
    if unknown:
        raise InternalError(f"nothing defines {', '.join(unknown)}, of which {value!r} is made")
    return max((sequence.bound[name] for name in names), default=0)


def _allocate(sequence: CallSequence, plan: MemoryPlan, buffers: list[Buffer]) -> None:
    for buffer in buffers:
        name = buffer.name
        if name in plan.in_place:
            memory = _as(sequence, plan.buffers[plan.in_place[name]], buffer)
            sequence.lines.append(f"{name} = {memory}  # in place")
        elif name in plan.reuse:
            old = plan.reuse[name]
            memory = _as(sequence, plan.buffers[old], buffer)
            sequence.lines.append(f"{name} = {memory}; del {old}  # reuse")
        else:
            sequence.lines.append(f"{name} = {sequence.empty(buffer)}")


def _as(sequence: CallSequence, old: Buffer, new: Buffer) -> str:
    """The memory of one buffer in the layout of another."""
    if old.shape == new.shape and old.strides == new.strides:
        return old.name
    return sequence.view(old.name, new.shape, new.strides)


def _call(
    sequence: CallSequence, call: ExternCall, lowered: GraphLowering, plan: MemoryPlan
) -> None:
    result = call.outputs[0] if call.outputs else None
    if result is None or result.name not in plan.in_place:
        spell_call(sequence, call)
        return
    _allocate(sequence, plan, [result])
    root = plan.root(result.name)  # writes to a caller's tensor are counted elsewhere
    is_input = any(isinstance(b, Buffer) and b.name == root for b in lowered.inputs)
    spell_write(sequence, call, f"{result.name}.data" if is_input else result.name)


def _launch(sequence: CallSequence, kernel: Kernel, compiled: object) -> None:
    sequence.scope[kernel.name] = compiled
    arguments = [b.name for b in kernel.buffers] + [str(s) for s in kernel.sizes]
    origin = f"  # {'; '.join(kernel.origins[-2:])}" if kernel.origins else ""
    sequence.lines.append(f"{kernel.name}({', '.join(arguments)}){origin}")


def _result(sequence: CallSequence, item: object) -> str:
    if isinstance(item, Value):
        return sequence.tensor(item.realize(), exact=True)
    if isinstance(item, (Expr, *SYMBOLIC_FLOATS)):
        return spell(sequence, item)
    if item is None or isinstance(item, (int, float, bool)):
        return repr(item)
    return sequence.name("constant", item)
