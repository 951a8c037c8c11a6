"""Steps that free memory run as early as they can, those that only make some as late.

Place in the pipeline: the last part of `schedule.py`. What a backward computes again depends on
saved values only, so all of it could run at the start, where most memory is in use::

    relu1, relu2, grad2(relu2), grad1(relu1)   ->   relu2, grad2(relu2), relu1, grad1(relu1)

A step that frees more than it makes (it is the last to read something larger) does not wait: a
gradient is added to another one when both are there, not at the end. A step that makes a result of
the graph stays where it is: that memory is in use at the end anyway, and so would be what it frees.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, final

_WORTH: Final = 1 << 16
"""Bytes below which a step stays: kernels that follow each other are launched together."""


@final
@dataclass(slots=True)
class StepOrder:
    """What is known of the steps, by number, and of the buffers, by name."""

    before: Mapping[int, set[int]]  # what a step has to wait for
    reads: Mapping[int, Iterable[str]]
    writes: Mapping[int, Iterable[str]]  # buffers in memory only
    size: Mapping[str, int]
    outputs: set[str]
    _followers: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    _readers: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    _place: dict[int, tuple[int, int]] = field(default_factory=dict)

    def improved(self, order: Sequence[int]) -> list[int]:
        """`order` with steps that free memory as early as possible, others as late."""
        for number in order:
            for other in self.before[number]:
                self._followers[other].append(number)
            for name in self.reads[number]:
                self._readers[name].append(number)
        return self._delayed(self._advanced(order))

    def _advanced(self, order: Sequence[int]) -> list[int]:
        self._place = {number: (i, 0) for i, number in enumerate(order)}
        for moved, number in enumerate(order, 1):
            last = max((self._place[b] for b in self.before[number]), default=None)
            if last is not None and self._frees(number, (last[0], moved)):
                self._place[number] = (last[0], moved)  # behind all that waited for it already
        return sorted(order, key=self._place.__getitem__)

    def _frees(self, number: int, place: tuple[int, int]) -> bool:
        """Whether much memory is free earlier if the step runs at `place`."""
        freed = self._freed(number, place)
        return self._bytes(freed) >= self._bytes(self.writes[number]) + _WORTH

    def _freed(self, number: int, place: tuple[int, int]) -> set[str]:
        """What nobody reads any more after the step, if it runs at `place`."""
        names = set(self.reads[number]) - self.outputs
        return {name for name in names if not self._is_read_after(name, number, place)}

    def _delayed(self, order: Sequence[int]) -> list[int]:
        self._place = {number: (i, 0) for i, number in enumerate(order)}
        for moved, number in enumerate(reversed(order), 1):
            first = min((self._place[f] for f in self._followers[number]), default=None)
            if first is not None and self._may_wait(number, first):
                self._place[number] = (first[0], -moved)  # before all that wait there already
        return sorted(order, key=self._place.__getitem__)

    def _may_wait(self, number: int, first: tuple[int, int]) -> bool:
        """Whether less memory is in use until `first` if the step runs there."""
        made, freed = set(self.writes[number]), self._freed(number, first)
        passing = made - self.outputs
        return self._bytes(made) >= _WORTH and self._bytes(passing) >= self._bytes(freed)

    def _bytes(self, names: Iterable[str]) -> int:
        return sum(self.size.get(name, 0) for name in names)

    def _is_read_after(self, name: str, number: int, place: tuple[int, int]) -> bool:
        return any(self._place[r] >= place for r in self._readers[name] if r != number)
