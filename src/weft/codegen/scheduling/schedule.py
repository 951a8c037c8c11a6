"""Which definitions share a kernel, and in which order everything runs.

Place in the pipeline: after `lowering/`, before `calls/memory.py`. Every formula starts as a group
of its own; groups are merged while that saves memory traffic and is legal:

- their domains have a common refinement (`domain.py`);
- if one reads a buffer that the other writes, it reads it at the very point where it is written;
- no third group has to run between them;
- memory that the earlier one frees is not kept until later library calls have run.

First producers are merged with consumers (largest saving first), then groups that read the same
buffers; last, values that are cheaper to recompute than to keep are removed (`recomputed.py`). Each
decision is recorded with its reason in `Schedule.decisions`::

    schedule = make_schedule(lowered)
    for step in schedule.steps: ...      # Group (one kernel) or ExternCall, in execution order
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias, final

from weft._torch import OpOverload, runs_as_written
from weft.codegen.access import Access, analyse
from weft.codegen.domain import refine
from weft.codegen.lowering import GraphLowering
from weft.codegen.lowering.due_formulas import is_due
from weft.codegen.occupancy import leaves_gpu_idle, turns_inside_rows
from weft.codegen.scheduling.groups import Group, device_of, is_on_gpu, join, singleton
from weft.codegen.scheduling.recomputed import Recomputation
from weft.codegen.scheduling.step_order import StepOrder
from weft.codegen.values import (
    Buffer,
    Computed,
    Definition,
    ExternCall,
    Value,
    estimated_bytes,
)
from weft.config import config
from weft.shapes.algebra.expr import Expr
from weft.shapes.algebra.floats import SYMBOLIC_FLOATS, number_symbols
from weft.shapes.unbacked import Binding

Step: TypeAlias = "Group | ExternCall"


@final
@dataclass(eq=False)
class Schedule:
    """The steps in order, which buffers are in memory, and the decisions with their reasons."""

    steps: list[Step]
    needed: set[str]
    decisions: list[str]


def make_schedule(lowered: GraphLowering) -> Schedule:
    """Group and order the definitions of a lowered graph."""
    bound = frozenset(b.name for d in lowered.definitions for b in _binds(d))
    accesses = {id(d): analyse(d, bound) for d in lowered.definitions if isinstance(d, Computed)}
    ordered = _sorted_definitions(lowered.definitions, accesses)
    outputs = {v.realize().buffer.name for v in lowered.outputs if isinstance(v, Value)}
    alive = _needed_definitions(ordered, accesses, outputs)
    fusion = _Fusion([d for d in ordered if id(d) in alive], accesses, outputs)
    fusion.held.update(lowered.held)
    fusion.bytes.update(
        (b.name, estimated_bytes(b)) for b in lowered.inputs if isinstance(b, Buffer)
    )
    fusion.fuse_producers()
    fusion.fuse_siblings()
    fusion.recompute()
    needed = fusion.needed_buffers()
    return Schedule(fusion.ordered_steps(needed), needed, fusion.decisions)


def reads_of(definition: Definition, accesses: dict[int, Access]) -> Iterable[str]:
    """Names of the buffers that a definition reads."""
    if isinstance(definition, ExternCall):
        return [b.name for b in definition.reads]
    return accesses[id(definition)].reads


def _binds(definition: Definition) -> tuple[Binding, ...]:
    return definition.binds if isinstance(definition, ExternCall) else ()


def symbols_of(definition: Definition, accesses: dict[int, Access]) -> frozenset[str]:
    """The data-dependent symbols that a definition needs (for calls, other symbols too)."""
    if isinstance(definition, Computed):
        return accesses[id(definition)].symbols
    own = {b.name for b in definition.binds}
    sizes = [n for b in definition.outputs if b is not None for n in (*b.shape, *b.strides)]
    found = {str(s) for size in sizes for s in number_symbols(size)}
    found.update(_argument_symbols((definition.arguments, definition.keywords)))
    return frozenset(found - own)


def _argument_symbols(item: Any) -> Iterator[str]:
    if isinstance(item, Value):
        placed = item.realize()
        for size in (*placed.shape, *placed.strides, placed.offset):
            yield from map(str, number_symbols(size))
    elif isinstance(item, (list, tuple)):
        for part in item:
            yield from _argument_symbols(part)
    elif isinstance(item, dict):
        yield from _argument_symbols(tuple(item.values()))
    elif isinstance(item, (Expr, *SYMBOLIC_FLOATS)):
        yield from map(str, number_symbols(item))


def written_by(definition: Definition) -> list[Buffer]:
    """The buffers that a definition defines."""
    if isinstance(definition, ExternCall):
        return [b for b in definition.outputs if b is not None]
    return [definition.buffer]


def _sorted_definitions(
    definitions: list[Definition], accesses: dict[int, Access]
) -> list[Definition]:
    """Producers before consumers; otherwise the given order (depth first)."""
    producer = {b.name: d for d in definitions for b in written_by(d)}
    symbols = {b.name: d for d in definitions for b in _binds(d)}
    done: set[int] = set()
    result: list[Definition] = []
    for root in definitions:
        stack: list[tuple[Definition, bool]] = [(root, False)]
        while stack:
            definition, ready = stack.pop()
            if ready:
                result.append(definition)
                continue
            if id(definition) in done:
                continue
            done.add(id(definition))
            stack.append((definition, True))
            needed = [producer.get(name) for name in reads_of(definition, accesses)]
            if symbols:
                needed += [symbols.get(name) for name in symbols_of(definition, accesses)]
            stack += [(d, False) for d in needed if d is not None and id(d) not in done]
    return result


def _needed_definitions(
    ordered: list[Definition], accesses: dict[int, Access], outputs: set[str]
) -> set[int]:
    """Definitions that an output depends on."""
    wanted = set(outputs)
    alive: set[int] = set()
    for definition in reversed(ordered):
        if any(b.name in wanted for b in written_by(definition)) or _has_effect(definition):
            alive.add(id(definition))
            wanted.update(reads_of(definition, accesses))
    return alive


def _has_effect(definition: Definition) -> bool:
    """Whether it must run even if its result is unused: operators without tensor results
    (assertions), those that bind symbols, and those that draw random numbers."""
    if not isinstance(definition, ExternCall):
        return False
    return bool(definition.binds) or not written_by(definition) or _runs_as_written(definition)


def _runs_as_written(definition: Definition) -> bool:
    """Whether it advances a random generator, or talks to other processes: such calls keep their
    order."""
    op = getattr(definition, "op", None)
    return isinstance(op, OpOverload) and runs_as_written(op)


@final
class _Fusion:
    """The groups while they are being merged, and their dependencies."""

    def __init__(
        self, definitions: list[Definition], accesses: dict[int, Access], outputs: set[str]
    ) -> None:
        self.outputs = outputs
        self.held: set[str] = set()  # inputs, which the caller holds
        self.decisions: list[str] = []
        self.steps: dict[int, Step] = {}
        self.calls: list[int] = []  # positions of library calls
        self.producer: dict[str, int] = {}
        self.readers: dict[str, set[int]] = defaultdict(set)
        self.ancestors: dict[int, int] = {}  # sets of steps, as bits
        self.descendants: dict[int, int] = {}
        self.positions: dict[int, int] = {}
        self.bytes: dict[str, int] = {}
        self.rejected: set[tuple[int, int]] = set()
        self.bound: dict[str, int] = {}
        self.symbols: dict[int, frozenset[str]] = {}
        self.last_ordered: int | None = None
        self.ordered_before: dict[int, int] = {}
        for number, definition in enumerate(definitions):
            self._add(number, definition, accesses)
        self.descendants = dict.fromkeys(self.steps, 0)
        for number in reversed(self.steps):
            for before in self._dependencies(number):
                self.descendants[before] |= self.descendants[number] | 1 << number

    def _add(self, number: int, definition: Definition, accesses: dict[int, Access]) -> None:
        if isinstance(definition, Computed):
            self.steps[number] = singleton(number, accesses[id(definition)])
        else:
            self.steps[number] = definition
            self.calls.append(number)
        self.positions[number] = number
        mask = 0
        for name in reads_of(definition, accesses):
            self.readers[name].add(number)
            if name in self.producer:
                before = self.producer[name]
                mask |= self.ancestors[before] | (1 << before)
        if self.bound:
            self.symbols[number] = symbols_of(definition, accesses) & self.bound.keys()
            for before in {self.bound[name] for name in self.symbols[number]}:
                mask |= self.ancestors[before] | (1 << before)
        if _runs_as_written(definition):
            if self.last_ordered is not None:
                mask |= self.ancestors[self.last_ordered] | (1 << self.last_ordered)
                self.ordered_before[number] = self.last_ordered
            self.last_ordered = number
        self.bound.update((b.name, number) for b in _binds(definition))
        self.ancestors[number] = mask
        for buffer in written_by(definition):
            self.producer[buffer.name] = number
            self.bytes[buffer.name] = estimated_bytes(buffer)

    # -- fusion ----------------------------------------------------------------------------------

    def fuse_producers(self) -> None:
        """Merge each group with the producers of what it reads, largest saving first."""
        for number in sorted(self.steps):
            while number in self.steps and isinstance(self.steps[number], Group):
                group = self._absorb_one(number)
                if group is None:
                    break

    def _absorb_one(self, number: int) -> int | None:
        """Merge with the best producer; returns the number of the merged group, or None."""
        candidates = self._producers(number)
        scored = sorted(((self._saving(c, number), c) for c in candidates), reverse=True)
        for saving, candidate in scored:
            if self._try_merge(candidate, number, f"producer, saves {saving} bytes"):
                return candidate
        return None

    def _producers(self, number: int) -> set[int]:
        group = self.steps[number]
        assert isinstance(group, Group)
        found = {self.producer[name] for name in group.reads if name in self.producer}
        return {n for n in found if n != number and isinstance(self.steps[n], Group)}

    def fuse_siblings(self) -> None:
        """Merge consumers into producers again (more is possible now), then readers of the same
        buffer, then single numbers."""
        for number in sorted(self.steps):
            while number in self.steps and isinstance(self.steps[number], Group):
                if self._absorb_one(number) is None:
                    break
        for name in list(self.readers):
            self._merge_readers(name)
        self._merge_numbers()

    def _merge_numbers(self) -> None:
        """Merge kernels of one element, whose cost is the launch: on GPUs the counters of all batch
        norms become one kernel."""
        first: int | None = None
        for number, group in sorted(self.steps.items()):
            if not isinstance(group, Group) or group.domain.extents or not is_on_gpu(group):
                continue
            if first is None or not self._try_merge(first, number, "one element each"):
                first = number

    def _merge_readers(self, name: str) -> None:
        numbers = sorted(n for n in self.readers[name] if isinstance(self.steps.get(n), Group))
        for position, first in enumerate(numbers[:16]):
            for second in numbers[position + 1 : position + 5]:
                if first in self.steps and second in self.steps and self._worthwhile(first, second):
                    self._try_merge(first, second, f"both read {name}")

    def _worthwhile(self, first: int, second: int) -> bool:
        """Whether two groups read something at the same points."""
        left, right = self.steps[first], self.steps[second]
        assert isinstance(left, Group) and isinstance(right, Group)
        if left.domain == right.domain:
            return any(
                left.reads[n] & right.reads[n] for n in left.reads.keys() & right.reads.keys()
            )
        return (math.prod(left.domain.extents) - math.prod(right.domain.extents)) == 0

    def _saving(self, producer: int, consumer: int) -> int:
        """Bytes that need not be read (or written and read) if the two become one kernel."""
        left, right = self.steps[producer], self.steps[consumer]
        assert isinstance(left, Group) and isinstance(right, Group)
        total = 0
        for name in right.reads:
            if name in left.writes:
                alone = self.readers[name] <= {producer, consumer} and name not in self.outputs
                total += self.bytes.get(name, 0) * (2 if alone else 1)
            elif name in left.reads:
                total += self.bytes.get(name, 0)
        return total

    def _try_merge(self, first: int, second: int, reason: str) -> bool:
        """Merge two groups if that is legal; `second` disappears into `first`."""
        if (first, second) in self.rejected:
            return False
        left, right = self.steps[first], self.steps[second]
        assert isinstance(left, Group) and isinstance(right, Group)
        merged = self._merge(left, right, first, second)
        if isinstance(merged, str):
            self.rejected.add((first, second))
            self.decisions.append(f"{_name(left)} + {_name(right)}: no, {merged}")
            return False
        self.decisions.append(f"{_name(left)} + {_name(right)}: yes, {reason}")
        self._replace(first, second, merged)
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
        if self._are_separated(first, second):
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
        kept = (n for n in writes if n in self.outputs or not self.readers[n] <= both)
        return len(reads) + sum(1 for _ in kept)

    def _keeps_memory(self, first: int, second: int) -> bool:
        """Whether the earlier one frees more than it allocates and the other waits for later
        library calls: all that follows the earlier one would wait too."""
        early, late = sorted((first, second), key=self.positions.__getitem__)
        start, end = self.positions[early], self._position(early, late)
        between = bisect(self.calls, end) - bisect(self.calls, start)
        if not between:
            return False
        one, other = self.steps[early], self.steps[late]
        assert isinstance(one, Group) and isinstance(other, Group)
        wanted = {n for n in one.reads.keys() | one.writes.keys()
                  if n in self.outputs or self._is_read_from(end, n, early)}
        freed = one.reads.keys() - one.writes.keys() - other.reads.keys() - wanted
        made = sum(self.bytes.get(n, 0) for n in one.writes.keys() & wanted)
        return is_due(sum(self.bytes.get(n, 0) for n in freed), made, between)

    def _gathers_results(self, first: int, second: int) -> bool:
        """Whether steps that would run later free more bytes of the earlier one's results before
        the other runs than a result takes (states of a loop of library calls)."""
        early, late = sorted((first, second), key=self.positions.__getitem__)
        end = self._position(early, late)
        if end == self.positions[early]:
            return False
        one, other = self.steps[early], self.steps[late]
        assert isinstance(one, Group) and isinstance(other, Group)
        used_up = 0
        for name in one.writes.keys() - self.outputs:
            readers = self.readers[name] & self.steps.keys() - {early, late}
            if readers and all(self.positions[r] < end for r in readers):
                used_up += self.bytes.get(name, 0)
        return used_up > max(self.bytes.get(name, 0) for name in other.writes)

    def _position(self, early: int, late: int) -> int:
        """The position of both as one step: the first's, if the other waits for nothing behind
        it."""
        start = self.positions[early]
        waits = any(self.positions[n] > start for n in self._dependencies(late))
        return self.positions[late] if waits else start

    def _is_read_from(self, position: int, name: str, except_by: int) -> bool:
        """Whether a buffer is read at a position or later."""
        readers = self.readers[name] & self.steps.keys() - {except_by}
        return any(self.positions[r] >= position for r in readers)

    def _are_separated(self, first: int, second: int) -> bool:
        """Whether a path leads from one group to the other through a third one."""
        return self._path(first, second) or self._path(second, first)

    def _path(self, start: int, end: int) -> bool:
        bit = 1 << start
        if not self.ancestors[end] & bit:
            return False
        return any(self.ancestors[d] & bit for d in self._dependencies(end) if d != start)

    def _dependencies(self, number: int) -> set[int]:
        found = {self.producer[name] for name in self._reads(number) if name in self.producer}
        found.update(self.bound[name] for name in self.symbols.get(number, ()))
        if number in self.ordered_before:
            found.add(self.ordered_before[number])
        return found - {number}

    def _replace(self, first: int, second: int, merged: Group) -> None:
        early, late = sorted((first, second), key=self.positions.__getitem__)
        position = self._position(early, late)
        self.steps[first] = merged
        del self.steps[second]
        if self.bound:
            none: frozenset[str] = frozenset()
            joint = self.symbols.get(first, none) | self.symbols.pop(second, none)
            self.symbols[first] = joint
        del self.positions[second]
        self.positions[first] = position
        for name in merged.writes:
            self.producer[name] = first
        for name in merged.reads:
            self.readers[name].discard(second)
            self.readers[name].add(first)
        self._join_paths(self.ancestors, self.descendants, first, second)
        self._join_paths(self.descendants, self.ancestors, first, second)
        for sets in (self.ancestors, self.descendants):
            sets[first] = (sets[first] | sets.pop(second)) & ~(1 << first | 1 << second)

    def _join_paths(
        self, ahead: dict[int, int], behind: dict[int, int], first: int, second: int
    ) -> None:
        """Update reachability: what follows one of the two groups now follows all that precedes
        either.

        Bits of groups that no longer exist stay in the sets, and mean nothing.
        """
        both = 1 << first | 1 << second
        new = (ahead[first] | ahead[second]) & ~both | 1 << first
        for number in _bits((behind[first] ^ behind[second]) & ~both):
            if number in ahead:
                ahead[number] |= new

    def recompute(self) -> None:
        """Remove values from memory that their readers recompute."""
        work = Recomputation(
            self.steps, self.producer, self.readers, self.positions, self.bytes, self.outputs
        )
        self.decisions += work.run()

    # -- results ---------------------------------------------------------------------------------

    def ordered_steps(self, needed: set[str]) -> list[Step]:
        """All steps, dependencies first, otherwise in the order of the graph or later."""
        numbers = self._order()
        order = StepOrder(
            before={n: self._dependencies(n) for n in numbers},
            reads={n: self._reads(n) for n in numbers},
            writes={n: needed.intersection(self._writes(n)) for n in numbers},
            size=self.bytes,
            outputs=self.outputs,
            held=self.held,
        )
        return [self.steps[n] for n in order.improved(numbers)]

    def _reads(self, number: int) -> Iterable[str]:
        step = self.steps[number]
        return step.reads if isinstance(step, Group) else [b.name for b in step.reads]

    def _writes(self, number: int) -> Iterable[str]:
        step = self.steps[number]
        return step.writes if isinstance(step, Group) else [b.name for b in written_by(step)]

    def _order(self) -> list[int]:
        waiting = {n: self._dependencies(n) for n in self.steps}
        followers: dict[int, list[int]] = defaultdict(list)
        for number, before in waiting.items():
            for other in before:
                followers[other].append(number)
        ready = [(self.positions[n], n) for n, before in waiting.items() if not before]
        heapq.heapify(ready)
        result: list[int] = []
        while ready:
            _, number = heapq.heappop(ready)
            result.append(number)
            for other in followers[number]:
                waiting[other].discard(number)
                if not waiting[other]:
                    heapq.heappush(ready, (self.positions[other], other))
        assert len(result) == len(self.steps), "the schedule has a cycle"
        return result

    def needed_buffers(self) -> set[str]:
        """Buffers read by another step than the one that writes them, and outputs."""
        needed = set(self.outputs)
        for name, number in self.producer.items():
            is_extern = isinstance(self.steps[number], ExternCall)
            if is_extern or any(n in self.steps and n != number for n in self.readers[name]):
                needed.add(name)
        return needed


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
    indices = [*group.writes.values(), *(e for found in group.reads.values() for e in found)]
    return turns_inside_rows(group.domain, indices)


def _name(group: Group) -> str:
    return "{" + ", ".join(m.access.definition.buffer.name for m in group.members) + "}"


def _bits(mask: int) -> Iterator[int]:
    """The members of a set that is stored as bits."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
