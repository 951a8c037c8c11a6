"""Sets and frozensets.

Place in the pipeline: a value family. Items are stored by their dictionary keys, in insertion
order. A real set may have another order: iteration over an outside set follows the real set, which
is guarded by equality.
"""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, final

from weft.capture.breaks import graph_break
from weft.capture.source import Source, describe
from weft.capture.values.base import MISSING, Args, Kwargs, SymbolicValue
from weft.capture.values.constant import NONE, boolean
from weft.capture.values.identities import RunTimeKey
from weft.capture.values.iterators import IteratorValue
from weft.capture.values.mapping import key_error
from weft.capture.values.methods import ContainerMethods
from weft.capture.values.registry import wraps
from weft.capture.values.unknown import unknown

if TYPE_CHECKING:
    from weft.capture.interpreter import Interpreter
    from weft.capture.replacement import Emitter


@final
class SetValue(ContainerMethods):
    """A set or frozenset."""

    __slots__ = ("cls", "entries", "original")
    has_parts = True

    def __init__(self, source: Source | None = None, *, cls: type = set, original: Any = MISSING
                 ) -> None:
        super().__init__(source)
        self.cls = cls
        self.original = original
        self.entries: dict[Any, SymbolicValue] = {}

    @staticmethod
    def of(tx: Interpreter, items: Iterable[SymbolicValue], cls: type = set) -> SetValue:
        """A new set."""
        made = SetValue(cls=cls)
        for item in items:
            made.entries.setdefault(item.dict_key(tx), item)
        return made

    def python_type(self) -> type:
        return self.cls

    def real(self) -> Any:
        return self.original

    @property
    def is_constant(self) -> bool:  # type: ignore[override]
        return self.cls is frozenset and all(i.is_constant for i in self.entries.values())

    def constant(self) -> Any:
        return self.cls(item.constant() for item in self.entries.values())

    def copied(self, tx: Interpreter) -> Any:
        if not all(item.is_constant for item in self.entries.values()):
            return MISSING
        return self.constant()

    def dict_key(self, tx: Interpreter) -> Any:
        return frozenset(self.entries) if self.cls is frozenset else super().dict_key(tx)

    def truth(self, tx: Interpreter) -> bool:
        return bool(self.entries)

    def length(self, tx: Interpreter) -> int:
        return len(self.entries)

    def contains(self, tx: Interpreter, item: SymbolicValue) -> bool:
        return self._key(tx, item) in self.entries

    def _key(self, tx: Interpreter, item: SymbolicValue) -> Any:
        key = item.dict_key(tx)
        if self.source is not None and self.original is not MISSING:
            if key.__class__ is RunTimeKey:
                raise graph_break("unknown-operation", f"{item!r} in a set from outside")
            tx.identities.guard_lookup(self.source, self.original, key)
        return key

    def iter(self, tx: Interpreter) -> SymbolicValue:
        """Iterates constants in the order of Python's own set of them."""
        return SetIterator(self, self._ordered())

    def _ordered(self) -> list[SymbolicValue]:
        items = list(self.entries.values())
        if self.original is not MISSING or not all(item.is_constant for item in items):
            return items
        position = {key: n for n, key in enumerate(set(self.entries))}
        return sorted(items, key=lambda item: position[item.constant()])

    def iterate(self, tx: Interpreter) -> list[SymbolicValue]:
        return self._ordered()

    def _changed(self, tx: Interpreter) -> SymbolicValue:
        if self.source is not None:
            tx.effects.touch(self)
        return NONE

    def replay(self, emit: Emitter) -> None:
        items = ", ".join(emit.value(item) for item in self.entries.values())
        name = emit.temporary(f"[{items}]")
        emit.line(f"{emit.value(self)}.clear()")
        emit.line(f"{emit.value(self)}.update({name})")

    def rebuild(self, emit: Emitter) -> str:
        items = ", ".join(emit.value(item) for item in self.entries.values())
        return emit.bind(self, f"{self.cls.__name__}([{items}])")

    def binary(self, tx: Interpreter, op: str, other: SymbolicValue, reflected: bool) -> Any:
        if not isinstance(other, SetValue):
            return None
        left, right = (other, self) if reflected else (self, other)
        rule = _OPERATORS.get(op)
        if rule is not None:
            return left._select(rule(left.entries, right.entries), right)
        if op in _COMPARISONS:
            keys = left.entries.keys(), right.entries.keys()
            return boolean(_COMPARISONS[op](*keys))
        if op in _UPDATES and not reflected:
            self.entries = left._select(_OPERATORS[_UPDATES[op]](left.entries, right.entries),
                                        right).entries
            self._changed(tx)
            return self
        return None

    def _select(self, keys: Iterable[Any], other: SetValue) -> SetValue:
        made = SetValue(cls=self.cls)
        for key in keys:
            made.entries[key] = self.entries[key] if key in self.entries else other.entries[key]
        return made

    def _combine(self, tx: Interpreter, op: str, args: Args) -> SetValue:
        result = self
        for other in args:
            result = result.binary(tx, op, SetValue.of(tx, tx.unpack(other)), False)
        return result if result is not self else self._select(self.entries, self)

    def getattr(self, tx: Interpreter, name: str) -> SymbolicValue:
        if self.cls is frozenset and not hasattr(frozenset, name):
            raise tx.error(AttributeError, f"'frozenset' object has no attribute '{name}'")
        return super().getattr(tx, name)

    # -- methods ----------------------------------------------------------------------------------

    def m_add(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        self.entries.setdefault(self._key(tx, args[0]), args[0])
        return self._changed(tx)

    def m_discard(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        self.entries.pop(self._key(tx, args[0]), None)
        return self._changed(tx)

    def m_remove(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        if self.entries.pop(self._key(tx, args[0]), None) is None:
            raise key_error(tx, args[0])
        return self._changed(tx)

    def m_pop(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        if not self.entries:
            raise tx.error(KeyError, "pop from an empty set")
        if len(self.entries) > 1:
            raise graph_break("unknown-operation", "set.pop with several items")
        item = self.entries.popitem()[1]
        self._changed(tx)
        return item

    def m_clear(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        self.entries.clear()
        return self._changed(tx)

    def m_update(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        for other in args:
            for item in tx.unpack(other):
                self.entries.setdefault(self._key(tx, item), item)
        return self._changed(tx)

    def m___init__(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        if kwargs or len(args) > 1 or self.cls is not set:
            raise graph_break("unknown-operation", f"arguments of {self.cls.__name__}.__init__")
        self.entries.clear()
        return self.m_update(tx, args, kwargs)

    def m_copy(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        if self.cls is frozenset:
            return self
        return self._select(self.entries, self)

    def m_union(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        return self._combine(tx, "or_", args)

    def m_intersection(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        return self._combine(tx, "and_", args)

    def m_difference(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        return self._combine(tx, "sub", args)

    def m_symmetric_difference(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        return self._combine(tx, "xor", args)

    def _update(self, tx: Interpreter, op: str, args: Args) -> SymbolicValue:
        self.entries = self._combine(tx, op, args).entries
        return self._changed(tx)

    def m_intersection_update(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        return self._update(tx, "and_", args)

    def m_difference_update(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        return self._update(tx, "sub", args)

    def m_symmetric_difference_update(self, tx: Interpreter, args: Args, kwargs: Kwargs
                                      ) -> SymbolicValue:
        return self._update(tx, "xor", args)

    def m_issubset(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        other = SetValue.of(tx, tx.unpack(args[0]))
        return boolean(self.entries.keys() <= other.entries.keys())

    def m_issuperset(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        other = SetValue.of(tx, tx.unpack(args[0]))
        return boolean(self.entries.keys() >= other.entries.keys())

    def m_isdisjoint(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        other = SetValue.of(tx, tx.unpack(args[0]))
        return boolean(self.entries.keys().isdisjoint(other.entries.keys()))


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
        if self.position >= 0 and len(self.owner.entries) != len(self.items):
            raise graph_break("unknown-value", "an iterator of a set that changed")
        rest = self.items[self.position:] if self.position >= 0 else []
        return emit.bind(self, f"iter(({''.join(f'{emit.value(item)}, ' for item in rest)}))")


_OPERATORS: dict[str, Any] = {
    "or_": lambda a, b: [*a, *(k for k in b if k not in a)],
    "and_": lambda a, b: [k for k in a if k in b],
    "sub": lambda a, b: [k for k in a if k not in b],
    "xor": lambda a, b: [*(k for k in a if k not in b), *(k for k in b if k not in a)],
}
_UPDATES = {"ior": "or_", "iand": "and_", "isub": "sub", "ixor": "xor"}
_COMPARISONS: dict[str, Any] = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "le": lambda a, b: a <= b,
    "lt": lambda a, b: a < b, "ge": lambda a, b: a >= b, "gt": lambda a, b: a > b,
}


def _is_compared_by_code(kind: type) -> bool:
    """Whether the program's class defines the equality of its instances."""
    return any(isinstance(getattr(kind, name), types.FunctionType)
               for name in ("__eq__", "__hash__"))


def _exact(item: Any) -> Any:
    """A key that tells equal items apart: 1 from True, 0.0 from -0.0."""
    kind = type(item)
    if kind in (set, frozenset):
        return frozenset(map(_exact, item))
    if kind is tuple:
        return tuple(map(_exact, item))
    return (kind, repr(item)) if kind in (float, complex) else (kind, item)


@wraps(set, frozenset)
def _wrap_set(tx: Interpreter, obj: Any, source: Source | None) -> SymbolicValue:
    if any(_is_compared_by_code(type(item)) for item in tuple(obj)):
        return unknown(tx, obj, source)
    original = MISSING if source is None else obj
    value = SetValue(source, cls=type(obj), original=original)
    if source is not None:
        tx.guards.same_key(source, obj, frozenset if {str}.issuperset(map(type, obj)) else _exact)
    for item in obj:
        fixed = source is not None and not isinstance(item, (str, int, float, tuple, type(None)))
        value.entries[item] = tx.wrap_fixed(item, describe(item)) if fixed else tx.wrap_new(item)
    return value
