"""Dictionaries (also OrderedDict, defaultdict, Counter, mapping proxies) and their views.

Place in the pipeline: a value family, and the storage of attributes and globals: an object's
`__dict__` and a module's globals are `DictValue`s too. An outside dictionary is read, and guarded,
one key at a time; only iteration and `len` guard all keys. Changes are written back key by key.
"""

from __future__ import annotations

import gc
import operator
import types
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, final

from weft.capture.core.base import MISSING, Args, Kwargs, LazyValue, Namespace, SymbolicValue
from weft.capture.core.breaks import ObservedException, graph_break
from weft.capture.core.constant import NONE, TRUE, boolean, constant, is_none, python_object
from weft.capture.core.lifetimes import check_kept
from weft.capture.core.methods import ContainerMethods, ItemMethods, MethodTable
from weft.capture.core.registry import wraps
from weft.capture.core.source import Source, describe, is_library
from weft.capture.library.containers.iterators import IteratorValue, advance
from weft.capture.library.containers.sequences import TupleValue
from weft.capture.library.containers.user_keys import UserKey, is_compared_by_code
from weft.capture.library.numbers.identities import RunTimeKey
from weft.interrupts import surface
from weft.quoting import assignment

if TYPE_CHECKING:
    from weft.capture.core.protocols import Emitter, Interpreter

Entry = tuple[SymbolicValue, SymbolicValue]


class DictValue(ContainerMethods, ItemMethods, Namespace):
    """A dictionary: the entries known so far, over the outside dictionary if there is one."""

    __slots__ = ("_complete", "_entries", "_gone", "_unread", "attributes", "cls", "factory",
                 "is_namespace", "keys_guarded", "original", "owner_type", "removals", "reordered",
                 "unbound", "written")

    def __init__(self, source: Source | None = None, original: Any = None, *, cls: type = dict,
                 factory: SymbolicValue = NONE) -> None:
        super().__init__(source)
        self.original = original
        self.cls = cls
        self.factory = factory
        self.attributes: dict[str, SymbolicValue] = {}
        """Attributes that the program set (an OrderedDict has a dictionary of its own)."""
        self.is_namespace = False
        """Whether misses are not guarded (module globals) or guarded as a whole (attributes)."""
        self.keys_guarded = False
        self.owner_type: type = dict
        """The class of the object whose attributes these are."""
        self.unbound = False
        """Whether the outside object's class may have its own `__setitem__` (not to be called)."""
        self.written: dict[Any, None] = {}
        self.removals = 0
        """How often a key was deleted; iterators check this."""
        self.reordered = False
        self._entries: dict[Any, Entry] = {}
        self._gone: set[Any] = set()
        self._unread: set[Any] = set()
        """Keys that were written before they were read."""
        self._complete = original is None

    def python_type(self) -> type:
        return self.cls

    def real(self) -> Any:
        return MISSING if self.original is None else self.original

    # -- reading ----------------------------------------------------------------------------------

    def lookup(self, tx: Interpreter, key: object) -> SymbolicValue | None:
        """The value under a Python key, or None; either is guarded."""
        self._settle(tx, key)
        if key.__class__ is UserKey and not self._complete:
            self.complete(tx)  # guards must not compare it with real keys
        entry = self._entries.get(key)
        if entry is not None:
            value = entry[1]
            if value.__class__ is LazyValue:
                value = tx.force(value)
                self._entries[key] = (entry[0], value)
            if tx.guards.noted is not None and self.source is not None:
                tx.guards.note(self.source.dict_item(key))
            return value
        if self._complete or key in self._gone or key.__class__ is RunTimeKey:
            if self.source is not None:
                tx.guards.note(self.source)
            return None
        return self._read(tx, key)

    def known(self, key: object) -> SymbolicValue | None:
        """The value under a key that was read or written, if it is still there."""
        entry = self._entries.get(key)
        return None if entry is None else entry[1]

    def entries(self) -> list[SymbolicValue]:
        """The keys and values that are known, one after the other."""
        return [part for entry in self._entries.values() for part in entry]

    def _read(self, tx: Interpreter, key: object) -> SymbolicValue | None:
        assert self.source is not None
        try:
            obj = self.original.get(key, MISSING) if type(self.original) is dict else _get(
                self.original, key)
        except Exception as error:  # of the program's own `__eq__`: it will raise there
            surface(error)
            raise graph_break("unknown-value", f"keys whose comparison raises {error!r}") from error
        if obj is MISSING:
            self._guard_missing(tx, key)
            self._gone.add(key)
            return None
        value = tx.wrap(obj, self.source.dict_item(key))
        self._entries[key] = (self._key_value(tx, self._stored_key(key)), value)
        return value

    def _stored_key(self, key: object) -> object:
        """The key of the outside dictionary that equals `key`, which may be of a subclass."""
        if type(key) in (str, int) or not isinstance(key, (str, int, tuple)):
            return key  # (`_merge` looks whether 1 is True)
        return {stored: stored for stored, _ in _items(self.original)}.get(key, key)

    def _guard_missing(self, tx: Interpreter, key: object) -> None:
        if self.keys_guarded or (self.is_namespace and self._is_of_library()):
            return
        assert self.source is not None
        tx.guards.add(self.source, "missing_key", key)

    def _is_of_library(self) -> bool:
        """Whether these are the globals of a library module, which nobody adds a global `len`
        to."""
        return is_library(self.original.get("__name__", ""))

    def guard_keys(self, tx: Interpreter) -> None:
        """Guard that the outside dictionary keeps its keys and their order."""
        if self.source is not None and not self.keys_guarded and self.original is not None:
            self.keys_guarded = True
            if isinstance(self.original, OrderedDict) and len(self.original) > 1:
                # It has its own order, which C does not see. (Modules' hooks are empty ones.)
                tx.guards.same_key(self.source, self.original, _typed_keys)
                return
            tx.guards.add(self.source, "dict_keys", tuple(key for key, _ in _items(self.original)))

    def complete(self, tx: Interpreter) -> dict[Any, Entry]:
        """All entries in order."""
        if not self._complete:
            self._complete = True
            self.guard_keys(tx)
            self._merge(tx)
        return self._entries

    def _merge(self, tx: Interpreter) -> None:
        """All entries: the outside ones in their order, then the new ones."""
        assert self.source is not None
        known, self._entries = self._entries, {}
        for key, obj in _items(self.original):
            if is_compared_by_code(type(key)):
                raise graph_break("unknown-operation", f"a key of type {type(key).__name__}")
            if key in self._gone:
                continue
            entry = known.pop(key, None)
            value = LazyValue(self.source.dict_item(key), obj) if entry is None else entry[1]
            self._entries[key] = self._key_value(tx, key), value  # `known` may say True for 1
        self._entries.update(known)

    def _key_value(self, tx: Interpreter, key: object) -> SymbolicValue:
        if self.source is not None and not isinstance(key, (str, int, tuple, type(None))):
            return tx.wrap_fixed(key, describe(key))
        return tx.wrap_new(key)

    def keys(self, tx: Interpreter) -> list[SymbolicValue]:
        return [key for key, _ in self.complete(tx).values()]

    def values(self, tx: Interpreter) -> list[SymbolicValue]:
        entries = self.complete(tx)
        return [self.lookup(tx, key) for key in list(entries)]  # type: ignore[misc]

    def pairs(self, tx: Interpreter) -> list[Entry]:
        return list(zip(self.keys(tx), self.values(tx), strict=True))

    # -- writing ----------------------------------------------------------------------------------

    def store(self, tx: Interpreter, key: object, key_value: SymbolicValue, value: SymbolicValue
              ) -> None:
        """Set a key."""
        self._settle(tx, key)
        if key.__class__ is UserKey:
            self.complete(tx)
        old = self._entries.get(key)
        known = self._complete or key in self._gone or key.__class__ is RunTimeKey
        if old is None and not known:
            self._unread.add(key)  # no guard: the old value, if any, does not matter
            if _get(self.original, key) is not MISSING:
                key_value = self._key_value(tx, key)
        self._check_kept(key)
        self._entries[key] = (old[0] if old is not None else key_value, value)
        if key in self._gone and self._was_removed(key):
            self.reordered = True
        self._changed(tx, key)

    def _was_removed(self, key: object) -> bool:
        """Whether a key that is gone was there before, so that it comes back at the end."""
        return self.original is None or key in self.written or (
            _get(self.original, key) is not MISSING)

    def _settle(self, tx: Interpreter, key: object) -> None:
        """Guard that a key object is, or is not, a key of the outside dictionary."""
        if key.__class__ is str or self.original is None or self.source is None:
            return
        if key.__class__ is RunTimeKey:
            if self.original and not key.number.fresh:  # a thread's number or an id may be a key
                raise graph_break("unknown-operation", f"{key.number!r} as a key")
            if not key.number.fresh:
                tx.guards.add(self.source, "len", 0)
        elif key.__class__ is not UserKey:
            tx.identities.guard_lookup(self.source, self.original, key)

    def remove(self, tx: Interpreter, key: object) -> SymbolicValue | None:
        """Delete a key and return its value."""
        old = self.lookup(tx, key)
        if old is not None:
            self._check_kept(key)
            del self._entries[key]
            self._gone.add(key)
            self.removals += 1
            self._changed(tx, key)
        return old

    def _check_kept(self, key: object) -> None:
        """Break the graph before the outside dictionary loses an object that is watched."""
        if self.source is not None and key not in self.written and key not in self._gone:
            check_kept(_get(self.original, key))

    def _changed(self, tx: Interpreter, key: object) -> None:
        if self.source is not None:
            self.written[key] = None
            tx.effects.touch(self)

    def clear(self, tx: Interpreter) -> None:
        """Delete all keys."""
        for key in list(self.complete(tx)):
            self.remove(tx, key)
        self.reordered = True

    # -- replay and rebuilding --------------------------------------------------------------------

    def replay(self, emit: Emitter) -> None:
        target = emit.value(self)
        if self.reordered:
            self.complete(emit.tx)
            entries = ", ".join(self._pair(emit, key) for key in self._entries)
            name = emit.temporary(f"{{{entries}}}")
            kind = emit.constant(self.cls)
            emit.line(f"{kind}.clear({target})")
            setter = f"{kind}.__setitem__({target}, key, value)"  # not an override
            emit.line(f"for key, value in {name}.items(): {setter}")
            return
        for key in self.written:
            self._replay_key(emit, target, key)

    def _replay_key(self, emit: Emitter, target: str, key: object) -> None:
        entry = self._entries.get(key)
        if entry is None:
            kind = emit.constant(self.cls)
            if key in self._unread:
                emit.line(f"{kind}.pop({target}, {emit.constant(key)}, None)")
            elif _get(self.original, key) is not MISSING:
                emit.line(f"{kind}.__delitem__({target}, {emit.constant(key)})")
        elif key.__class__ is UserKey or not self._unchanged(key, entry[1]):
            if key.__class__ is UserKey:
                key.check()
            self._emit_store(emit, target, emit.value(entry[0]), emit.value(entry[1]))

    def _emit_store(self, emit: Emitter, target: str, key: str, value: str) -> None:
        if self.unbound:
            emit.line(f"{emit.constant(self.cls)}.__setitem__({target}, {key}, {value})")
        else:
            emit.line(f"{target}[{key}] = {value}")

    def _unchanged(self, key: object, value: SymbolicValue) -> bool:
        """Whether the key holds the same object as before the frame."""
        old = _get(self.original, key)
        if old is MISSING or key in self._unread:
            return False
        now = value.real()
        if not value.is_constant:
            return now is old
        # A number read as symbolic differs next time.
        assert self.source is not None
        guarded = any(check[0] in ("eq", "is") for check in self.source.dict_item(key).checks)
        return guarded and type(now) is type(old) and isinstance(old, (int, str)) and now == old

    def _pair(self, emit: Emitter, key: object) -> str:
        key_value, value = self._entries[key]
        return f"{emit.value(key_value)}: {emit.value(value)}"

    def rebuild(self, emit: Emitter) -> str:
        name = emit.bind(self, self._empty(emit))
        emit.later(lambda: self.fill(emit, f"{name}[{{}}] = {{}}"))
        if self.attributes:
            emit.later(lambda: self._set_attributes(emit, name))
        return name

    def _set_attributes(self, emit: Emitter, name: str) -> None:
        for attribute, value in self.attributes.items():
            emit.line(assignment(name, attribute, emit.value(value)))

    def fill(self, emit: Emitter, statement: str) -> None:
        """Emit a statement for each key and value."""
        for entry_key, (key, value) in list(self.complete(emit.tx).items()):
            if entry_key.__class__ is UserKey:
                entry_key.check()
            name = emit.value(key) if key.is_constant else emit.hashed(key)
            emit.line(statement.format(name, emit.value(value)))

    def _empty(self, emit: Emitter) -> str:
        if self.cls is dict:
            return "{}"
        argument = emit.value(self.factory) if self.cls is defaultdict else ""
        return f"{emit.constant(self.cls)}({argument})"

    def copied(self, tx: Interpreter) -> Any:
        built = {}
        for key_value, value in self.complete(tx).values():
            key, item = python_object(tx, key_value), python_object(tx, value)
            if key is MISSING or item is MISSING:
                return MISSING
            built[key] = item
        return built if self.cls is dict else MISSING

    def proxy(self, tx: Interpreter) -> Any:
        return {key.constant(): value.proxy(tx) for key, value in self.pairs(tx)}

    def fake(self, tx: Interpreter) -> Any:
        return {key.constant(): value.fake(tx) for key, value in self.pairs(tx)}

    # -- protocol ---------------------------------------------------------------------------------

    def truth(self, tx: Interpreter) -> bool:
        return self.length(tx) > 0

    def length(self, tx: Interpreter) -> int:
        return len(self.complete(tx))

    def contains(self, tx: Interpreter, item: SymbolicValue) -> bool:
        return self.lookup(tx, item.dict_key(tx)) is not None

    def getitem(self, tx: Interpreter, key: SymbolicValue) -> SymbolicValue:
        value = self.lookup(tx, key.dict_key(tx))
        if value is None:
            return self._default(tx, key)
        return value

    def _default(self, tx: Interpreter, key: SymbolicValue) -> SymbolicValue:
        if self.cls is defaultdict and not is_none(self.factory):
            value = tx.call(self.factory, [])
            self.setitem(tx, key, value)
            return value
        raise key_error(tx, key)

    def setitem(self, tx: Interpreter, key: SymbolicValue, value: SymbolicValue) -> None:
        self.store(tx, key.dict_key(tx), key, value)

    def delitem(self, tx: Interpreter, key: SymbolicValue) -> None:
        if self.remove(tx, key.dict_key(tx)) is None:
            raise key_error(tx, key)

    def iter(self, tx: Interpreter) -> SymbolicValue:
        return DictIterator(DictView(self, "keys"), tx)

    def binary(self, tx: Interpreter, op: str, other: SymbolicValue, reflected: bool) -> Any:
        operand = other
        if not isinstance(other, DictValue):  # an instance of a subclass that defers to this one
            other = other.underlying()
        if op == "ior" and not reflected and (isinstance(other, DictValue)
                                              or other.is_constant
                                              or hasattr(other.python_type(), "__iter__")):
            self.update_from(tx, other)
            return self
        if not isinstance(other, DictValue):
            return None
        if op == "or_" and not (reflected and self.cls is dict):
            merged = DictValue(cls=self.cls, factory=self.factory)
            merged.update_from(tx, other if reflected else self)
            merged.update_from(tx, self if reflected else operand)
            return merged
        if op in ("eq", "ne"):
            return boolean(self._equals(tx, other) is (op == "eq"))
        return None

    def _equals(self, tx: Interpreter, other: DictValue) -> bool:
        mine, theirs = self.complete(tx), other.complete(tx)
        ordered = issubclass(self.cls, OrderedDict) and issubclass(other.cls, OrderedDict)
        if mine.keys() != theirs.keys() or (ordered and list(mine) != list(theirs)):
            return False
        return all(tx.equal(mine[key][1], theirs[key][1]) for key in list(mine))

    def update_from(self, tx: Interpreter, other: SymbolicValue) -> None:
        """`self.update(other)` for a mapping or an iterable of pairs."""
        contents = other if _has_own_iter(other) else other.underlying()
        if isinstance(contents, DictValue):
            pairs = contents.pairs(tx)
            for key, value in pairs:
                self.setitem(tx, key, value)
                if contents is not self and len(contents._entries) != len(pairs):
                    raise graph_break("unknown-operation", "`__eq__` changes the dictionary")
            return
        if is_mapping_object(other):
            for key in tx.unpack(other.method(tx, "keys", [], {})):
                self.setitem(tx, key, other.method(tx, "__getitem__", [key], {}))
            return
        for index, pair in enumerate(other.iterate(tx)):
            parts = tx.unpack(pair)
            if len(parts) != 2:
                raise tx.error(ValueError, f"dictionary update sequence element #{index} has "
                                           f"length {len(parts)}; 2 is required")
            self.setitem(tx, parts[0], parts[1])

    def getattr(self, tx: Interpreter, name: str) -> SymbolicValue:
        if name == "default_factory" and self.cls is defaultdict:
            return self.factory
        if name in self.attributes:
            return self.attributes[name]
        return super().getattr(tx, name)

    def setattr(self, tx: Interpreter, name: str, value: SymbolicValue) -> None:
        if self.cls is not OrderedDict or self.source is not None or hasattr(OrderedDict, name):
            super().setattr(tx, name, value)
        else:
            self.attributes[name] = value

    # -- methods ----------------------------------------------------------------------------------

    def m_get(self, tx: Interpreter, key: SymbolicValue, default: SymbolicValue = NONE, /
              ) -> SymbolicValue:
        value = self.lookup(tx, key.dict_key(tx))
        if value is not None:
            return value
        return default

    def m_pop(self, tx: Interpreter, key: SymbolicValue, default: SymbolicValue | None = None, /
              ) -> SymbolicValue:
        value = self.remove(tx, key.dict_key(tx))
        if value is not None:
            return value
        if default is None:
            raise key_error(tx, key)
        return default

    def m_setdefault(self, tx: Interpreter, key: SymbolicValue, default: SymbolicValue = NONE
                     ) -> SymbolicValue:
        value = self.lookup(tx, key.dict_key(tx))
        if value is None:
            value = default
            self.setitem(tx, key, value)
        return value

    def m_update(self, tx: Interpreter, others: SymbolicValue | None = None, /,
                 **items: SymbolicValue) -> SymbolicValue:
        if others is not None:
            self.update_from(tx, others)
        for name, value in items.items():
            self.setitem(tx, constant(name), value)
        return NONE

    def m___init__(self, tx: Interpreter, others: SymbolicValue | None = None, /,
                   **items: SymbolicValue) -> SymbolicValue:
        return self.m_update(tx, others, **items)

    def m_keys(self, tx: Interpreter) -> SymbolicValue:
        return DictView(self, "keys")

    def m_values(self, tx: Interpreter) -> SymbolicValue:
        return DictView(self, "values")

    def m_items(self, tx: Interpreter) -> SymbolicValue:
        return DictView(self, "items")

    def m_copy(self, tx: Interpreter) -> SymbolicValue:
        copy = DictValue(cls=self.cls, factory=self.factory)
        copy.update_from(tx, self)
        return copy

    def m_clear(self, tx: Interpreter) -> SymbolicValue:
        self.clear(tx)
        return NONE

    def m_popitem(self, tx: Interpreter, last: SymbolicValue = TRUE) -> SymbolicValue:
        keys = list(self.complete(tx))
        if not keys:
            what = "" if issubclass(self.cls, OrderedDict) else "popitem(): "
            raise tx.error(KeyError, f"{what}dictionary is empty")
        key = keys[-1 if last.truth(tx) else 0]
        key_value = self._entries[key][0]
        value = self.remove(tx, key)
        assert value is not None
        return TupleValue([key_value, value])

    def m_move_to_end(self, tx: Interpreter, key: SymbolicValue, last: SymbolicValue = TRUE
                      ) -> SymbolicValue:
        self.complete(tx)
        hashed = key.dict_key(tx)
        value = self.remove(tx, hashed)
        if value is None:
            raise key_error(tx, key)
        if not last.truth(tx):
            self._entries = {hashed: (key, value), **self._entries}
        self.store(tx, hashed, key, value)
        self.reordered = True
        return NONE

    def m___getitem__(self, tx: Interpreter, key: SymbolicValue, /) -> SymbolicValue:
        return self.getitem(tx, key)


def key_error(tx: Interpreter, key: SymbolicValue) -> ObservedException:
    """The KeyError of a lookup of a missing key."""
    error = tx.error(KeyError)
    error.value.args = [key]
    return error


def _has_own_iter(value: SymbolicValue) -> bool:
    """Whether a subclass of dict overrides iteration."""
    kind = value.python_type()
    return issubclass(kind, dict) and isinstance(kind.__iter__, types.FunctionType)


def is_mapping_object(value: SymbolicValue) -> bool:
    """Whether the value is an instance of a class of the program with a `keys` method."""
    return hasattr(value.python_type(), "keys")


def _get(mapping: Any, key: Any) -> object:
    if isinstance(mapping, dict):
        return dict.get(mapping, key, MISSING)
    return mapping.get(key, MISSING)


@final
class DictIterator(IteratorValue):
    """An iterator over a view; raises if the dictionary changes its size."""

    __slots__ = ("keys", "position", "removals", "view")

    def __init__(self, view: DictView, tx: Interpreter) -> None:
        super().__init__()
        self.view = view
        self.keys = list(view.owner.complete(tx))
        self.removals = view.owner.removals
        self.position = 0

    def python_type(self) -> type:
        return type(iter(getattr({}, self.view.what)()))

    def next(self, tx: Interpreter) -> SymbolicValue | None:
        entries = self.view.owner.complete(tx)
        if self.position < 0:
            return None
        if self.view.owner.cls is OrderedDict and (
                self.removals != self.view.owner.removals or len(entries) != len(self.keys)):
            raise tx.error(RuntimeError, "OrderedDict mutated during iteration")
        if len(entries) != len(self.keys):
            raise tx.error(RuntimeError, "dictionary changed size during iteration")
        if self.position >= len(self.keys):
            self.position = -1
            if self.removals != self.view.owner.removals or self.keys != list(entries):
                raise tx.error(RuntimeError, "dictionary keys changed during iteration")
            return None
        key = self.keys[self.position]
        if key not in entries:
            raise tx.error(RuntimeError, "dictionary keys changed during iteration")
        self.position += 1
        return self.view.shown(tx, key)

    def rebuild(self, emit: Emitter) -> str:
        if self.position < 0:
            return emit.bind(self, f"iter({{}}.{self.view.what}())")
        owner = self.view.owner
        if list(owner.complete(emit.tx)) != self.keys:
            raise graph_break("unknown-value", "an iterator of a dictionary that changed")
        text = emit.filled(owner)  # the iterator notes the dictionary's size
        name = emit.bind(self, f"iter({text}.{self.view.what}())")
        if self.position:
            advance(emit, name, self.position)
        return name


_LIKE_SETS: Final[tuple[type, ...]] = (set, frozenset, type({}.keys()), type({}.items()))
_SIZES: Final = {"eq": "eq", "ne": "eq", "lt": "lt", "le": "le", "gt": "lt", "ge": "le"}
"""The relation of sizes that each comparison needs to be true."""

_MIRRORED: Final = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


@final
class DictView(ContainerMethods):
    """`d.keys()`, `d.values()`, `d.items()`."""

    __slots__ = ("owner", "what")

    def __init__(self, owner: DictValue, what: str) -> None:
        super().__init__()
        self.owner = owner
        self.what = what

    def python_type(self) -> type:
        return type(getattr(self.owner.cls(), self.what)())

    def items_now(self, tx: Interpreter) -> list[SymbolicValue]:
        """The items of the view."""
        return [self.shown(tx, key) for key in list(self.owner.complete(tx))]

    def shown(self, tx: Interpreter, key: object) -> SymbolicValue:
        """The item of the view for one key."""
        if self.what == "keys":
            return self.owner.complete(tx)[key][0]
        value = self.owner.lookup(tx, key)
        assert value is not None
        return value if self.what == "values" else TupleValue(
            [self.owner.complete(tx)[key][0], value])

    def length(self, tx: Interpreter) -> int:
        return self.owner.length(tx)

    def truth(self, tx: Interpreter) -> bool:
        return self.length(tx) > 0

    def iter(self, tx: Interpreter) -> SymbolicValue:
        return DictIterator(self, tx)

    def contains(self, tx: Interpreter, item: SymbolicValue) -> bool:
        if self.what == "keys":
            return self.owner.contains(tx, item)
        if self.what == "items":
            return self._has_item(tx, item)
        return super().contains(tx, item)

    def _has_item(self, tx: Interpreter, item: SymbolicValue) -> bool:
        if not isinstance(item, TupleValue) or item.length(tx) != 2:
            return False
        value = self.owner.lookup(tx, item.at(tx, 0).dict_key(tx))
        return value is not None and tx.equal(value, item.at(tx, 1))

    def _compare(self, tx: Interpreter, op: str, other: SymbolicValue) -> SymbolicValue | None:
        """Compare as sets do: items to look up are hashed, those that they are compared with are
        not."""
        if not issubclass(other.python_type(), _LIKE_SETS):
            return None
        small, large = (other, self) if op in ("gt", "ge") else (self, other)
        fits = getattr(operator, _SIZES[op])(small.length(tx), large.length(tx))
        holds = fits and all(large.contains(tx, item) for item in tx.unpack(small))
        return boolean(holds is not (op == "ne"))

    def binary(self, tx: Interpreter, op: str, other: SymbolicValue, reflected: bool) -> Any:
        if self.what == "values":
            return None
        if op in _SIZES:
            return self._compare(tx, _MIRRORED.get(op, op) if reflected else op, other)
        mine: SymbolicValue = tx.wrap_new(set())
        for item in self.items_now(tx):
            mine.method(tx, "add", [item], {})
        right: SymbolicValue = tx.wrap_new(set())
        for item in tx.unpack(other):
            right.method(tx, "add", [item], {})
        return mine.binary(tx, op, right, reflected)

    def getattr(self, tx: Interpreter, name: str) -> SymbolicValue:
        if name == "mapping":
            return ProxyValue(self.owner)
        return super().getattr(tx, name)

    def rebuild(self, emit: Emitter) -> str:
        return f"{emit.value(self.owner)}.{self.what}()"

    def m_isdisjoint(self, tx: Interpreter, other: SymbolicValue, /) -> SymbolicValue:
        return boolean(not any(self.contains(tx, item) for item in tx.unpack(other)))


@final
class ProxyValue(MethodTable):
    """A mapping proxy of `contents`, which the program may change."""

    __slots__ = ("contents", "original")
    kind = types.MappingProxyType

    def __init__(self, contents: SymbolicValue, source: Source | None = None,
                 original: Any = MISSING) -> None:
        super().__init__(source)
        self.original = original
        self.contents = contents

    def underlying(self) -> SymbolicValue:
        return self.contents

    def truth(self, tx: Interpreter) -> bool:
        return self.contents.truth(tx)

    def length(self, tx: Interpreter) -> int:
        return self.contents.length(tx)

    def contains(self, tx: Interpreter, item: SymbolicValue) -> bool:
        return self.contents.contains(tx, item)

    def getitem(self, tx: Interpreter, key: SymbolicValue) -> SymbolicValue:
        return self.contents.getitem(tx, key)

    def iter(self, tx: Interpreter) -> SymbolicValue:
        return self.contents.iter(tx)

    def method(self, tx: Interpreter, name: str, args: Args, kwargs: Kwargs) -> SymbolicValue:
        if hasattr(types.MappingProxyType, name):
            return self.contents.method(tx, name, args, kwargs)
        return super().method(tx, name, args, kwargs)

    def getattr(self, tx: Interpreter, name: str) -> SymbolicValue:
        if hasattr(types.MappingProxyType, name) and hasattr(self.contents, f"m_{name}"):
            return self.contents.getattr(tx, name)
        return super().getattr(tx, name)

    def binary(self, tx: Interpreter, op: str, other: SymbolicValue, reflected: bool) -> Any:
        if op == "ior" and not reflected:
            raise tx.error(TypeError, "'|=' is not supported by mappingproxy; use '|' instead")
        return self.contents.binary(tx, op, other.underlying(), reflected)

    def rebuild(self, emit: Emitter) -> str:
        kind = emit.constant(types.MappingProxyType)
        return emit.bind(self, f"{kind}({emit.value(self.contents)})")

    def setitem(self, tx: Interpreter, key: SymbolicValue, value: SymbolicValue) -> None:
        raise tx.error(TypeError, "'mappingproxy' object does not support item assignment")

    def delitem(self, tx: Interpreter, key: SymbolicValue) -> None:
        raise tx.error(TypeError, "'mappingproxy' object doesn't support item deletion")


def dictionary_of(tx: Interpreter, items: Mapping[str, SymbolicValue]) -> DictValue:
    """A new dictionary with these names as its keys."""
    dictionary = DictValue()
    for name, value in items.items():
        dictionary.setitem(tx, constant(name), value)
    return dictionary


@wraps(types.MappingProxyType)
def _wrap_proxy(tx: Interpreter, obj: Any, source: Source | None) -> SymbolicValue:
    if source is None:
        source = tx.tree.object(obj, "mappingproxy")
    tx.guards.add(source, "type_is", types.MappingProxyType)
    return ProxyValue(tx.wrap(_shown_by(obj), source.call(_shown_by, source.name)), source, obj)


def _shown_by(proxy: types.MappingProxyType[Any, Any]) -> object:
    """The mapping behind the proxy."""
    return gc.get_referents(proxy)[0]


@wraps(dict, OrderedDict)
def _wrap_dict(tx: Interpreter, obj: Any, source: Source | None) -> SymbolicValue:
    if source is None:
        value = DictValue(cls=type(obj))
        for key, item in obj.items():
            value.setitem(tx, tx.wrap_new(key), tx.wrap_new(item))
        return value
    tx.guards.add(source, "type_is", type(obj))
    return DictValue(source, obj, cls=type(obj))


@wraps(defaultdict)
def _wrap_defaultdict(tx: Interpreter, obj: Any, source: Source | None) -> SymbolicValue:
    if source is None:
        raise graph_break("unknown-value", "a defaultdict from nowhere")
    tx.guards.add(source, "type_is", type(obj))
    factory = tx.wrap(obj.default_factory, source.attribute("default_factory"))
    return DictValue(source, obj, cls=defaultdict, factory=factory)


def _typed_keys(mapping: OrderedDict[Any, Any]) -> list[tuple[type, object]]:
    return [(type(key), key) for key, _ in _items(mapping)]


def _items(mapping: Any) -> Iterable[tuple[object, object]]:
    """The items of a dict, even if a subclass overrides `items`."""
    if isinstance(mapping, OrderedDict):
        try:
            return list(OrderedDict.items(mapping))
        except KeyError as error:
            raise graph_break("unknown-value", "a dictionary whose keys changed") from error
    return list(dict.items(mapping)) if isinstance(mapping, dict) else list(mapping.items())
