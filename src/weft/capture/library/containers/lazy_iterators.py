"""Iterators over iterators: zip, enumerate, map, filter, chain, islice and so on.

Place in the pipeline: a value family. Each has the same state as CPython's object of that type, so
one that is alive at a graph break is rebuilt in its state: `enumerate(iter(items), 2)` after two
steps. Sources and functions are evaluated when the program asks for an item.
"""

from __future__ import annotations

import itertools
from types import FunctionType
from typing import TYPE_CHECKING, final

from weft.capture.core.base import SymbolicValue
from weft.capture.core.breaks import graph_break
from weft.capture.core.constant import constant
from weft.capture.library.classes.attributes import type_lookup
from weft.capture.library.containers.iterators import (
    ItemsIterator,
    IteratorValue,
    result_or_end,
    unless_ended,
)
from weft.capture.library.containers.sequences import TupleValue

if TYPE_CHECKING:
    from weft.capture.core.protocols import Emitter, Interpreter


class Rebuilt(IteratorValue):
    """An iterator that a call of its type rebuilds in its current state."""

    __slots__ = ()
    kind: type

    def arguments(self, emit: Emitter) -> list[str]:
        """The arguments of that call."""
        raise NotImplementedError

    def rebuild(self, emit: Emitter) -> str:
        return emit.bind(self, f"{emit.constant(self.kind)}({', '.join(self.arguments(emit))})")

    def __repr__(self) -> str:
        return f"{self.kind.__name__} iterator"


class Parallel(Rebuilt):
    """Takes an item from each of several iterators at once."""

    __slots__ = ("sources",)

    def __init__(self, sources: list[SymbolicValue]) -> None:
        super().__init__()
        self.sources = sources

    def items(self, tx: Interpreter) -> list[SymbolicValue] | None:
        """One item of each source; None when the first of them ends."""
        items: list[SymbolicValue] = []
        for source in self.sources:
            item = source.next(tx)
            if item is None:
                self.ended(tx, len(items))
                return None
            items.append(tx.force(item))
        return items

    def ended(self, tx: Interpreter, index: int) -> None:
        """Called when the source at `index` has ended."""

    def arguments(self, emit: Emitter) -> list[str]:
        return [emit.value(source) for source in self.sources]


@final
class ZipIterator(Parallel):
    """`zip(*sources)`."""

    __slots__ = ("strict",)
    kind = zip

    def __init__(self, sources: list[SymbolicValue], strict: bool) -> None:
        super().__init__(sources)
        self.strict = strict

    def next(self, tx: Interpreter) -> SymbolicValue | None:
        items = self.items(tx) if self.sources else None
        return None if items is None else TupleValue(items)

    def ended(self, tx: Interpreter, index: int) -> None:
        if not self.strict:
            return
        others = range(1, len(self.sources))
        longer = next((n for n in others if self.sources[n].next(tx) is not None),
                      None) if index == 0 else None
        if index == 0 and longer is None:
            return
        at, than = (index, "shorter") if index else (longer or 0, "longer")
        which = "argument 1" if at == 1 else f"arguments 1-{at}"
        raise tx.error(ValueError, f"zip() argument {at + 1} is {than} than {which}")

    def arguments(self, emit: Emitter) -> list[str]:
        return super().arguments(emit) + ["strict=True"] * self.strict


@final
class MapIterator(Parallel):
    """`map(function, *sources)`."""

    __slots__ = ("function",)
    kind = map

    def __init__(self, function: SymbolicValue, sources: list[SymbolicValue]) -> None:
        super().__init__(sources)
        self.function = function

    def next(self, tx: Interpreter) -> SymbolicValue | None:
        items = self.items(tx)
        if items and self.function.real() is id and self._is_reused(items[0]):
            raise graph_break("unknown-operation", "id of a tuple that its iterator fills again")
        return None if items is None else result_or_end(tx, self.function, items)

    def _is_reused(self, item: SymbolicValue) -> bool:
        """Whether an iterator made the item, a tuple, and nothing holds it: zip, enumerate and
        others fill such a tuple again."""
        return (isinstance(item, TupleValue) and item.source is None
                and not isinstance(self.sources[0], ItemsIterator))

    def arguments(self, emit: Emitter) -> list[str]:
        return [emit.value(self.function), *super().arguments(emit)]


@final
class EnumerateIterator(Rebuilt):
    """`enumerate(source, index)`."""

    __slots__ = ("index", "source_")
    kind = enumerate

    def __init__(self, source: SymbolicValue, index: SymbolicValue) -> None:
        super().__init__()
        self.source_ = source
        self.index = index

    def next(self, tx: Interpreter) -> SymbolicValue | None:
        item = self.source_.next(tx)
        if item is None:
            return None
        index, self.index = self.index, tx.binary("add", self.index, constant(1))
        return TupleValue([index, tx.force(item)])

    def arguments(self, emit: Emitter) -> list[str]:
        return [emit.value(self.source_), emit.value(self.index)]


@final
class FilterIterator(Rebuilt):
    """`filter(function, source)`, or `itertools.filterfalse`."""

    __slots__ = ("function", "kind", "source_")

    def __init__(self, kind: type, function: SymbolicValue, source: SymbolicValue) -> None:
        super().__init__()
        self.kind = kind
        self.function = function
        self.source_ = source

    def next(self, tx: Interpreter) -> SymbolicValue | None:
        plain = self.function.is_constant and self.function.constant() in (None, bool)
        wanted = self.kind is filter
        while (item := self.source_.next(tx)) is not None:
            item = tx.force(item)
            answer = item if plain else result_or_end(tx, self.function, [item])
            if answer is None:
                return None
            if answer.truth(tx) is wanted:
                return item
            tx.tick()
        return None

    def arguments(self, emit: Emitter) -> list[str]:
        return [emit.value(self.function), emit.value(self.source_)]


@final
class StarmapIterator(Rebuilt):
    """`itertools.starmap(function, source)`."""

    __slots__ = ("function", "source_")
    kind = itertools.starmap

    def __init__(self, function: SymbolicValue, source: SymbolicValue) -> None:
        super().__init__()
        self.function = function
        self.source_ = source

    def next(self, tx: Interpreter) -> SymbolicValue | None:
        item = self.source_.next(tx)
        if item is None:
            return None
        args = [tx.force(arg) for arg in tx.unpack(item)]
        return result_or_end(tx, self.function, args)

    def arguments(self, emit: Emitter) -> list[str]:
        return [emit.value(self.function), emit.value(self.source_)]


@final
class BackwardsIterator(Rebuilt):
    """`reversed(source)` of an object with a length and indices, `left` of which are left."""

    __slots__ = ("left", "source_")
    kind = reversed

    def __init__(self, source: SymbolicValue, left: int) -> None:
        super().__init__()
        self.source_ = source
        self.left = left

    def next(self, tx: Interpreter) -> SymbolicValue | None:
        if self.left <= 0:
            return None
        self.left -= 1
        item = unless_ended(lambda: tx.force(self.source_.getitem(tx, constant(self.left))),
                            (StopIteration, IndexError))
        self.left = 0 if item is None else self.left
        return item

    def rebuild(self, emit: Emitter) -> str:
        length = type_lookup(self.source_.python_type(), "__len__")
        if isinstance(length, FunctionType) and not length.__module__.startswith("torch."):
            raise graph_break("unknown-value", f"{self!r}, whose making calls the program")
        name = emit.bind(self, f"reversed({emit.filled(self.source_)})")
        emit.line(f"{name}.__setstate__({self.left - 1})")
        return name


@final
class ChainIterator(Rebuilt):
    """`itertools.chain`: the current iterator, and an iterator over the following ones."""

    __slots__ = ("active", "others")
    kind = itertools.chain

    def __init__(self, others: SymbolicValue) -> None:
        super().__init__()
        self.active: SymbolicValue | None = None
        self.others = others

    def next(self, tx: Interpreter) -> SymbolicValue | None:
        while True:
            if self.active is None:
                following = self.others.next(tx)
                if following is None:
                    return None
                self.active = tx.force(following).iter(tx)
            item = self.active.next(tx)
            if item is not None:
                return tx.force(item)
            self.active = None
            tx.tick()

    def rebuild(self, emit: Emitter) -> str:
        chain = emit.constant(itertools.chain)
        text = f"{chain}.from_iterable({emit.value(self.others)})"
        if self.active is not None:
            text = f"{chain}({emit.value(self.active)}, {text})"
        return emit.bind(self, text)


@final
class CountIterator(Rebuilt):
    """`itertools.count(value, step)`."""

    __slots__ = ("step", "value")
    kind = itertools.count

    def __init__(self, value: SymbolicValue, step: SymbolicValue) -> None:
        super().__init__()
        self.value = value
        self.step = step

    def next(self, tx: Interpreter) -> SymbolicValue | None:
        value, self.value = self.value, tx.binary("add", self.value, self.step)
        return value

    def arguments(self, emit: Emitter) -> list[str]:
        return [emit.value(self.value), emit.value(self.step)]


@final
class RepeatIterator(Rebuilt):
    """`itertools.repeat(item, left)`; `left` is the number of items left, or None."""

    __slots__ = ("item", "left")
    kind = itertools.repeat

    def __init__(self, item: SymbolicValue, left: int | None) -> None:
        super().__init__()
        self.item = item
        self.left = None if left is None else max(left, 0)

    def next(self, tx: Interpreter) -> SymbolicValue | None:
        if self.left is not None:
            if self.left == 0:
                return None
            self.left -= 1
        return self.item

    def arguments(self, emit: Emitter) -> list[str]:
        return [emit.value(self.item)] + ([] if self.left is None else [repr(self.left)])


@final
class SliceIterator(Rebuilt):
    """`itertools.islice`: how many items to skip next, how many may still be read, and the step."""

    __slots__ = ("left", "skip", "source_", "step")
    kind = itertools.islice

    def __init__(self, source: SymbolicValue, bounds: slice) -> None:
        super().__init__()
        self.source_ = source
        self.skip: int = bounds.start or 0
        self.left: int | None = bounds.stop
        self.step: int = bounds.step or 1

    def next(self, tx: Interpreter) -> SymbolicValue | None:
        skip = self.skip
        if self.left is not None and skip >= self.left:
            skip = self.left
        for _ in range(skip):
            tx.tick()
            if self.source_.next(tx) is None:
                self.left = 0
                return None
        if self.left is not None:
            self.left -= skip
            if self.left <= 0:
                self.skip = 0
                return None
            self.left -= 1
        self.skip = self.step - 1
        item = self.source_.next(tx)
        if item is None:
            self.left = 0
            return None
        return tx.force(item)

    def arguments(self, emit: Emitter) -> list[str]:
        return [emit.value(self.source_), repr(self.skip), repr(self.left), repr(self.step)]


@final
class CycleIterator(Rebuilt):
    """`itertools.cycle`: the saved items and the position in them; the source is None after its
    end."""

    __slots__ = ("position", "seen", "source_")
    kind = itertools.cycle

    def __init__(self, source: SymbolicValue) -> None:
        super().__init__()
        self.source_: SymbolicValue | None = source
        self.seen: list[SymbolicValue] = []
        self.position = 0

    def next(self, tx: Interpreter) -> SymbolicValue | None:
        if self.source_ is not None:
            item = self.source_.next(tx)
            if item is not None:
                self.seen.append(tx.force(item))
                return self.seen[-1]
            self.source_ = None
        if not self.seen:
            return None
        item = self.seen[self.position]
        self.position = (self.position + 1) % len(self.seen)
        return item

    def arguments(self, emit: Emitter) -> list[str]:
        if self.source_ is not None:
            if self.seen:
                raise graph_break("unknown-value", "itertools.cycle in its first round")
            return [emit.value(self.source_)]
        items = self.seen[self.position:] + self.seen[: self.position]
        return [f"[{', '.join(emit.value(item) for item in items)}]"]


@final
class PoolIterator(Rebuilt):
    """product, permutations, combinations: CPython's own iterator, run over values; it reads its
    arguments when it is made."""

    __slots__ = ("iterator", "kind", "numbers", "pools", "taken")

    def __init__(self, kind: type, pools: list[list[SymbolicValue]], numbers: dict[str, object]
                 ) -> None:
        super().__init__()
        self.kind = kind
        self.pools = pools
        self.numbers = numbers
        self.iterator = kind(*pools, **numbers)
        self.taken = 0

    def next(self, tx: Interpreter) -> SymbolicValue | None:
        items = next(self.iterator, None)
        self.taken += 1
        return None if items is None else TupleValue(items)

    def arguments(self, emit: Emitter) -> list[str]:
        pools = [f"({''.join(f'{emit.value(item)}, ' for item in pool)})" for pool in self.pools]
        return [*pools, *(f"{name}={number!r}" for name, number in self.numbers.items())]

    def rebuild(self, emit: Emitter) -> str:
        name = super().rebuild(emit)
        if self.taken:
            with emit.block(f"for _ in range({self.taken}):"):
                emit.line(f"next({name}, None)")
        return name
