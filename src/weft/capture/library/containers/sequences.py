"""Lists, tuples, torch.Size, ranges and slices.

Place in the pipeline: a value family. A sequence holds its items as values; items of outside
sequences stay unread, and so without guards, until they are used. A changed outside list is written
back as a whole.
"""

from __future__ import annotations

import functools
import operator
import types
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Self, SupportsIndex, final

import torch

from weft.capture.core.base import MISSING, LazyValue, SymbolicValue
from weft.capture.core.breaks import Signal, graph_break
from weft.capture.core.constant import (
    FALSE,
    NONE,
    boolean,
    constant,
    evaluate,
    is_none,
    plain_value,
    python_object,
)
from weft.capture.core.lifetimes import check_kept
from weft.capture.core.methods import ContainerMethods, ItemMethods, MethodTable
from weft.capture.core.operator_names import COMPARISONS
from weft.capture.core.registry import wraps
from weft.capture.core.source import Source
from weft.capture.library.containers.iterators import ItemsIterator, IteratorValue, advance

if TYPE_CHECKING:
    from weft.capture.core.protocols import Emitter, Interpreter


class SequenceValue(ContainerMethods):
    """The common part of lists and tuples."""

    __slots__ = ("items",)

    kind: type = object
    has_parts = True
    adds_itself = False
    """Whether its type, on the right side, decides what a sum of tuples is."""

    def __init__(self, items: Iterable[SymbolicValue], source: Source | None = None) -> None:
        super().__init__(source)
        self.items = list(items)

    def at(self, tx: Interpreter, index: int) -> SymbolicValue:
        """The item at a valid index, read."""
        item = self.items[index]
        if item.__class__ is LazyValue:
            item = self.items[index] = tx.force(item)
        return item

    def all(self, tx: Interpreter) -> list[SymbolicValue]:
        """All items, read."""
        for index, item in enumerate(self.items):
            if item.__class__ is LazyValue:
                self.items[index] = tx.force(item)
        return self.items

    def truth(self, tx: Interpreter) -> bool:
        return bool(self.items)

    def length(self, tx: Interpreter) -> int:
        return len(self.items)

    def iter(self, tx: Interpreter) -> SymbolicValue:
        return ItemsIterator(self)

    def iterate(self, tx: Interpreter) -> list[SymbolicValue]:
        return list(self.all(tx))

    def index_of(self, tx: Interpreter, key: SymbolicValue, what: str = "") -> int:
        """A constant index, checked against the length; errors call it `what`, such as "list
        index"."""
        position = python_object(tx, key)
        if position is MISSING and _names_index(key):
            key = tx.force(key.method(tx, "__index__", [], {}))
            position = python_object(tx, key)
        if position is MISSING and issubclass(key.python_type(), int):
            raise graph_break("data-dependent-value", f"{self!r} indexed by {key!r}")
        if position is MISSING:
            raise graph_break("unknown-operation", f"{self!r} indexed by {key!r}")
        kind = next((k for k in (list, tuple) if issubclass(self.kind, k)), self.kind).__name__
        if not hasattr(position, "__index__"):
            raise tx.error(TypeError, f"{kind} indices must be integers or slices, "
                                      f"not {type(position).__name__}")
        number = operator.index(position)
        if not -len(self.items) <= number < len(self.items):
            raise tx.error(IndexError, f"{what or f'{kind} index'} out of range")
        return number

    def getitem(self, tx: Interpreter, key: SymbolicValue) -> SymbolicValue:
        if isinstance(key, SliceValue):
            at = key.constant_slice(tx)
            return self.like(evaluate(tx, lambda: self.items[at]))
        return self.at(tx, self.index_of(tx, key))

    def like(self, items: Iterable[SymbolicValue]) -> SequenceValue:
        """A new sequence of the type that slicing returns."""
        return type(self)(items)

    def binary(self, tx: Interpreter, op: str, other: SymbolicValue, reflected: bool) -> Any:
        if op in COMPARISONS:
            if not reflected or not isinstance(other, SequenceValue):
                return self._compare(tx, op, other)
            return other._compare(tx, op, self)
        if op == "mul" and type(self) is TupleValue and other.is_constant and (
                type(other.constant()) is int and other.constant() == 1):
            return self
        if op == "mul" and other.is_constant:
            return self.like(evaluate(tx, lambda: self.items * other.constant()))
        if (op == "add" and not reflected and isinstance(other, SequenceValue)
                and self._concatenates(other) and not other.adds_itself):
            return self.like([*self.items, *other.items])
        return None

    def _concatenates(self, other: SequenceValue) -> bool:
        return any(issubclass(self.kind, base) and issubclass(other.kind, base)
                   for base in (list, tuple, deque))

    def _compare(self, tx: Interpreter, op: str, other: SymbolicValue) -> object:
        if not isinstance(other, SequenceValue) or not self._concatenates(other):
            return None
        by_equality = op in ("eq", "ne")
        if by_equality and len(self.items) != len(other.items):
            return boolean(op == "ne")
        states = self.state(), other.state()
        position = 0
        while position < min(len(self.items), len(other.items)):
            mine, theirs = self.at(tx, position), other.at(tx, position)
            if not tx.equal(mine, theirs):
                if position >= min(len(self.items), len(other.items)):
                    break  # `__eq__` has changed them
                return boolean(op == "ne") if by_equality else tx.binary(op, mine, theirs)
            self.check_state(tx, states[0])
            other.check_state(tx, states[1])
            position += 1
        return boolean(getattr(operator, op)(len(self.items), len(other.items)))

    def state(self) -> int:
        """What changes with the sequence, for loops that check for changes."""
        return 0

    def check_state(self, tx: Interpreter, state: int) -> None:
        """Raise if the sequence changed since it had that state, for types whose loops check."""

    def find(self, tx: Interpreter, item: SymbolicValue, bounds: slice = slice(None)) -> int:
        """The position of the first equal item, or -1."""
        state = self.state()
        for position in range(len(self.items))[bounds]:
            if position >= len(self.items):  # `__eq__` has changed it
                break
            if tx.equal(self.at(tx, position), item):
                return position
            self.check_state(tx, state)
        return -1

    def contains(self, tx: Interpreter, item: SymbolicValue) -> bool:
        return self.find(tx, item) >= 0

    def copied(self, tx: Interpreter) -> Any:
        objects = [python_object(tx, item) for item in self.items]
        return MISSING if any(o is MISSING for o in objects) else self.build(objects)

    def build(self, items: Sequence[object]) -> Any:
        """A Python sequence of this type."""
        return self.kind(items)

    def proxy(self, tx: Interpreter) -> Any:
        return self.build([item.proxy(tx) for item in self.all(tx)])

    def fake(self, tx: Interpreter) -> Any:
        return self.build([item.fake(tx) for item in self.all(tx)])

    # -- methods ----------------------------------------------------------------------------------

    def m_index(self, tx: Interpreter, item: SymbolicValue, start: SymbolicValue = NONE,
                stop: SymbolicValue = NONE, /) -> SymbolicValue:
        where = self.find(tx, item, slice(start.constant(), stop.constant()))
        if where < 0:
            self.refuse_absent(tx, "index", item)
        return constant(where)

    def refuse_absent(self, tx: Interpreter, method: str, item: SymbolicValue) -> None:
        """Raise Python's error for an item that a method did not find."""
        evaluate(tx, lambda: getattr(self.kind(), method)(_Shown(tx, item)))

    def m_count(self, tx: Interpreter, value: SymbolicValue, /) -> SymbolicValue:
        count, state = 0, self.state()
        for item in self.items:
            count += tx.equal(item, value)
            self.check_state(tx, state)
        return constant(count)

    def m___getitem__(self, tx: Interpreter, key: SymbolicValue, /) -> SymbolicValue:
        return self.getitem(tx, key)

    def m___reversed__(self, tx: Interpreter) -> SymbolicValue:
        return ReversedIterator(self)

    def m___len__(self, tx: Interpreter) -> SymbolicValue:
        return constant(len(self.items))  # the length of the items, even in a subclass


def _names_index(key: SymbolicValue) -> bool:
    """Whether the key's class has an `__index__`."""
    method = getattr(key.python_type(), "__index__", None)
    return isinstance(method, types.FunctionType) or (method is not None and (
        plain_value(key) is not None or issubclass(key.python_type(), torch.Tensor)))


class _Shown:
    """Equal to nothing, but has the attributes of a value."""

    def __init__(self, tx: Interpreter, value: SymbolicValue) -> None:
        self.tx = tx
        self.value = value

    def __repr__(self) -> str:
        shown = self.tx.call_python(repr, [self.value])
        return str(python_object(self.tx, shown))


@final
class ReversedIterator(IteratorValue):
    """An iterator over a live sequence from its end."""

    __slots__ = ("position", "sequence")

    def __init__(self, sequence: Any) -> None:
        super().__init__()
        self.sequence = sequence
        self.position = len(sequence.items) - 1

    def python_type(self) -> type:
        return type(reversed(type(self.sequence).kind()))

    def next(self, tx: Interpreter) -> SymbolicValue | None:
        if not 0 <= self.position < len(self.sequence.items):
            self.position = -1
            return None
        self.position -= 1
        item: SymbolicValue = self.sequence.at(tx, self.position + 1)
        return item

    def rebuild(self, emit: Emitter) -> str:
        if self.position >= len(self.sequence.items):
            raise graph_break("unknown-value", "reversed of a sequence that has shrunk")
        name = emit.bind(self, f"reversed({emit.filled(self.sequence)})")
        if hasattr(self.python_type(), "__setstate__"):
            emit.line(f"{name}.__setstate__({self.position})")
        else:
            advance(emit, name, len(self.sequence.items) - 1 - self.position)
        return name


class GrowingValue(SequenceValue, ItemMethods):
    """A list or deque. If one from outside is only appended to, not even its length is guarded: in
    a loop that breaks the graph it has another length each time."""

    __slots__ = ("_items", "_read", "added", "original")

    def __init__(self, items: Iterable[SymbolicValue], source: Source | None = None,
                 original: Any = MISSING) -> None:
        self._read: Callable[[], list[SymbolicValue]] | None = None
        self.added: list[SymbolicValue] = []
        super().__init__(items, source)
        self.original = original

    def read_with(self, read: Callable[[], list[SymbolicValue]]) -> Self:
        """Set the function that returns an outside object's items and guards their number."""
        self._read = read
        return self

    @property
    def unread(self) -> bool:
        """Whether the items were never read; appended ones are in `added`."""
        return self._read is not None

    @property
    def items(self) -> list[SymbolicValue]:
        if self._read is not None:
            read, self._read = self._read, None
            self._items = read()
            self.append(self.added)
        return self._items

    @items.setter
    def items(self, items: list[SymbolicValue]) -> None:
        self._items = items
        self._read = None

    def append(self, items: Iterable[SymbolicValue]) -> None:
        """Add items at the end, each at once: a generator of them may look at those before."""
        for item in items:
            (self._items if self._read is None else self.added).append(item)


@final
class ListValue(GrowingValue):
    """A list."""

    __slots__ = ()
    kind = list

    def changed(self, tx: Interpreter) -> None:
        """Record a mutation."""
        if self.source is not None:
            tx.effects.touch(self)

    def _check_kept(self, tx: Interpreter, where: int | slice = slice(None)) -> None:
        """Break the graph before the outside list loses an object that is watched."""
        if self.source is None:
            return
        lost: Any = evaluate(tx, lambda: self.items[where])  # a slice's step may be 0
        for item in lost if isinstance(where, slice) else [lost]:
            if item.source is not None:
                check_kept(item.outside_object())

    def replay(self, emit: Emitter) -> None:
        target, kind = emit.value(self), emit.constant(list)  # not an override
        items = ", ".join(emit.value(item) for item in (self.added if self.unread else self.items))
        store = "extend({}, [{}])" if self.unread else "__setitem__({}, slice(None), [{}])"
        emit.line(f"{kind}.{store.format(target, items)}")

    def rebuild(self, emit: Emitter) -> str:
        name = emit.bind(self, "[]")
        if self.items:
            emit.later(lambda: self._fill(emit, name))
        return name

    def _fill(self, emit: Emitter, name: str) -> None:
        items = ", ".join([emit.value(item) for item in self.items])
        emit.line(f"{name} += [{items}]")

    def binary(self, tx: Interpreter, op: str, other: SymbolicValue, reflected: bool) -> Any:
        if op == "iadd" and not reflected:
            self.m_extend(tx, other)
            return self
        if op == "imul" and not reflected:
            self.items = evaluate(tx, lambda: self.items * other.constant())
            self.changed(tx)
            return self
        return super().binary(tx, op, other, reflected)

    def setitem(self, tx: Interpreter, key: SymbolicValue, value: SymbolicValue) -> None:
        if isinstance(key, SliceValue):
            at, items = key.constant_slice(tx), tx.to_list(value)
            self._check_kept(tx, at)
            evaluate(tx, lambda: self.items.__setitem__(at, items))
        else:
            where = self.index_of(tx, key, "list assignment index")
            self._check_kept(tx, where)
            self.items[where] = value
        self.changed(tx)

    def delitem(self, tx: Interpreter, key: SymbolicValue) -> None:
        where = (key.constant_slice(tx) if isinstance(key, SliceValue)
                 else self.index_of(tx, key, "list assignment index"))
        self._check_kept(tx, where)
        evaluate(tx, lambda: self.items.__delitem__(where))
        self.changed(tx)

    def m_append(self, tx: Interpreter, item: SymbolicValue, /) -> SymbolicValue:
        self.append([item])
        self.changed(tx)
        return NONE

    def m_extend(self, tx: Interpreter, iterable: SymbolicValue, /) -> SymbolicValue:
        self.changed(tx)
        self.append(tx.each_of(iterable))
        return NONE

    def m_insert(self, tx: Interpreter, index: SymbolicValue, item: SymbolicValue, /
                 ) -> SymbolicValue:
        self.items.insert(index.constant(), item)
        self.changed(tx)
        return NONE

    def m_pop(self, tx: Interpreter, index: SymbolicValue | None = None, /) -> SymbolicValue:
        if not self.items:
            raise tx.error(IndexError, "pop from empty list")
        where = -1 if index is None else self.index_of(tx, index, "pop index")
        item = self.at(tx, where)
        self._check_kept(tx, where)
        del self.items[where]
        self.changed(tx)
        return item

    def m_remove(self, tx: Interpreter, item: SymbolicValue, /) -> SymbolicValue:
        where = self.find(tx, item)
        if where < 0:
            self.refuse_absent(tx, "remove", item)
        return self.m_pop(tx, constant(where)) and NONE

    def m_clear(self, tx: Interpreter) -> SymbolicValue:
        self._check_kept(tx)
        self.items.clear()
        self.changed(tx)
        return NONE

    def m_reverse(self, tx: Interpreter) -> SymbolicValue:
        self.items.reverse()
        self.changed(tx)
        return NONE

    def m_copy(self, tx: Interpreter) -> SymbolicValue:
        return ListValue(self.items)

    def m_sort(self, tx: Interpreter, *, key: SymbolicValue = NONE, reverse: SymbolicValue = FALSE
               ) -> SymbolicValue:
        items, seen = self.all(tx), _SeenWhileSorting()
        self.items = seen
        try:
            done = sort_values(tx, items, key, reverse)
        except Signal:
            self.items = items
            raise
        touched = self.items is not seen or seen.touched
        self.items = done
        if touched:
            raise tx.error(ValueError, "list modified during sort")
        self.changed(tx)
        return NONE

    def m___init__(self, tx: Interpreter, iterable: SymbolicValue | None = None, /
                   ) -> SymbolicValue:
        self.items = []
        self.changed(tx)
        self.append([] if iterable is None else tx.each_of(iterable))
        return NONE


@final
class _SeenWhileSorting(list[SymbolicValue]):
    """The list that the program sees while it is sorted: empty unless something is added."""

    touched = False

    def append(self, item: SymbolicValue) -> None:
        self.touched = True
        super().append(item)

    def insert(self, index: SupportsIndex, item: SymbolicValue) -> None:
        self.touched = True
        super().insert(index, item)

    def __setitem__(self, at: Any, items: Any) -> None:
        super().__setitem__(at, items)
        self.touched = self.touched or bool(self)


def sort_values(tx: Interpreter, items: list[SymbolicValue], key: SymbolicValue,
                reverse: SymbolicValue) -> list[SymbolicValue]:
    """The items sorted, by Python's own algorithm."""
    descending = reverse.truth(tx)
    by_default = is_none(key)
    keys = [item if by_default else tx.call(key, [item]) for item in items]
    symbolic = any(not k.is_constant and k.python_type() in (int, float) for k in keys)
    objects: list[Any] = [MISSING if symbolic else python_object(tx, k) for k in keys]
    if any(o is MISSING for o in objects):
        objects = [_Sortable(tx, k) for k in keys]
    order = evaluate(tx, lambda: sorted(range(len(items)), key=objects.__getitem__,
                                        reverse=descending))
    return [items[i] for i in order]


@final
class _Sortable:
    """A sort key that capture compares."""

    __slots__ = ("tx", "value")

    def __init__(self, tx: Interpreter, value: SymbolicValue) -> None:
        self.tx = tx
        self.value = value

    def __lt__(self, other: _Sortable) -> bool:
        self.tx.tick()
        return self.tx.binary("lt", self.value, other.value).truth(self.tx)


class TupleValue(SequenceValue):
    """A tuple."""

    __slots__ = ()
    kind: type = tuple

    @property
    def is_constant(self) -> bool:  # type: ignore[override]
        return all(item.is_constant for item in self.items)

    def constant(self) -> Any:
        return self.build([item.constant() for item in self.items])

    def dict_key(self, tx: Interpreter) -> object:
        return tuple(item.dict_key(tx) for item in self.all(tx))

    def rebuild(self, emit: Emitter) -> str:
        items = "".join(f"{emit.value(item)}, " for item in self.items)
        return emit.bind(self, f"({items})")

    def like(self, items: Iterable[SymbolicValue]) -> SequenceValue:
        return TupleValue(items)

    def m___hash__(self, tx: Interpreter) -> SymbolicValue:
        if all(item.is_constant for item in self.all(tx)):
            return constant(hash(self.constant()))
        return tx.call_python(hash, [self])


@final
class SizeValue(TupleValue):
    """A torch.Size."""

    __slots__ = ()
    adds_itself = type((0,) + torch.Size((0,))) is torch.Size  # noqa: RUF005  as in newer PyTorch
    kind: type = torch.Size

    def like(self, items: Iterable[SymbolicValue]) -> SequenceValue:
        return SizeValue(items)

    def binary(self, tx: Interpreter, op: str, other: SymbolicValue, reflected: bool) -> Any:
        adds = op in ("add", "iadd") and (not reflected or self.adds_itself)
        if not adds or not isinstance(other, TupleValue):
            return super().binary(tx, op, other, reflected)
        pair = (other, self) if reflected else (self, other)
        items = TupleValue([item for side in pair for item in side.items])
        return tx.call(tx.wrap_fixed(torch.Size, "torch.Size"), [items])  # checks that all are ints

    def proxy(self, tx: Interpreter) -> Any:
        return tuple(item.proxy(tx) for item in self.all(tx))  # torch.Size holds numbers only

    def rebuild(self, emit: Emitter) -> str:
        items = "".join(f"{emit.value(item)}, " for item in self.items)
        return emit.bind(self, f"{emit.constant(torch.Size)}(({items}))")

    def m_numel(self, tx: Interpreter) -> SymbolicValue:
        unit: SymbolicValue = constant(1)
        return functools.reduce(functools.partial(tx.binary, "mul"), self.all(tx), unit)


@final
class RangeValue(ContainerMethods):
    """A range of constants."""

    __slots__ = ("range",)
    kind = range
    is_constant = True

    def __init__(self, range: range, source: Source | None = None) -> None:
        super().__init__(source)
        self.range = range

    def constant(self) -> Any:
        return self.range

    def real(self) -> Any:
        return self.range

    def proxy(self, tx: Interpreter) -> Any:
        return self.range

    def fake(self, tx: Interpreter) -> Any:
        return self.range

    def truth(self, tx: Interpreter) -> bool:
        return bool(self.range)

    def length(self, tx: Interpreter) -> int:
        return evaluate(tx, lambda: len(self.range))

    def getattr(self, tx: Interpreter, name: str) -> SymbolicValue:
        if name in ("start", "stop", "step"):
            return constant(getattr(self.range, name))
        return super().getattr(tx, name)

    def getitem(self, tx: Interpreter, key: SymbolicValue) -> SymbolicValue:
        at = key.constant_slice(tx) if isinstance(key, SliceValue) else key.constant()
        return tx.wrap_new(evaluate(tx, lambda: self.range[at]))

    def contains(self, tx: Interpreter, item: SymbolicValue) -> bool:
        return item.constant() in self.range

    def iter(self, tx: Interpreter) -> SymbolicValue:
        return RangeIterator(self.range)

    def m_index(self, tx: Interpreter, item: SymbolicValue, /) -> SymbolicValue:
        number = item.constant()
        return constant(evaluate(tx, lambda: self.range.index(number)))

    def m_count(self, tx: Interpreter, item: SymbolicValue, /) -> SymbolicValue:
        number = item.constant()
        return constant(evaluate(tx, lambda: self.range.count(number)))

    def rebuild(self, emit: Emitter) -> str:
        return repr(self.range)


@final
class RangeIterator(IteratorValue):
    """An iterator over a range of any length."""

    __slots__ = ("rest",)

    def __init__(self, rest: range) -> None:
        super().__init__()
        self.rest = rest

    def python_type(self) -> type:
        return type(iter(self.rest))

    def next(self, tx: Interpreter) -> SymbolicValue | None:
        if not self.rest:
            return None
        item, self.rest = self.rest[0], self.rest[1:]
        return constant(item)

    def rebuild(self, emit: Emitter) -> str:
        return emit.bind(self, f"iter({self.rest!r})")


@final
class SliceValue(MethodTable):
    """A slice; its bounds are any values."""

    __slots__ = ("parts",)
    kind = slice

    def __init__(self, parts: list[SymbolicValue], source: Source | None = None) -> None:
        super().__init__(source)
        self.parts = parts

    has_parts = True

    @property
    def is_constant(self) -> bool:  # type: ignore[override]
        return all(part.is_constant for part in self.parts)

    def constant(self) -> Any:
        return slice(*(part.constant() for part in self.parts))

    def constant_slice(self, tx: Interpreter) -> slice:
        """The slice as a Python object; its bounds become constants."""
        return self.constant()  # type: ignore[no-any-return]

    def getattr(self, tx: Interpreter, name: str) -> SymbolicValue:
        if name in ("start", "stop", "step"):
            return tx.force(self.parts[("start", "stop", "step").index(name)])
        return super().getattr(tx, name)

    def m_indices(self, tx: Interpreter, length: SymbolicValue, /) -> SymbolicValue:
        parts = [python_object(tx, part) for part in (*self.parts, length)]
        if MISSING in parts:
            raise graph_break("unknown-operation", "indices of a slice of unknown bounds")
        return tx.wrap_new(evaluate(tx, lambda: slice(*parts[:3]).indices(parts[3])))

    def binary(self, tx: Interpreter, op: str, other: SymbolicValue, reflected: bool) -> Any:
        if op in ("eq", "ne") and isinstance(other, SliceValue):
            same = all(tx.equal(a, b) for a, b in zip(self.parts, other.parts, strict=True))
            return boolean(same is (op == "eq"))
        return None

    def proxy(self, tx: Interpreter) -> Any:
        return slice(*(tx.force(part).proxy(tx) for part in self.parts))

    def fake(self, tx: Interpreter) -> Any:
        return slice(*(tx.force(part).fake(tx) for part in self.parts))

    def rebuild(self, emit: Emitter) -> str:
        return emit.bind(self, f"slice({', '.join(emit.value(part) for part in self.parts)})")


def make_slice(parts: list[SymbolicValue]) -> SliceValue:
    """`slice(*parts)`, defaults filled in."""
    if len(parts) == 1:
        parts = [NONE, parts[0]]
    return SliceValue([*parts, NONE][:3])


# -- objects from outside -------------------------------------------------------------------------


@wraps(list)
def _wrap_list(tx: Interpreter, obj: Any, source: Source | None) -> SymbolicValue:
    if source is None:
        return ListValue([tx.wrap_new(item) for item in obj])
    tx.guards.add(source, "type_is", list)

    def read() -> list[SymbolicValue]:
        tx.guards.add(source, "len", len(obj))
        return [LazyValue(source.list_item(i), item) for i, item in enumerate(obj)]

    return ListValue((), source, obj).read_with(read)


def tuple_items(tx: Interpreter, obj: Any, source: Source | None) -> list[Any]:
    if source is None:
        return [tx.wrap_new(item) for item in obj]
    tx.guards.add(source, "type_is", type(obj))
    tx.guards.add(source, "len", tuple.__len__(obj))
    return [LazyValue(source.tuple_item(i), item) for i, item in enumerate(tuple.__iter__(obj))]


@wraps(tuple)
def _wrap_tuple(tx: Interpreter, obj: object, source: Source | None) -> SymbolicValue:
    return TupleValue(tuple_items(tx, obj, source), source)


@wraps(torch.Size)
def _wrap_size(tx: Interpreter, obj: object, source: Source | None) -> SymbolicValue:
    return SizeValue(tuple_items(tx, obj, source), source)


@wraps(range)
def _wrap_range(tx: Interpreter, obj: Any, source: Source | None) -> SymbolicValue:
    if source is not None:
        tx.guards.same_key(source, obj)
    return RangeValue(obj)


@wraps(slice)
def _wrap_slice(tx: Interpreter, obj: Any, source: Source | None) -> SymbolicValue:
    if source is None:
        return SliceValue([tx.wrap_new(p) for p in (obj.start, obj.stop, obj.step)])
    tx.guards.add(source, "type_is", slice)
    names = ("start", "stop", "step")
    return SliceValue([tx.wrap(getattr(obj, n), source.attribute(n)) for n in names], source)
