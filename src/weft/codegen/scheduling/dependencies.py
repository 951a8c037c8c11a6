"""The steps of a schedule while they are being merged, and what each of them waits for.

Place in the pipeline: the data of `schedule.py`. A step is a number; its content is a group (a
future kernel) or a library call. A step waits for the steps that write what it reads, for those
that bind the data-dependent symbols that it uses, and, if it draws random numbers or talks to other
processes, for the last one before that did. Merging two groups joins their dependencies::

    steps = Steps(definitions, accesses, outputs)
    steps.are_separated(3, 5)       # a path leads from one to the other through a third step
    steps.merge(3, 5, merged)       # step 5 disappears into step 3
    steps.in_order()                # numbers, dependencies first
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TypeAlias, final

from weft.codegen.access import Access
from weft.codegen.scheduling.definitions import (
    binds_of,
    reads_of,
    runs_in_order,
    symbols_of,
    written_by,
)
from weft.codegen.scheduling.groups import Group, singleton
from weft.codegen.values import Computed, Definition, ExternCall, estimated_bytes

Step: TypeAlias = "Group | ExternCall"


@final
class Steps:
    """Numbered steps and their dependencies."""

    def __init__(
        self, definitions: list[Definition], accesses: dict[int, Access], outputs: set[str]
    ) -> None:
        self.outputs = outputs
        self.content: dict[int, Step] = {}
        self.positions: dict[int, int] = {}
        """Where each step would run; a merged group may move behind its own number."""
        self.calls: list[int] = []
        """Positions of library calls."""
        self.producer: dict[str, int] = {}
        """The step that writes each buffer."""
        self.readers: dict[str, set[int]] = defaultdict(set)
        """The steps that read each buffer, also some that no longer exist."""
        self.bytes: dict[str, int] = {}
        """The estimated size of each buffer."""
        self._bound: dict[str, int] = {}
        """The step that binds each data-dependent symbol."""
        self._symbols: dict[int, frozenset[str]] = {}
        """The data-dependent symbols that steps use."""
        self._last_ordered: int | None = None
        self._ordered_before: dict[int, int] = {}
        self._ancestors: dict[int, int] = {}
        """All steps that each step waits for, directly or not: a set, as the bits of an int."""
        for number, definition in enumerate(definitions):
            self._add(number, definition, accesses)
        self._descendants: dict[int, int] = dict.fromkeys(self.content, 0)
        """All steps that wait for each step."""
        for number in reversed(self.content):
            for before in self.dependencies(number):
                self._descendants[before] |= self._descendants[number] | 1 << number

    def _add(self, number: int, definition: Definition, accesses: dict[int, Access]) -> None:
        if isinstance(definition, Computed):
            self.content[number] = singleton(number, accesses[id(definition)])
        else:
            self.content[number] = definition
            self.calls.append(number)
        self.positions[number] = number
        mask = 0
        for name in reads_of(definition, accesses):
            self.readers[name].add(number)
            if name in self.producer:
                before = self.producer[name]
                mask |= self._ancestors[before] | (1 << before)
        if self._bound:
            self._symbols[number] = symbols_of(definition, accesses) & self._bound.keys()
            for before in {self._bound[name] for name in self._symbols[number]}:
                mask |= self._ancestors[before] | (1 << before)
        if runs_in_order(definition):
            if self._last_ordered is not None:
                mask |= self._ancestors[self._last_ordered] | (1 << self._last_ordered)
                self._ordered_before[number] = self._last_ordered
            self._last_ordered = number
        self._bound.update((b.name, number) for b in binds_of(definition))
        self._ancestors[number] = mask
        for buffer in written_by(definition):
            self.producer[buffer.name] = number
            self.bytes[buffer.name] = estimated_bytes(buffer)

    # -- questions -------------------------------------------------------------------------------

    def dependencies(self, number: int) -> set[int]:
        """The steps that a step waits for directly."""
        earlier = {self.producer[name] for name in self.reads(number) if name in self.producer}
        earlier.update(self._bound[name] for name in self._symbols.get(number, ()))
        if number in self._ordered_before:
            earlier.add(self._ordered_before[number])
        return earlier - {number}

    def reads(self, number: int) -> Iterable[str]:
        """The buffers that a step reads."""
        step = self.content[number]
        return step.reads if isinstance(step, Group) else [b.name for b in step.reads]

    def writes(self, number: int) -> Iterable[str]:
        """The buffers that a step writes."""
        step = self.content[number]
        return step.writes if isinstance(step, Group) else [b.name for b in written_by(step)]

    def is_read_from(self, position: int, name: str, except_by: int) -> bool:
        """Whether a buffer is read at a position or later."""
        readers = self.readers[name] & self.content.keys() - {except_by}
        return any(self.positions[r] >= position for r in readers)

    def are_separated(self, first: int, second: int) -> bool:
        """Whether a path leads from one group to the other through a third one."""
        return self._path(first, second) or self._path(second, first)

    def _path(self, start: int, end: int) -> bool:
        bit = 1 << start
        if not self._ancestors[end] & bit:
            return False
        return any(self._ancestors[d] & bit for d in self.dependencies(end) if d != start)

    def joint_position(self, early: int, late: int) -> int:
        """The position of both as one step: the first's, if the other waits for nothing behind
        it."""
        start = self.positions[early]
        waits = any(self.positions[n] > start for n in self.dependencies(late))
        return self.positions[late] if waits else start

    def needed_buffers(self) -> set[str]:
        """Buffers read by another step than the one that writes them, and outputs."""
        needed = set(self.outputs)
        for name, number in self.producer.items():
            is_extern = isinstance(self.content[number], ExternCall)
            if is_extern or any(n in self.content and n != number for n in self.readers[name]):
                needed.add(name)
        return needed

    def in_order(self) -> list[int]:
        """The steps, dependencies first, otherwise by position."""
        waiting = {n: self.dependencies(n) for n in self.content}
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
        assert len(result) == len(self.content), "the schedule has a cycle"
        return result

    # -- merging ---------------------------------------------------------------------------------

    def merge(self, first: int, second: int, merged: Group) -> None:
        """Replace two groups by their union, which keeps the number `first`."""
        early, late = sorted((first, second), key=self.positions.__getitem__)
        position = self.joint_position(early, late)
        self.content[first] = merged
        del self.content[second]
        if self._bound:
            none: frozenset[str] = frozenset()
            joint = self._symbols.get(first, none) | self._symbols.pop(second, none)
            self._symbols[first] = joint
        del self.positions[second]
        self.positions[first] = position
        for name in merged.writes:
            self.producer[name] = first
        for name in merged.reads:
            self.readers[name].discard(second)
            self.readers[name].add(first)
        self._join_paths(self._ancestors, self._descendants, first, second)
        self._join_paths(self._descendants, self._ancestors, first, second)
        for sets in (self._ancestors, self._descendants):
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


def _bits(mask: int) -> Iterator[int]:
    """The members of a set that is stored as bits."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
