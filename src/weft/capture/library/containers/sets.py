"""Sets and frozensets.

Place in the pipeline: a value family. Items are stored by their dictionary keys. The order of a
real set follows from the hashes and from all that was done to it, so `keys` is a real set to which
the same is done. (That of an outside set is guarded where the program sees it.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, final

from weft.capture.core.base import MISSING, SymbolicValue
from weft.capture.core.breaks import graph_break
from weft.capture.core.constant import NONE, boolean
from weft.capture.core.methods import ContainerMethods
from weft.capture.core.registry import wraps
from weft.capture.core.source import Source, describe
from weft.capture.library.classes.unknown import unknown
from weft.capture.library.containers.iterators import IteratorValue, advance
from weft.capture.library.containers.mapping import key_error
from weft.capture.library.containers.user_keys import UserKey, has_real_hash, is_compared_by_code
from weft.capture.library.numbers.identities import RunTimeKey

if TYPE_CHECKING:
    from weft.capture.core.protocols import Emitter, Interpreter


_ORDERED: Final = frozenset({str, bytes, int, bool, float, type(None)})
"""Types of keys whose order in a set another process can look up."""


@final
class SetValue(ContainerMethods):
    """A set or frozenset."""

    __slots__ = ("cls", "entries", "filled_by", "keys", "ordered_by", "original")
    has_parts = True

    def __init__(
        self, source: Source | None = None, *, cls: type = set, original: Any = MISSING,
    ) -> None:
        super().__init__(source)
        self.cls = cls
        self.original = original
        self.entries: dict[Any, SymbolicValue] = {}
        self.keys: Any = cls() if original is MISSING else original
        self.ordered_by: dict[Source, Any] = {}
        """Places of outside sets, with the sets, from whose order that of `keys` follows."""
        if source is not None and original is not MISSING and len(original) > 1:
            self.ordered_by[source] = original
        self.filled_by: list[Any] | dict[Any, Any] | None = None
        """What an empty set is filled with to become `keys`, if nothing else was done to it."""

    @staticmethod
    def of(tx: Interpreter, items: Iterable[SymbolicValue], cls: type = set) -> SetValue:
        """A new set, to which the items are added one by one."""
        entries = [(item.dict_key(tx), item) for item in items]
        return SetValue._filled(cls, [key for key, _ in entries], entries)

    @staticmethod
    def copy_of(tx: Interpreter, other: SymbolicValue, cls: type) -> SetValue:
        """`set(other)`"""
        copy = SetValue._filled(cls, *_keys_of(tx, other))
        copy.ordered_by = _orders(tx, [other])
        return copy

    @staticmethod
    def _filled(
        kind: type, keys: object, entries: Iterable[tuple[object, SymbolicValue]]
    ) -> SetValue:
        result = SetValue(cls=kind)
        result.keys = kind(keys)
        result.filled_by = keys if isinstance(keys, list | dict) else None
        kept = set(map(id, result.keys))
        for key, item in entries:
            if id(key) in kept:
                result.entries.setdefault(key, item)
        return result

    def _own_keys(self) -> set[Any]:
        """`keys`, to be changed."""
        self.filled_by = None
        if self.keys is self.original:
            self.keys = self.keys.copy()
        keys: set[Any] = self.keys
        return keys

    def python_type(self) -> type:
        return self.cls

    @property
    def is_constant(self) -> bool:  # type: ignore[override]
        return self.cls is frozenset and all(i.is_constant for i in self.entries.values())

    def constant(self) -> Any:
        """The set itself, with its order, if the items are their own keys."""
        items = [(key, item.constant()) for key, item in self.entries.items()]
        if self.cls is frozenset and all(key is item for key, item in items):
            return self.keys
        return self.cls(item for _, item in items)

    def copied(self, tx: Interpreter) -> Any:
        if not all(item.is_constant for item in self.entries.values()):
            return MISSING
        return self.constant()

    def dict_key(self, tx: Interpreter) -> object:
        return frozenset(self.entries) if self.cls is frozenset else super().dict_key(tx)

    def truth(self, tx: Interpreter) -> bool:
        return bool(self.entries)

    def length(self, tx: Interpreter) -> int:
        return len(self.entries)

    def contains(self, tx: Interpreter, item: SymbolicValue) -> bool:
        return self._key(tx, item) in self.entries

    def _key(self, tx: Interpreter, item: SymbolicValue) -> object:
        key = item.dict_key(tx)
        self._guard_lookup(tx, key, item)
        return key

    def _guard_lookup(self, tx: Interpreter, key: object, item: SymbolicValue) -> None:
        """Guard whether an outside set holds the item."""
        if self.source is not None and self.original is not MISSING:
            if key.__class__ is RunTimeKey:
                raise graph_break("unknown-operation", f"{item!r} in a set from outside")
            tx.identities.guard_lookup(self.source, self.original, key)

    def iter(self, tx: Interpreter) -> SymbolicValue:
        return SetIterator(self, self.iterate(tx))

    def iterate(self, tx: Interpreter) -> list[SymbolicValue]:
        self._guard_order(tx)
        if not self._has_real_order():
            return list(self.entries.values())
        self._rely_on_order(tx)
        known = {id(key): item for key, item in self.entries.items()}  # asks no key's `__eq__`
        return [known[id(key)] for key in self.keys]

    def _rely_on_order(self, tx: Interpreter) -> None:
        """Note that the capture uses the order, which differs between processes."""
        if self.filled_by is None or not all(type(key) in _ORDERED for key in self.filled_by):
            tx.guards.bind_to_process("it uses the order of a set")
        elif len(self.keys) > 1:
            tx.guards.orders.append((self.cls, self.filled_by, tuple(self.keys)))

    def _guard_order(self, tx: Interpreter) -> None:
        for source, original in self.ordered_by.items():
            tx.guards.same_key(source, original, tuple)

    def _has_real_order(self) -> bool:
        """Whether the hashes of all keys are known."""
        return all(i.is_constant or has_real_hash(k) for k, i in self.entries.items())

    def _emit_items(self, emit: Emitter) -> str:
        """What an empty set is to be filled with, to have the order of this one, if there is a
        way."""
        self._guard_order(emit.tx)
        self._rely_on_order(emit.tx)
        chosen = self._way() if self._has_real_order() else None
        if chosen is None and self._has_real_order() and self._is_constant_copy():
            return emit.constant(frozenset(self.keys))
        text, keys = chosen or ("[{}]", list(self.entries))
        for key in keys:
            if isinstance(key, UserKey):
                key.check()
        return text.format(", ".join(emit.hashed(self.entries[key]) for key in keys))

    def _way(self) -> tuple[str, list[object]] | None:
        """How an empty set is filled to have the order of this one, and with which keys."""
        wanted = list(map(id, self.keys))
        return next(((text, keys) for text, make in _FILLINGS.items()
                     for keys in (list(self.entries), list(self.keys))
                     if list(map(id, set(make(keys)))) == wanted), None)

    def keeps_order(self, tx: Interpreter) -> bool:
        """Whether the real set will have the order in which capture iterates over it."""
        self._rely_on_order(tx)
        if self.source is not None:
            return self.original is not MISSING and not tx.effects.changed(self)
        return self._has_real_order() and self._way() is not None

    def _is_constant_copy(self) -> bool:
        """Whether it is a set of constants that a copy of `keys` gives with the same order."""
        same = all(i.is_constant and i.constant() is k for k, i in self.entries.items())
        return same and list(set(frozenset(self.keys))) == list(self.keys)

    def _changed(self, tx: Interpreter) -> SymbolicValue:
        if self.source is not None:
            tx.effects.touch(self)
        return NONE

    def replay(self, emit: Emitter) -> None:
        name = emit.temporary(self._emit_items(emit))
        emit.line(f"{emit.value(self)}.clear()")
        emit.line(f"{emit.value(self)}.update({name})")

    def rebuild(self, emit: Emitter) -> str:
        return emit.bind(self, f"{self.cls.__name__}({self._emit_items(emit)})")

    def binary(self, tx: Interpreter, op: str, other: SymbolicValue, reflected: bool) -> Any:
        if not isinstance(other, SetValue):
            return None
        left, right = (other, self) if reflected else (self, other)
        if op in _OPERATORS:
            return left._result(tx, _OPERATORS[op], right)
        if op in _COMPARISONS:
            return left._compared(tx, op, right)
        if op in _UPDATES and self.cls is set and not reflected:
            self._update(tx, _UPDATES[op], right)
            return self
        return None

    def _compared(self, tx: Interpreter, op: str, other: SymbolicValue) -> SymbolicValue:
        theirs = dict(self._operand(tx, other)[1])
        return boolean(_COMPARISONS[op](self.entries.keys(), theirs.keys()))

    def _operand(self, tx: Interpreter, value: SymbolicValue) -> _Operand:
        """An operand's keys; which items an outside set has in common with the other is guarded."""
        keys, entries = _keys_of(tx, value)
        for key, item in entries:
            self._guard_lookup(tx, key, item)
        other = tx.force(value)
        if isinstance(other, SetValue):
            for key, item in self.entries.items():
                other._guard_lookup(tx, key, item)
        return keys, entries

    def _result(self, tx: Interpreter, method: str, *others: SymbolicValue) -> SetValue:
        """A new set: the result of a method of sets."""
        result = SetValue(cls=self.cls)
        result.keys, result.entries = self._applied(tx, method, others)
        result.ordered_by = _orders(tx, [self, *others])
        return result

    def _update(self, tx: Interpreter, method: str, *others: SymbolicValue) -> SymbolicValue:
        """Do a method that changes the set."""
        self._own_keys()
        self.entries = self._applied(tx, method, others)[1]
        self.ordered_by = _orders(tx, [self, *others])
        return self._changed(tx)

    def _applied(
        self, tx: Interpreter, method: str, others: Sequence[SymbolicValue]
    ) -> tuple[set[Any], dict[Any, SymbolicValue]]:
        """The keys and entries after a method; what it does depends on the kinds of operands."""
        operands, known = [], {id(key): item for key, item in self.entries.items()}
        for arg in others:
            keys, entries = self._operand(tx, arg)
            operands.append(keys)
            known.update((id(key), item) for key, item in entries)
        changed = getattr(self.keys, method)(*operands)
        keys = self.keys if changed is None else changed
        equal = {key: key for key in keys}  # `&=` may take the other set's key for an equal one
        kept = [equal[key] for key in self.entries if key in keys] if changed is None else []
        return keys, {key: known[id(key)] for key in (*kept, *keys)}

    def getattr(self, tx: Interpreter, name: str) -> SymbolicValue:
        if self.cls is frozenset and not hasattr(frozenset, name):
            raise tx.error(AttributeError, f"'frozenset' object has no attribute '{name}'")
        return super().getattr(tx, name)

    # -- methods ----------------------------------------------------------------------------------

    def m_add(self, tx: Interpreter, item: SymbolicValue, /) -> SymbolicValue:
        key = self._key(tx, item)
        before = self.filled_by
        self._own_keys().add(key)
        self.filled_by = [*before, key] if isinstance(before, list) else None
        self.entries.setdefault(key, item)
        return self._changed(tx)

    def m_discard(self, tx: Interpreter, item: SymbolicValue, /) -> SymbolicValue:
        self._remove(self._key(tx, item))
        return self._changed(tx)

    def m_remove(self, tx: Interpreter, item: SymbolicValue, /) -> SymbolicValue:
        if self._remove(self._key(tx, item)) is None:
            raise key_error(tx, item)
        return self._changed(tx)

    def _remove(self, key: object) -> SymbolicValue | None:
        self._own_keys().discard(key)
        return self.entries.pop(key, None)

    def m_pop(self, tx: Interpreter) -> SymbolicValue:
        if not self.entries:
            raise tx.error(KeyError, "pop from an empty set")
        if len(self.entries) > 1 and (self.original is not MISSING or not self._has_real_order()):
            raise graph_break("unknown-operation", "set.pop with several items")
        item = self.entries.pop(self._own_keys().pop())
        self._changed(tx)
        return item

    def m_clear(self, tx: Interpreter) -> SymbolicValue:
        self.keys, self.entries, self.filled_by = set(), {}, []
        return self._changed(tx)

    def m_update(self, tx: Interpreter, *others: SymbolicValue) -> SymbolicValue:
        for other in map(tx.force, others):
            if isinstance(other, SetValue) or other.python_type() is dict:
                self._update(tx, "update", other)
                continue
            for item in other.iterate(tx):  # a generator may look at the set
                self.m_add(tx, item)
        return NONE

    def m___init__(self, tx: Interpreter, items: SymbolicValue | None = None, /) -> SymbolicValue:
        if self.cls is not set:
            raise graph_break("unknown-operation", f"arguments of {self.cls.__name__}.__init__")
        self.keys, self.entries, self.filled_by = set(), {}, []
        return NONE if items is None else self.m_update(tx, items)

    def m_copy(self, tx: Interpreter) -> SymbolicValue:
        return self if self.cls is frozenset else self._result(tx, "copy")

    def m_union(self, tx: Interpreter, *others: SymbolicValue) -> SymbolicValue:
        return self._result(tx, "union", *others)

    def m_intersection(self, tx: Interpreter, *others: SymbolicValue) -> SymbolicValue:
        return self._result(tx, "intersection", *others)

    def m_difference(self, tx: Interpreter, *others: SymbolicValue) -> SymbolicValue:
        return self._result(tx, "difference", *others)

    def m_symmetric_difference(self, tx: Interpreter, other: SymbolicValue, /) -> SymbolicValue:
        return self._result(tx, "symmetric_difference", other)

    def m_intersection_update(self, tx: Interpreter, *others: SymbolicValue) -> SymbolicValue:
        return self._update(tx, "intersection_update", *others)

    def m_difference_update(self, tx: Interpreter, *others: SymbolicValue) -> SymbolicValue:
        return self._update(tx, "difference_update", *others)

    def m_symmetric_difference_update(self, tx: Interpreter, other: SymbolicValue, /
                                      ) -> SymbolicValue:
        return self._update(tx, "symmetric_difference_update", other)

    def m_issubset(self, tx: Interpreter, other: SymbolicValue, /) -> SymbolicValue:
        return self._compared(tx, "le", other)

    def m_issuperset(self, tx: Interpreter, other: SymbolicValue, /) -> SymbolicValue:
        return self._compared(tx, "ge", other)

    def m_isdisjoint(self, tx: Interpreter, other: SymbolicValue, /) -> SymbolicValue:
        return self._compared(tx, "disjoint", other)


@final
class SetIterator(IteratorValue):
    """An iterator over the current items; raises if their number changes."""

    __slots__ = ("items", "owner", "position")
    kind: type = type(iter(set()))

    def __init__(self, owner: SetValue, items: list[SymbolicValue]) -> None:
        super().__init__()
        self.owner = owner
        self.items = items
        self.position = 0

    def next(self, tx: Interpreter) -> SymbolicValue | None:
        if self.position < 0:
            return None
        if len(self.owner.entries) != len(self.items):
            raise tx.error(RuntimeError, "Set changed size during iteration")
        if self.position >= len(self.items):
            self.position = -1
            return None
        self.position += 1
        return self.items[self.position - 1]

    def rebuild(self, emit: Emitter) -> str:
        if self.position < 0:
            return emit.bind(self, f"iter({emit.constant(frozenset())})")
        if len(self.owner.entries) != len(self.items):
            raise graph_break("unknown-value", "an iterator of a set that changed")
        if not self.owner.keeps_order(emit.tx):
            rest = "".join(f"{emit.value(item)}, " for item in self.items[self.position:])
            return emit.bind(self, f"iter(({rest}))")
        name = emit.bind(self, f"iter({emit.filled(self.owner)})")  # it notes the set's size
        if self.position:
            advance(emit, name, self.position)
        return name


_Operand = tuple[Any, list[tuple[Any, SymbolicValue]]]


def _keys_of(tx: Interpreter, value: SymbolicValue) -> _Operand:
    """The keys of an operand as what the real operand is - a set, a dictionary or neither -, and
    its keys with their items."""
    value = tx.force(value)
    if isinstance(value, SetValue):
        return value.keys, list(value.entries.items())
    entries = [(item.dict_key(tx), item) for item in tx.unpack(value)]
    keys = [key for key, _ in entries]
    return dict.fromkeys(keys) if value.python_type() is dict else keys, entries


def _orders(tx: Interpreter, values: Iterable[SymbolicValue]) -> dict[Source, object]:
    """`ordered_by` of a set made of these values."""
    order: dict[Source, Any] = {}
    for value in map(tx.force, values):
        if isinstance(value, SetValue):
            order |= value.ordered_by
    return order


_FILLINGS: Final[dict[str, Callable[[list[Any]], Any]]] = {
    "[{}]": list, "dict.fromkeys([{}])": dict.fromkeys}
"""Ways to fill a set: with a dictionary, its table has its final size at once."""
_OPERATORS: Final = {"or_": "union", "and_": "intersection", "sub": "difference",
                     "xor": "symmetric_difference"}
_UPDATES: Final = {"ior": "update", "iand": "intersection_update", "isub": "difference_update",
                   "ixor": "symmetric_difference_update"}
_COMPARISONS: dict[str, Any] = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "le": lambda a, b: a <= b,
    "lt": lambda a, b: a < b, "ge": lambda a, b: a >= b, "gt": lambda a, b: a > b,
    "disjoint": lambda a, b: a.isdisjoint(b),
}


def _exact(item: Any) -> object:
    """A key that tells equal items apart: 1 from True, 0.0 from -0.0."""
    kind = type(item)
    if kind in (set, frozenset):
        return frozenset(map(_exact, item))
    if kind is tuple:
        return tuple(map(_exact, item))
    return (kind, repr(item)) if kind in (float, complex) else (kind, item)


@wraps(set, frozenset)
def _wrap_set(tx: Interpreter, obj: Any, source: Source | None) -> SymbolicValue:
    if any(is_compared_by_code(type(item)) for item in tuple(obj)):
        return unknown(tx, obj, source)
    original = MISSING if source is None else obj
    value = SetValue(source, cls=type(obj), original=original)
    if source is not None:
        tx.guards.same_key(source, obj, frozenset if {str}.issuperset(map(type, obj)) else _exact)
    for item in obj:
        fixed = source is not None and not isinstance(item, (str, int, float, tuple, type(None)))
        value.entries[item] = tx.wrap_fixed(item, describe(item)) if fixed else tx.wrap_new(item)
    if source is None:
        value.keys = obj.copy()
    return value
