"""Iterators from outside, most often of a loop that a graph break has split.

Place in the pipeline: a value family. The next items of an iterator over a list, tuple, range or
dictionary can be read without advancing it: guards look at them, and the replacement advances it.
So a loop's head does not end a graph, and one variant serves all items of a kind::

    for layer in layers:
        x = layer(x)
        print("done")     # the rest of this iteration and the start of the next are one graph
"""

from __future__ import annotations

import copy
import gc
import operator
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, final

from weft.capture.core.base import LazyValue, SymbolicValue
from weft.capture.core.breaks import graph_break
from weft.capture.core.lifetimes import is_watched
from weft.capture.core.registry import wraps
from weft.capture.core.source import Source
from weft.capture.library.classes.unknown import unknown
from weft.capture.library.containers.iterators import IteratorValue, advance
from weft.capture.library.containers.lazy_iterators import (
    EnumerateIterator,
    MapIterator,
    ZipIterator,
)
from weft.storable import storable

if TYPE_CHECKING:
    from weft.capture.core.protocols import Emitter, Interpreter

_END: Final = object()
_MOST: Final = 64
"""How many items one piece of a program looks ahead."""

_SEQUENCES: Final[tuple[type, ...]] = tuple(map(type, (
    iter([]), iter(()), iter(range(0)), iter(""), iter("é"), iter(b""), iter(range(1 << 70)),
    reversed([]))))
_BACKWARDS: Final[type] = type(reversed([]))
_TABLES: Final[tuple[type, ...]] = tuple(map(type, (
    iter({}), iter({}.values()), iter({}.items()), iter(set()), iter(OrderedDict()))))


_ORDERED: Final[type] = type(iter(OrderedDict()))
"""Has no length hint."""


@cache
@storable
def _ahead(n: int) -> Callable[[Iterator[Any]], object]:
    """A function that returns the item after the next `n`, from a copy of the iterator."""

    def peek(iterator: Iterator[object]) -> object:
        if type(iterator) is _BACKWARDS and _has_shrunk(iterator):
            return _END
        return next(islice(copy.copy(iterator), n, None), _END)

    return peek


def _has_shrunk(iterator: Any) -> bool:
    """Whether the list of a reversed iterator ends before the next item; a copy would go on at the
    list's end."""
    _, (items, *_), *position = iterator.__reduce__()
    return bool(position) and position[0] >= len(items)


@final
class OutsideIterator(IteratorValue):
    """An iterator whose next items can be read without advancing it."""

    __slots__ = ("object", "over", "owned", "taken")

    def __init__(self, source: Source, object: Iterator[Any]) -> None:
        super().__init__(source)
        self.object = object
        self.taken = 0
        self.over = False
        self.owned = False
        """Whether an outer iterator advances the real one."""

    def python_type(self) -> type:
        return type(self.object)

    def real(self) -> Any:
        return self.object

    def next(self, tx: Interpreter) -> SymbolicValue | None:
        item = self.next_unread(tx)
        return None if item is None else tx.force(item)

    def next_unread(self, tx: Interpreter) -> SymbolicValue | None:
        """The next item, not yet read and so not guarded."""
        if self.over:
            return None
        if self.taken >= _MOST:
            raise graph_break("unknown-operation", f"more than {_MOST} items of an iterator")
        if tx.effects.changed_any(*gc.get_referents(self.object)):
            raise graph_break("unknown-operation", f"{self!r} over something that was changed")
        assert self.source is not None
        peek = _ahead(self.taken)
        try:
            item = peek(self.object)
        except RuntimeError as error:  # its dictionary or set has changed: it will raise there
            raise graph_break("unknown-operation", f"{self!r}: {error}") from error
        place = self.source.call(peek, f"the next item of {self.source.name}")
        tx.effects.touch(self)
        if item is _END:
            if any(map(is_watched, gc.get_referents(self.object))):
                raise graph_break("unknown-operation", f"the end of {self!r} over what is watched")
            tx.guards.add(place, "is", _END)
            self.over = True
            return None
        tx.guards.add(place, "is_not", _END)
        self.taken += 1
        return LazyValue(place, item)

    def replay(self, emit: Emitter) -> None:
        take(self, emit)

    def __repr__(self) -> str:
        return f"a {type(self.object).__name__} from outside"


def take(value: OutsideIterator | OutsideEnumerate, emit: Emitter) -> None:
    """Advance the real iterator as far as capture did."""
    if value.owned:
        return
    name = emit.value(value)
    if value.taken == 1:
        emit.line(f"next({name})")
    elif value.taken:
        advance(emit, name, value.taken)
    if value.over:
        emit.line(f"next({name}, None)")


@wraps(*_SEQUENCES)
def _wrap_iterator(tx: Interpreter, obj: Any, source: Source | None) -> SymbolicValue:
    if source is None or source.is_fixed:
        return unknown(tx, obj, source)
    tx.guards.add(source, "type_is", type(obj))
    return OutsideIterator(source, obj)


@wraps(*_TABLES)
def _wrap_table_iterator(tx: Interpreter, obj: Any, source: Source | None) -> SymbolicValue:
    """Copying one lists the remaining items, which is too slow for a large dictionary or set."""
    if _length(obj) > _MOST:
        return unknown(tx, obj, source)
    return _wrap_iterator(tx, obj, source)


def _length(iterator: Any) -> int:
    """How many items an iterator over a dictionary or set still has."""
    if not isinstance(iterator, _ORDERED):
        return operator.length_hint(iterator)
    try:
        return len(iterator.__reduce__()[1][0])
    except RuntimeError:  # the dictionary has changed: it will raise where it is advanced
        return sys.maxsize


def _parts(iterator: Any) -> tuple[object, ...]:
    """The iterators inside a zip, map or enumerate object."""
    parts: tuple[object, ...] = iterator.__reduce__()[1]
    return parts


def _part_sources(obj: object, source: Source) -> list[tuple[object, Source]]:
    parts = source.call(_parts, source.name)
    return [(part, parts.tuple_item(n)) for n, part in enumerate(_parts(obj))]


@wraps(zip)
def _wrap_zip(tx: Interpreter, obj: object, source: Source | None) -> SymbolicValue:
    if source is None or source.is_fixed:
        return unknown(tx, obj, source)
    strict = _is_strict(obj)
    tx.guards.add(source, "type_is", zip)
    tx.guards.add(source.call(_is_strict, source.name), "eq", strict)
    parts = _part_sources(obj, source)
    tx.guards.add(source.call(_parts, source.name), "len", len(parts))
    sources = [tx.wrap(part, place) for part, place in parts]
    return _with_source(ZipIterator(sources, strict), source)


def _is_strict(iterator: object) -> bool:
    return len(iterator.__reduce__()) > 2


@wraps(map)
def _wrap_map(tx: Interpreter, obj: object, source: Source | None) -> SymbolicValue:
    if source is None or source.is_fixed:
        return unknown(tx, obj, source)
    tx.guards.add(source, "type_is", map)
    (function, place), *parts = _part_sources(obj, source)
    tx.guards.add(source.call(_parts, source.name), "len", 1 + len(parts))
    iterators = [tx.wrap(part, where) for part, where in parts]
    return _with_source(MapIterator(tx.wrap(function, place), iterators), source)


def _with_source(value: SymbolicValue, source: Source) -> SymbolicValue:
    value.source = source
    return value


@final
class OutsideEnumerate(IteratorValue):
    """An enumerate object: its inner iterator is advanced through it."""

    __slots__ = ("below", "object", "over", "owned", "taken")
    kind = enumerate

    def __init__(self, source: Source, object: Any, below: EnumerateIterator) -> None:
        super().__init__(source)
        self.object = object
        self.below = below
        self.taken = 0
        self.over = False
        self.owned = False

    def real(self) -> Any:
        return self.object

    def next(self, tx: Interpreter) -> SymbolicValue | None:
        item = self.below.next(tx)
        tx.effects.touch(self)
        if item is None:
            self.over = True
        else:
            self.taken += 1
        return item

    def replay(self, emit: Emitter) -> None:
        take(self, emit)


def _claim(value: SymbolicValue) -> bool:
    """Record that an enumerate object advances an iterator; False if that might have other
    effects."""
    if isinstance(value, (OutsideIterator, OutsideEnumerate)):
        value.owned = True
        return True
    return isinstance(value, ZipIterator) and all(map(_claim, value.sources))


@wraps(enumerate)
def _wrap_enumerate(tx: Interpreter, obj: object, source: Source | None) -> SymbolicValue:
    if source is None or source.is_fixed or tx.outside.value_of(_parts(obj)[0]) is not None:
        return unknown(tx, obj, source)
    tx.guards.add(source, "type_is", enumerate)
    (inner, inner_place), (count, count_place) = _part_sources(obj, source)
    below = tx.wrap(inner, inner_place)
    if not _claim(below):
        return unknown(tx, obj, source)
    return OutsideEnumerate(source, obj, EnumerateIterator(below, tx.wrap(count, count_place)))
