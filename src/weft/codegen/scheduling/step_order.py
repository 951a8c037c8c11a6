"""Reorders steps so that less memory is in use at once, by moving one step at a time.

Place in the pipeline: the last part of `schedule.py`. What a backward recomputes depends on saved
values only, so all of it could run at the start, where most memory is in use::

    relu1, relu2, grad2(relu2), grad1(relu1)   ->   relu2, grad2(relu2), relu1, grad1(relu1)

A step that frees more than it allocates (it is the last reader of something larger) may move
towards what it waits for: a gradient is added to another one when both exist, not at the end. A
step that allocates may move towards its first reader. The memory in use at the steps in between
decides how far: a step that itself needs much lets others free theirs first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, TypeAlias, final

_WORTH: Final = 1 << 16
"""Bytes below which a step stays: kernels that follow each other are launched together."""

Ends: TypeAlias = list[tuple[int, int]]
"""The last place where others read what a step reads (-1: none), and the bytes of that."""


@final
@dataclass(slots=True)
class StepOrder:
    """The dependencies of the steps, by number, and the buffers, by name."""

    before: Mapping[int, set[int]]  # what a step has to wait for
    reads: Mapping[int, Iterable[str]]
    writes: Mapping[int, Iterable[str]]  # buffers in memory only
    size: Mapping[str, int]
    outputs: set[str]
    held: set[str] = field(default_factory=set)  # inputs, which are in memory in any case
    _followers: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    _readers: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    def improved(self, order: Sequence[int]) -> list[int]:
        """`order` with steps that free memory moved forward as far as that helps, and others moved
        back."""
        for number in order:
            for other in self.before[number]:
                self._followers[other].append(number)
            for name in self.reads[number]:
                self._readers[name].append(number)
        line = _Timeline(order, *self._lifetimes(order))
        for number in order:
            self._advance(number, line)
        for number in reversed(line.order[:]):
            self._delay(number, line)
        return line.order

    def _lifetimes(self, order: Sequence[int]) -> tuple[list[int], list[int]]:
        """The bytes that each step allocates, and those that are free behind it."""
        place = {number: i for i, number in enumerate(order)}
        freed = [0] * len(order)
        for name, readers in self._readers.items():
            if name not in self.outputs and name not in self.held:
                freed[max(place[r] for r in readers)] += self.size.get(name, 0)
        return [self._bytes(self.writes[n]) for n in order], freed

    def _advance(self, number: int, line: _Timeline) -> None:
        """Move a step that frees memory towards what it waits for."""
        here = line.place[number]
        first = max((line.place[b] + 1 for b in self.before[number]), default=here)
        if first < here:
            ends = self._ends(number, line)
            freed = sum(size for end, size in ends if end < here)
            if freed >= line.allocated[number] + _WORTH:
                line.move(number, range(first, here), ends)

    def _delay(self, number: int, line: _Timeline) -> None:
        """Move a step that allocates towards its first reader."""
        here = line.place[number]
        last = min((line.place[f] for f in self._followers[number]), default=here)
        if here + 1 < last and line.allocated[number] >= _WORTH:
            lasting = self._bytes(self.outputs.intersection(self.writes[number]))
            line.move(number, range(here + 1, last), self._ends(number, line), lasting)

    def _ends(self, number: int, line: _Timeline) -> Ends:
        return [
            (max((line.place[r] for r in self._readers[name] if r != number), default=-1), size)
            for name in set(self.reads[number]) - self.outputs - self.held
            if (size := self.size.get(name, 0))
        ]

    def _bytes(self, names: Iterable[str]) -> int:
        return sum(self.size.get(name, 0) for name in names)


@final
class _Timeline:
    """Steps in order, with the bytes in use before each of them."""

    __slots__ = ("allocated", "levels", "order", "place")

    def __init__(
        self, order: Sequence[int], allocated: Sequence[int], freed: Sequence[int]
    ) -> None:
        self.order = list(order)
        self.place = {number: i for i, number in enumerate(order)}
        self.allocated = dict(zip(order, allocated, strict=True))
        changes = (a - f for a, f in zip(allocated, freed, strict=True))
        self.levels = list(accumulate(changes, initial=0))

    def move(self, number: int, passed: range, ends: Ends, lasting: int = 0) -> None:
        """Move a step to the best of the places `passed`, which are right before or behind it.

        The best place has the smallest maximum of memory in use; among equal ones, the smallest
        average, not counting `lasting` bytes of what the step allocates, which are in use at the
        end anyway; among these the last place.
        """
        allocated, is_first = self.allocated[number], passed.start > self.place[number]
        change = _changes(passed, allocated, ends)
        levels = self.levels[passed.start : passed.stop + 1]
        if is_first:
            levels = [level - c for level, c in zip(levels, change, strict=True)]
        others = [self.order[k] for k in passed]
        during = [level + self.allocated[n] for level, n in zip(levels, others, strict=False)]
        later = [used + c for used, c in zip(during, change, strict=False)]
        most = map(
            max, accumulate(during, max, initial=0), (level + allocated for level in levels),
            _from_behind(accumulate(reversed(later), max, initial=0)),
        )
        area = _from_behind(accumulate((c - lasting for c in change[-2::-1]), initial=0))
        *_, at = min(zip(most, area, range(0, -len(levels), -1), strict=True))
        at = -at
        if at != (0 if is_first else len(others)):
            levels[at + 1 :] = [x + c for x, c in zip(levels[at:], change[at:], strict=True)][:-1]
            self._put(passed.start - is_first, [*others[:at], number, *others[at:]], levels)

    def _put(self, start: int, numbers: list[int], levels: list[int]) -> None:
        self.order[start : start + len(numbers)] = numbers
        self.levels[start : start + len(levels)] = levels
        self.place.update(zip(numbers, range(start, start + len(numbers)), strict=True))


def _changes(passed: range, allocated: int, ends: Ends) -> list[int]:
    """How much more memory is in use at each place, and behind the last one, if a step that
    allocates so much runs before all of them instead of behind them."""
    gone = [0] * (len(passed) + 1)
    for end, size in ends:
        if end < passed.stop:
            gone[max(end + 1 - passed.start, 0)] += size
    return [allocated - freed for freed in accumulate(gone)]


def _from_behind(values: Iterable[int]) -> list[int]:
    return list(values)[::-1]
