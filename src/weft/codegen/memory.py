"""When buffers live and which dead one's memory a new one takes.

Place in the pipeline: after `schedule.py`; `wrapper.py` follows the plan. Buffers that a kernel or
an `out=` call fills may take over memory of the same size that nothing needs any more; memory that
ATen returned may be taken over too unless it could alias something (views).

    plan = plan_memory(schedule, outputs)
    plan.reuse["buf7"] == "buf2"      # buf7 takes buf2's memory
    plan.dead_after[3] == ["in4"]     # names to drop after step 3
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import final

from weft.codegen.lowering import GraphLowering
from weft.codegen.schedule import Group, Schedule, Step
from weft.codegen.values import Buffer, ExternCall, Value, product


@final
@dataclass
class MemoryPlan:
    """`buffers`: those in memory, by name."""

    buffers: dict[str, Buffer] = field(default_factory=dict)
    reuse: dict[str, str] = field(default_factory=dict)
    dead_after: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))


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


def plan_memory(schedule: Schedule, lowered: GraphLowering) -> MemoryPlan:
    """Lifetimes and reuse."""
    plan = MemoryPlan()
    returned = {v.realize().buffer.name for v in lowered.outputs if isinstance(v, Value)}
    last = _last_uses(schedule, lowered)
    fixed = returned | _aliased(schedule)
    free: dict[object, list[str]] = defaultdict(list)
    ending: dict[int, list[str]] = defaultdict(list)
    for name, position in last.items():
        if name not in returned:
            ending[position].append(name)
    for position, step in enumerate(schedule.steps):
        for buffer in step_writes(step, schedule.needed):
            plan.buffers[buffer.name] = buffer
            if isinstance(step, Group) and buffer.definition is not None:
                _take_over(plan, buffer, free)
        _retire(plan, position, ending.get(position, []), fixed, free)
    return plan


def _last_uses(schedule: Schedule, lowered: GraphLowering) -> dict[str, int]:
    """The last step that touches each buffer (inputs that are never read: -1)."""
    last = {b.name: -1 for b in lowered.inputs if isinstance(b, Buffer)}
    for position, step in enumerate(schedule.steps):
        for name in step_reads(step):
            last[name] = position
        for buffer in step_writes(step, schedule.needed):
            last[buffer.name] = position
    return last


def _aliased(schedule: Schedule) -> set[str]:
    """Buffers that an ATen call may return a view of, and such views."""
    names: set[str] = set()
    for step in schedule.steps:
        if isinstance(step, ExternCall) and _may_alias(step):
            names.update(b.name for b in (*step.reads, *step.outputs) if b is not None)
    return names


def _may_alias(call: ExternCall) -> bool:
    returns = getattr(getattr(call.op, "_schema", None), "returns", ())
    return any(r.alias_info is not None for r in returns)


def _key(buffer: Buffer) -> object:
    return product(buffer.shape), buffer.dtype, buffer.device


def _take_over(plan: MemoryPlan, buffer: Buffer, free: dict[object, list[str]]) -> None:
    candidates = free.get(_key(buffer))
    if candidates:
        plan.reuse[buffer.name] = candidates.pop()


def _retire(
    plan: MemoryPlan,
    position: int,
    names: list[str],
    fixed: set[str],
    free: dict[object, list[str]],
) -> None:
    for name in names:
        buffer = plan.buffers.get(name)
        if buffer is not None and name not in fixed and _is_dense(buffer):
            free[_key(buffer)].append(name)
        plan.dead_after[position].append(name)


def _is_dense(buffer: Buffer) -> bool:
    """Buffers are dense by construction, but for what an ATen call promised otherwise."""
    from_call = isinstance(buffer.definition, ExternCall)
    return not from_call or not any(s == 0 for s in buffer.strides)
