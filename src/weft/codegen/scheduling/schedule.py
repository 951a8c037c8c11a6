"""Which definitions share a kernel, and in which order everything runs.

Place in the pipeline: after `lowering/`, before `calls/memory.py`. Every formula starts as a group
of its own; groups are merged while that saves memory traffic and is legal:

- their domains have a common refinement (`domain.py`);
- if one reads a buffer that the other writes, it reads it at the very point where it is written;
- no third group has to run between them;
- memory that the earlier one frees is not kept until later library calls have run.

First producers are merged with consumers (vertical fusion, largest saving first), then groups that
read the same buffers (horizontal fusion); last, values that are cheaper to recompute than to keep
are rematerialized (`rematerialization.py`). Each decision is recorded with its reason in
`Schedule.decisions`::

    schedule = make_schedule(lowered)
    for step in schedule.steps: ...      # Group (one kernel) or ExternCall, in execution order
"""

from __future__ import annotations

import math
from bisect import bisect
from dataclasses import dataclass
from typing import Final, final

from weft.codegen.access import analyse
from weft.codegen.domain import refine
from weft.codegen.lowering import GraphLowering
from weft.codegen.lowering.due_formulas import is_due
from weft.codegen.occupancy import leaves_gpu_idle, turns_inside_rows
from weft.codegen.scheduling.definitions import binds_of, needed_definitions, sorted_definitions
from weft.codegen.scheduling.dependencies import Step, Steps
from weft.codegen.scheduling.groups import Group, device_of, is_on_gpu, join
from weft.codegen.scheduling.rematerialization import Rematerialization
from weft.codegen.scheduling.step_order import StepOrder
from weft.codegen.values import Buffer, Computed, Value, estimated_bytes
from weft.config import config

_REFUSED: Final = 4
"""Readers of a buffer that are tried in vain before a kernel is left as it is."""

_SMALL: Final = 4096
"""The points of a kernel on a CPU that takes about as long as its call."""


@final
@dataclass(eq=False)
class Schedule:
    """The steps in order, which buffers are in memory, and the decisions with their reasons."""

    steps: list[Step]
    needed: set[str]
    decisions: list[str]


def make_schedule(lowered: GraphLowering) -> Schedule:
    """Group and order the definitions of a lowered graph."""
    bound = frozenset(b.name for d in lowered.definitions for b in binds_of(d))
    accesses = {id(d): analyse(d, bound) for d in lowered.definitions if isinstance(d, Computed)}
    ordered = sorted_definitions(lowered.definitions, accesses)
    outputs = {v.realize().buffer.name for v in lowered.outputs if isinstance(v, Value)}
    alive = needed_definitions(ordered, accesses, outputs)
    steps = Steps([d for d in ordered if id(d) in alive], accesses, outputs)
    steps.bytes.update(
        (b.name, estimated_bytes(b)) for b in lowered.inputs if isinstance(b, Buffer)
    )
    fusion = _Fusion(steps)
    fusion.fuse_producers()
    fusion.fuse_siblings()
    fusion.recompute()
    needed = steps.needed_buffers()
    return Schedule(_ordered_steps(steps, needed, lowered.held), needed, fusion.decisions)


def _ordered_steps(steps: Steps, needed: set[str], held: set[str]) -> list[Step]:
    """All steps, dependencies first, otherwise in the order of the graph or later."""
    numbers = steps.in_order()
    order = StepOrder(
        before={n: steps.dependencies(n) for n in numbers},
        reads={n: steps.reads(n) for n in numbers},
        writes={n: needed.intersection(steps.writes(n)) for n in numbers},
        size=steps.bytes,
        outputs=steps.outputs,
        held=held,
    )
    return [steps.content[n] for n in order.improved(numbers)]


@final
class _Fusion:
    """Decides which groups are merged."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.decisions: list[str] = []
        self._rejected: set[tuple[int, int]] = set()

    def fuse_producers(self) -> None:
        """Merge each group with the producers of what it reads, largest saving first."""
        for number in sorted(self.steps.content):
            while self._is_group(number) and self._absorb_one(number):
                pass

    def _absorb_one(self, number: int) -> bool:
        """Merge with the best producer; returns whether there was one to merge with."""
        scored = ((self._saving(c, number), c) for c in self._producers(number))
        return any(self._try_merge(candidate, number, f"producer, saves {saving} bytes")
                   for saving, candidate in sorted(scored, reverse=True))

    def _producers(self, number: int) -> set[int]:
        producer = self.steps.producer
        producers = {producer[name] for name in self._group(number).reads if name in producer}
        return {n for n in producers if n != number and self._is_group(n)}

    def fuse_siblings(self) -> None:
        """Merge consumers into producers again (more is possible now), then readers of the same
        buffer, then single numbers."""
        for number in sorted(self.steps.content):
            while self._is_group(number) and self._absorb_one(number):
                pass
        for name in list(self.steps.readers):
            self._merge_readers(name)
        self._merge_numbers()

    def _merge_numbers(self) -> None:
        """Merge kernels of one element, whose cost is the launch: on GPUs the counters of all batch
        norms become one kernel."""
        first: int | None = None
        for number, group in sorted(self.steps.content.items()):
            if not isinstance(group, Group) or group.domain.extents or not is_on_gpu(group):
                continue
            if first is None or not self._try_merge(first, number, "one element each"):
                first = number

    def _merge_readers(self, name: str) -> None:
        """Merge each reader with those that follow it, until several in a row do not fit."""
        numbers = sorted(n for n in self.steps.readers[name] if self._is_group(n))
        for position, first in enumerate(numbers):
            refused = 0
            for second in numbers[position + 1 :]:
                if refused == _REFUSED or not self._is_group(first):
                    break
                if self._is_group(second) and not (
                    self._worthwhile(first, second)
                    and self._try_merge(first, second, f"both read {name}")
                ):
                    refused += 1

    def _worthwhile(self, first: int, second: int) -> bool:
        """Whether two groups read something at the same points, or are so small that a kernel's
        call costs as much as its work (the rows of a matrix, one by one)."""
        left, right = self._group(first), self._group(second)
        if left.domain == right.domain:
            points = math.prod(left.domain.extents)
            if isinstance(points, int) and points <= _SMALL and not is_on_gpu(left):
                return True
            return any(
                left.reads[n] & right.reads[n] for n in left.reads.keys() & right.reads.keys()
            )
        return (math.prod(left.domain.extents) - math.prod(right.domain.extents)) == 0

    def _saving(self, producer: int, consumer: int) -> int:
        """Bytes that need not be read (or written and read) if the two become one kernel."""
        left, right = self._group(producer), self._group(consumer)
        both = {producer, consumer}
        total = 0
        for name in right.reads:
            if name in left.writes:
                alone = self.steps.readers[name] <= both and name not in self.steps.outputs
                total += self.steps.bytes.get(name, 0) * (2 if alone else 1)
            elif name in left.reads:
                total += self.steps.bytes.get(name, 0)
        return total

    def _try_merge(self, first: int, second: int, reason: str) -> bool:
        """Merge two groups if that is legal; `second` disappears into `first`."""
        if (first, second) in self._rejected:
            return False
        left, right = self._group(first), self._group(second)
        merged = self._merge(left, right, first, second)
        if isinstance(merged, str):
            self._rejected.add((first, second))
            self.decisions.append(f"{_name(left)} + {_name(right)}: no, {merged}")
            return False
        self.decisions.append(f"{_name(left)} + {_name(right)}: yes, {reason}")
        self.steps.merge(first, second, merged)
        return True

    def _merge(self, left: Group, right: Group, first: int, second: int) -> Group | str:
        """The union of two groups, or the reason why there is none."""
        reason = self._reason_against(left, right, first, second)
        if reason is not None:
            return reason
        joint = refine(left.domain, right.domain)
        if joint is None:
            return "different domains"
        merged = join(left, right, joint)
        if isinstance(merged, Group) and is_on_gpu(left):
            if _idles(merged):
                return "one kernel would leave most of the GPU idle"
            if _turns(merged) and not _turns(left) and not _turns(right):
                return "its tensors lie in different directions"
        return merged

    def _reason_against(self, left: Group, right: Group, first: int, second: int) -> str | None:
        """Why two groups may not be merged, whatever their domains are; None if they may."""
        if left.operators + right.operators > config.max_fusion_size:
            return "too many operators"
        if self._buffers_of(left, right, first, second) > config.max_fusion_buffers:
            return "too many buffers"
        if device_of(left) != device_of(right):
            return "different devices"
        if any(m.access.definition.alone for m in (*left.members, *right.members)):
            return "a copy into another layout has a kernel of its own"
        if self.steps.are_separated(first, second):
            return "another step lies between"
        if self._keeps_memory(first, second):
            return "what the earlier one frees would be kept"
        if self._gathers_results(first, second):
            return "results that are used up one after the other would be there at once"
        return None

    def _buffers_of(self, left: Group, right: Group, first: int, second: int) -> int:
        """The number of buffers of a kernel of both.

        Each is a value that is held in registers somewhere between its load and its last use: the
        sums of 24 residuals, recomputed for a backward pass, must not become one kernel.
        """
        writes = left.writes.keys() | right.writes.keys()
        reads = (left.reads.keys() | right.reads.keys()) - writes
        both = {first, second}
        kept = (n for n in writes if n in self.steps.outputs or not self.steps.readers[n] <= both)
        return len(reads) + sum(1 for _ in kept)

    def _keeps_memory(self, first: int, second: int) -> bool:
        """Whether merging would keep memory in use: the earlier group frees more than it allocates,
        but in one step with the later one it would wait for the library calls in between."""
        early, late = sorted((first, second), key=self.steps.positions.__getitem__)
        start, end = self.steps.positions[early], self.steps.joint_position(early, late)
        between = bisect(self.steps.calls, end) - bisect(self.steps.calls, start)
        if not between:
            return False
        earlier, later = self._group(early), self._group(late)
        wanted = {n for n in earlier.reads.keys() | earlier.writes.keys()
                  if n in self.steps.outputs or self.steps.is_read_from(end, n, early)}
        freed = earlier.reads.keys() - earlier.writes.keys() - later.reads.keys() - wanted
        allocated = sum(self.steps.bytes.get(n, 0) for n in earlier.writes.keys() & wanted)
        return is_due(sum(self.steps.bytes.get(n, 0) for n in freed), allocated, between)

    def _gathers_results(self, first: int, second: int) -> bool:
        """Whether merging would let results pile up: steps that would then run later free more
        bytes of the earlier group's results than a result of the other group takes (the states of a
        loop of library calls)."""
        early, late = sorted((first, second), key=self.steps.positions.__getitem__)
        end = self.steps.joint_position(early, late)
        if end == self.steps.positions[early]:
            return False
        earlier, later = self._group(early), self._group(late)
        used_up = 0
        for name in earlier.writes.keys() - self.steps.outputs:
            readers = self.steps.readers[name] & self.steps.content.keys() - {early, late}
            if readers and all(self.steps.positions[r] < end for r in readers):
                used_up += self.steps.bytes.get(name, 0)
        return used_up > max(self.steps.bytes.get(name, 0) for name in later.writes)

    def recompute(self) -> None:
        """Remove values from memory that their readers recompute."""
        steps = self.steps
        work = Rematerialization(steps.content, steps.producer, steps.readers, steps.positions,
                                 steps.bytes, steps.outputs)
        self.decisions += work.run()

    def _group(self, number: int) -> Group:
        group = self.steps.content[number]
        assert isinstance(group, Group)
        return group

    def _is_group(self, number: int) -> bool:
        return isinstance(self.steps.content.get(number), Group)


def _idles(group: Group) -> bool:
    """Whether a group reads a few reductions' results at every point of long rows again."""
    members = [
        (
            m.access.definition.reduction is not None,
            m.access.definition.buffer.name,
            m.access.reads.keys(),
            m.variables.values(),
        )
        for m in group.members
    ]
    return leaves_gpu_idle(group.domain, members, group.reads)


def _turns(group: Group) -> bool:
    """Whether a reduction's tensors are contiguous in different directions."""
    indices = [*group.writes.values(), *(e for exprs in group.reads.values() for e in exprs)]
    return turns_inside_rows(group.domain, indices)


def _name(group: Group) -> str:
    return "{" + ", ".join(m.access.definition.buffer.name for m in group.members) + "}"
