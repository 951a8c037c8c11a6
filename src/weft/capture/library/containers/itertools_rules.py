"""Iterators of `itertools` that need more than a line; the others are in `constructors`.

Place in the pipeline: see `weft.capture.library`.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

from weft.capture.core.base import SymbolicValue
from weft.capture.core.constant import NONE, constant, evaluate, is_none
from weft.capture.library.classes.classes import constructor
from weft.capture.library.containers.constructors import iterator_of
from weft.capture.library.containers.iterators import LazyIterator
from weft.capture.library.containers.sequences import TupleValue
from weft.capture.library.functions.functions import rule

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter


@constructor(itertools.compress)
def _compress(tx: Interpreter, cls: type, data: SymbolicValue, selectors: SymbolicValue
              ) -> SymbolicValue:
    pairs = zip(iterator_of(tx, data), iterator_of(tx, selectors), strict=False)
    return LazyIterator(cls, lambda: (item for item, chosen in pairs if chosen.truth(tx)), True)


class _Groups:
    """The state that a groupby object shares with its groups."""

    def __init__(self, tx: Interpreter, items: SymbolicValue, key: SymbolicValue) -> None:
        self.tx = tx
        self.items = iterator_of(tx, items)
        self.key = key
        self.number = 0
        self.item: SymbolicValue | None = None
        self.item_key: SymbolicValue = NONE

    def advance(self) -> bool:
        """Read the next item and its key."""
        self.item = next(self.items, None)
        if self.item is None:
            return False
        plain = is_none(self.key)
        self.item_key = self.item if plain else self.tx.call(self.key, [self.item])
        return True

    def each(self) -> Iterator[SymbolicValue]:
        """Pairs of a key and the iterator over its group."""
        going = self.advance()
        while going:
            self.number += 1
            key = self.item_key
            group = LazyIterator(type(self)._grouper, partial(self.group, self.number, key))
            yield TupleValue([key, group])
            while self.item is not None and self.tx.equal(key, self.item_key):
                self.advance()  # skip the rest of the group
            going = self.item is not None

    def group(self, number: int, key: SymbolicValue) -> Iterator[SymbolicValue]:
        """The items of a group, until the outer iterator is advanced."""
        while self.number == number and self.item is not None and self.tx.equal(
                key, self.item_key):
            yield self.item
            if self.number == number:
                self.advance()

    _grouper: type = type(next(itertools.groupby("a"))[1])


@constructor(itertools.groupby)
def _groupby(tx: Interpreter, cls: type, iterable: SymbolicValue, key: SymbolicValue = NONE
             ) -> SymbolicValue:
    groups = _Groups(tx, iterable, key)
    return LazyIterator(cls, groups.each)


_TWO: Final = constant(2)


@rule(itertools.tee)
def _tee(tx: Interpreter, iterable: SymbolicValue, n: SymbolicValue = _TWO, /) -> SymbolicValue:
    count = n.constant()
    evaluate(tx, lambda: itertools.tee((), count))  # raises what is wrong with it
    items = iterator_of(tx, iterable)
    queues: list[deque[SymbolicValue]] = [deque() for _ in range(count)]

    def produce(own: deque[SymbolicValue]) -> Iterator[SymbolicValue]:
        while True:
            if not own:
                item = next(items, None)
                if item is None:
                    return
                for queue in queues:
                    queue.append(item)
            yield own.popleft()

    kind: type = type(itertools.tee(())[0])
    return TupleValue([LazyIterator(kind, partial(produce, queue)) for queue in queues])
