"""Lifetimes of buffers, and which dead buffer's memory a new one reuses.

Place in the pipeline: after `scheduling/schedule.py`; `emit.py` follows the plan. Buffers that a
kernel or an `out=` call fills may reuse dead memory of the same size; memory that ATen returned may
be reused too, unless it could alias something (views)::

    plan = plan_memory(schedule, outputs)
    plan.reuse["buf7"] == "buf2"      # buf7 takes buf2's memory, dead by then
    plan.in_place["buf8"] == "buf3"   # the kernel overwrites buf3, which it is the last to read
    plan.in_place["buf9"] == "in2"    # buf9 is the new value of an input that the caller mutates
    plan.in_place["bufa"] == "buf9"   # an ATen call writes elements of buf9 (`runtime/writes.py`)
    plan.dead_after[3] == ["in4"]     # names to drop after step 3
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import final

from weft.codegen.calls.refusals import Refusals, find_refusals
from weft.codegen.ir.loop_ir import Kernel, Load, Reduce, reduction_depths
from weft.codegen.lowering import GraphLowering
from weft.codegen.scheduling.dependencies import Step
from weft.codegen.scheduling.groups import Group
from weft.codegen.scheduling.schedule import Schedule
from weft.codegen.values import Buffer, ExternCall, Value, estimated_bytes
from weft.shapes.algebra.expr import IntExpr


@final
@dataclass
class MemoryPlan:
    """`buffers`: those in memory, by name."""

    buffers: dict[str, Buffer] = field(default_factory=dict)
    reuse: dict[str, str] = field(default_factory=dict)
    in_place: dict[str, str] = field(default_factory=dict)
    donated: list[str] = field(default_factory=list)
    dead_after: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    refusals: Refusals = field(default_factory=Refusals)

    def root(self, name: str) -> str:
        """The first buffer in a chain of buffers that are written in place of each other."""
        while name in self.in_place:
            name = self.in_place[name]
        return name


def step_reads(step: Step) -> list[str]:
    """Buffers that must be alive when a step runs."""
    if isinstance(step, ExternCall):
        return [b.name for b in step.reads]
    return [n for n in step.reads if n not in step.writes]


def step_writes(step: Step, needed: set[str]) -> list[Buffer]:
    """Buffers in memory that a step fills."""
    if isinstance(step, ExternCall):
        return [b for b in step.outputs if b is not None]
    buffers = [m.access.definition.buffer for m in step.members]
    return [b for b in buffers if b.name in needed]


def plan_memory(
    schedule: Schedule, lowered: GraphLowering, kernels: Mapping[int, Kernel]
) -> MemoryPlan:
    """Lifetimes and reuse; `kernels` are the groups' kernels by group id."""
    plan = MemoryPlan(refusals=find_refusals(schedule, lowered, kernels))
    returned = {v.realize().buffer.name for v in lowered.outputs if isinstance(v, Value)}
    last = last_uses(schedule, lowered)
    fixed = returned | aliased_buffers(schedule)
    read = {name: at for at, step in enumerate(schedule.steps) for name in step_reads(step)}
    free: dict[object, list[str]] = defaultdict(list)
    ending: dict[int, list[str]] = defaultdict(list)
    for name, position in last.items():
        if name not in returned:
            ending[position].append(name)
    _retire(plan, -1, ending.get(-1, []), fixed, free)
    for position, step in enumerate(schedule.steps):
        written = step_writes(step, schedule.needed)
        plan.buffers.update((b.name, b) for b in written)
        if isinstance(step, Group):
            _update(plan, step)
            if position > plan.refusals.last:
                _donate(plan, written, lowered, last, position, kernels[step.id])
            dying = [n for n in ending.get(position, []) if n in plan.buffers and n not in fixed]
            for buffer in [b for b in written if b.name not in plan.in_place]:
                _place(plan, buffer, kernels[step.id], dying, free)
        else:
            base = step.overwritten()
            if base is not None and base.name not in fixed and read[base.name] == position:
                _overwrite(plan, written[0], base, lowered, position)
        _retire(plan, position, ending.get(position, []), fixed, free)
    if plan.reuse:
        _forgo_costly_reuse(plan, schedule, lowered, last)
    return plan


def last_uses(schedule: Schedule, lowered: GraphLowering) -> dict[str, int]:
    """The last step that uses each buffer (-1 for inputs that are never read)."""
    last = {b.name: -1 for b in lowered.inputs if isinstance(b, Buffer)}
    for position, step in enumerate(schedule.steps):
        for name in step_reads(step):
            last[name] = position
        for buffer in step_writes(step, schedule.needed):
            last[buffer.name] = position
            target = lowered.written.get(buffer.name)
            if target is not None:  # it may go there: the input must live until now
                last[target.name] = max(last[target.name], position)
    return last


def aliased_buffers(schedule: Schedule) -> set[str]:
    """Buffers that an ATen call may return a view of, and such views."""
    names: set[str] = set()
    for step in schedule.steps:
        if isinstance(step, ExternCall) and step.may_alias():
            names.update(b.name for b in (*step.reads, *step.outputs) if b is not None)
    return names


def _key(buffer: Buffer) -> object:
    """Buffers with equal keys can share memory."""
    return _room(buffer), buffer.dtype, buffer.device


def _room(buffer: Buffer) -> IntExpr:
    """The number of elements of the memory. Only rows of known sizes have gaps
    (`passes/pad_rows.py`)."""
    count = math.prod(buffer.shape)
    if count == 0 or not all(isinstance(s, int) for s in (count, *buffer.strides)):
        return count
    last = sum((n - 1) * s for n, s in zip(buffer.shape, buffer.strides, strict=True))
    return last + 1


def _update(plan: MemoryPlan, group: Group) -> None:
    """What is defined as a change of another buffer has its memory."""
    for member in group.members:
        buffer, base = member.access.definition.buffer, member.access.definition.updates
        if base is not None:
            plan.in_place[buffer.name] = base.name


def _donate(
    plan: MemoryPlan,
    written: list[Buffer],
    lowered: GraphLowering,
    last: Mapping[str, int],
    position: int,
    kernel: Kernel,
) -> None:
    """Let the kernel write new values of mutated inputs into the inputs, if they are not read
    later."""
    for buffer in written:
        target = lowered.written.get(buffer.name)
        if target is None or buffer.name in plan.in_place or target.name in plan.donated:
            continue
        if last[target.name] > position:
            continue
        if can_overwrite(kernel, target.name, buffer.name):
            plan.in_place[buffer.name] = target.name
            plan.buffers[target.name] = target
            plan.donated.append(target.name)


def _place(
    plan: MemoryPlan,
    buffer: Buffer,
    kernel: Kernel,
    dying: list[str],
    free: dict[object, list[str]],
) -> None:
    """Choose memory for a kernel's output: an input's that it may overwrite, or a dead buffer's."""
    for name in dying:
        old = plan.buffers[name]
        taken = name in plan.in_place.values()
        if old is buffer or taken or _key(old) != _key(buffer) or not _is_dense(old):
            continue
        if can_overwrite(kernel, name, buffer.name):
            plan.in_place[buffer.name] = name
            return
    candidates = free.get(_key(buffer))
    if candidates:
        plan.reuse[buffer.name] = candidates.pop()


def _overwrite(
    plan: MemoryPlan, result: Buffer, base: Buffer, lowered: GraphLowering, position: int
) -> None:
    """Let an ATen call that is the last to read its first operand write there, if the operand is
    memory of this graph or the input whose new value the call computes."""
    target = lowered.written.get(result.name)
    if target is not None and plan.root(base.name) == target.name:
        if position <= plan.refusals.last:
            return
        plan.buffers[target.name] = target
        plan.donated.append(target.name)
        plan.in_place[result.name] = base.name
    elif base.name in plan.buffers and _is_dense(base):
        plan.in_place[result.name] = base.name


def can_overwrite(kernel: Kernel, source: str, target: str) -> bool:
    """Whether `target` may have the memory of `source`.

    It may if every load of `source` is at the index and level of the one store to `target`, and no
    load of a later loop nest (after a further reduction) could follow that store. A sum of what is
    stored belongs to the store's own nest.
    """
    stores = [s for s in kernel.stores if s.buffer == target]
    if len(stores) != 1 or any(s.mode != "assign" for s in kernel.stores):
        return False
    store = stores[0]
    depth = reduction_depths(kernel)
    nest = depth[store.value.id]
    reduced = [n for n in kernel.nodes if isinstance(n, Reduce)]
    if any(s.inner and depth[s.value.id] > nest for s in kernel.stores):
        return False
    if any(depth[n.id] > nest + 1 for n in reduced) or (reduced and not store.inner):
        return False
    loads = [n for n in kernel.nodes if isinstance(n, Load) and n.buffer == source]
    return all(n.index == store.index and n.inner == store.inner for n in loads)


def _retire(
    plan: MemoryPlan,
    position: int,
    names: list[str],
    fixed: set[str],
    free: dict[object, list[str]],
) -> None:
    for name in names:
        buffer = plan.buffers.get(name)
        overwritten = name in plan.in_place.values()
        if buffer is not None and not overwritten and name not in fixed and _is_dense(buffer):
            free[_key(buffer)].append(name)
        plan.dead_after[position].append(name)


def _forgo_costly_reuse(
    plan: MemoryPlan, schedule: Schedule, lowered: GraphLowering, last: Mapping[str, int]
) -> None:
    """Undo reuse that would keep memory for a later buffer while most memory is in use."""
    steps = enumerate(schedule.steps)
    allocated_at = {b.name: k for k, step in steps for b in step_writes(step, schedule.needed)}
    used = _bytes_in_use(plan, lowered, allocated_at, last, len(schedule.steps))
    most = max(used)
    for name, old in sorted(plan.reuse.items(), key=lambda pair: allocated_at[pair[0]]):
        size, gap = estimated_bytes(plan.buffers[old]), range(last[old] + 1, allocated_at[name])
        if any(used[k] + size > most for k in gap):
            del plan.reuse[name]
            continue
        for k in gap:
            used[k] += size


def _bytes_in_use(
    plan: MemoryPlan, lowered: GraphLowering, allocated_at: Mapping[str, int],
    last: Mapping[str, int], n_steps: int,
) -> list[int]:
    """The bytes in use at each step, if dead memory were freed at once."""
    overwritten = set(plan.in_place.values())
    returned = {v.realize().buffer.name for v in lowered.outputs if isinstance(v, Value)}
    change = [0] * (n_steps + 1)
    for buffer in lowered.inputs:
        if isinstance(buffer, Buffer) and buffer.name not in lowered.held:
            change[0] += estimated_bytes(buffer)
            change[last[buffer.name] + 1] -= estimated_bytes(buffer)
    for name, start in allocated_at.items():
        if plan.root(name) not in plan.donated:
            size = estimated_bytes(plan.buffers[name])
            change[start] += size
            change[last[name] + (name not in overwritten)] -= 0 if name in returned else size
    return list(accumulate(change))[:-1]


def _is_dense(buffer: Buffer) -> bool:
    """Whether no two elements share memory: true by construction, except for results of ATen
    calls."""
    from_call = isinstance(buffer.definition, ExternCall)
    return not from_call or not any(s == 0 for s in buffer.strides)
