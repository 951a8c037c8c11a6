"""Outside objects and the values that stand for them: one value an object, however it is reached.

Place in the pipeline: beside `guard_set`, one per capture. If two sources hold one object in this
call, a guard requires it of later calls; that a changed object is none of the others is guarded
at the end::

    a.x = 1; b.x           # a is b: one value, and the guard `a is b`; otherwise `a is not b`
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any, final

from weft.capture.core.base import MISSING, Namespace, SymbolicValue
from weft.capture.core.source import Source
from weft.capture.guards.guard_set import GuardSet

if TYPE_CHECKING:
    from weft.capture.core.side_effects import SideEffects


@final
class OutsideObjects:
    """The values of the objects that were wrapped, by the objects' ids."""

    def __init__(self, guards: GuardSet) -> None:
        self._guards = guards
        self._values: dict[int, tuple[Any, SymbolicValue]] = {}
        self._kept: list[Any] = []
        """Forgotten objects, kept so that their ids stay unique."""

    def value_of(self, obj: object) -> SymbolicValue | None:
        """The value that stands for the object so far."""
        known = self._values.get(id(obj))
        return None if known is None else known[1]

    def remember(self, obj: object, value: SymbolicValue) -> None:
        """Let `value` stand for `obj` from now on."""
        self._values[id(obj)] = (obj, value)

    def forget(self, obj: object) -> None:
        """Undo `remember`: the object stands for itself again."""
        self._values.pop(id(obj), None)
        self._kept.append(obj)

    def values(self) -> list[SymbolicValue]:
        """The values of the objects, in the order in which these were met."""
        return [value for _, value in self._values.values()]

    @property
    def counts(self) -> tuple[int, int]:
        """How many objects are known, and how many were forgotten."""
        return len(self._values), len(self._kept)

    def clear(self) -> None:
        """Let the program's objects go."""
        self._values.clear()

    def share_namespace(self, owner: Any, namespace: Namespace) -> None:
        """Make an object's `__dict__` one value, however the program reaches it (`vars(x)` in a
        variable)."""
        original = namespace.original
        if original is None or namespace.source is None:
            return
        known = self.value_of(original)
        if known is None:
            self.remember(original, namespace)
        elif known is not namespace:
            owner.use_namespace(known)
            self.guard_same(known, namespace.source)

    def guard_same(self, value: SymbolicValue, source: Source) -> None:
        """Guard that `source` holds the object that `value` stands for, as it did in this call."""
        obj = value.real()
        if _is_identified(source):
            return
        if value.source is None or _is_identified(value.source):
            if obj is not MISSING:
                self._guards.add(source, "is", obj)
            return
        if value.source.is_fixed:
            self._guards.add(source, "is", value.source.accessor[1])
            return
        self._guards.same(value.source, source)

    def guard_aliases(self, effects: SideEffects) -> None:
        """Guard that no changed object is also one of the others that were read."""
        changed = [v for v in effects.touched() if v.source is not None]
        for kind in {_confusable(v) for v in changed} - {types.CellType}:
            known = [v for _, v in self._values.values()
                     if v.source is not None and not v.is_constant and _confusable(v) is kind]
            sources = {_owner_source(v): None for v in (*known, *changed)
                       if _confusable(v) is kind and not _is_own(_owner_source(v))}
            if any(not s.is_fixed for s in sources):
                self._guards.distinct(list(sources))


def _is_identified(source: Source) -> bool:
    """Whether a guard says which object it holds."""
    return any(key[0] == "is" for key in source.checks)


def _owner_source(value: SymbolicValue) -> Source:
    """The value's source; for a `__dict__` the source of the object that owns it."""
    source = value.source
    assert source is not None
    if source.accessor[0] == "instance_dict" and source.base is not None:
        return source.base
    return source


def _confusable(value: SymbolicValue) -> Any:
    """What an object could be confused with: objects of its type.

    A `__dict__` is confused with those of objects of its owner's type, since its source names the
    owner.
    """
    assert value.source is not None
    if value.source.accessor[0] == "instance_dict":
        return value.owner_type if isinstance(value, Namespace) else dict
    return value.python_type()


def _is_own(source: Source) -> bool:
    """Whether only its owner refers to the object, as with nn.Module's `_parameters`."""
    parent = source.base
    return (parent is not None and parent.accessor[0] == "instance_dict"
            and str(source.accessor[-1]).startswith("_"))
