"""Iterators of `itertools` that need more than a line; the others are in `constructors`.

Place in the pipeline: see `weft.capture.library`.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from weft.capture.core.base import Args, Kwargs, SymbolicValue, by_name
from weft.capture.core.constant import NONE, constant, is_none
from weft.capture.library.classes.classes import constructor
from weft.capture.library.containers.constructors import iterator_of, iterator_type
from weft.capture.library.containers.iterators import LazyIterator
from weft.capture.library.containers.sequences import TupleValue
from weft.capture.library.functions.functions import rule

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter


@iterator_type(itertools.compress, iterables=slice(0, 2), most=2)
def _compress(tx: Interpreter, args: Args, kwargs: Kwargs) -> Iterator[SymbolicValue]:
    data, selectors = args
    for item, chosen in zip(iterator_of(tx, data), iterator_of(tx, selectors), strict=False):
        if chosen.truth(tx):
            yield item


@iterator_type(itertools.dropwhile, pure=False, iterables=slice(1, 2), most=2)
def _dropwhile(tx: Interpreter, args: Args, kwargs: Kwargs) -> Iterator[SymbolicValue]:
    items = iterator_of(tx, args[1])
    for item in items:
        if not tx.call(args[0], [item]).truth(tx):
            yield item
            break
    yield from items


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
def _groupby(tx: Interpreter, cls: type, args: Args, kwargs: Kwargs) -> SymbolicValue:
    given = by_name(args, kwargs, "iterable", "key")
    groups = _Groups(tx, given["iterable"], given.get("key", NONE))
    return LazyIterator(cls, groups.each)


@rule(itertools.tee)
def _tee(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    given = by_name(args, kwargs, "iterable", "n")
    count = given.get("n", constant(2)).constant()
    items = iterator_of(tx, args[0])
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
