"""What the program distinguishes by identity: `is`, `==` of plain objects, keys of dictionaries.

Place in the pipeline: beside `guards`, one per capture. While capturing, keys are looked up as
Python objects. That two places hold different objects, or that one holds none of an outside
dictionary's keys, must be guarded::

    {a: 1}.get(b)          # guard: a, b are different objects
    outside.get(a)         # guard: a is <that object>, or: a is no key of outside
"""

from __future__ import annotations

import weakref
from collections.abc import Container, Iterator
from typing import TYPE_CHECKING, Any, Final, final

from weft.capture.core.breaks import graph_break
from weft.capture.core.source import Source
from weft.capture.guards.guard_set import GuardSet

WEAK: Final = "weak reference"
"""The first item of keys for weak references to objects made inside."""

if TYPE_CHECKING:
    from weft.capture.core.base import SymbolicValue


@final
class IdentityGuards:
    """The outside objects that were used as keys, by type, with their sources."""

    def __init__(self, guards: GuardSet) -> None:
        self._guards = guards
        self._keys: dict[type, dict[Source, None]] = {}
        self._sources: dict[int, Source] = {}

    def different(self, left: SymbolicValue, right: SymbolicValue) -> None:
        """Guard that the values are different objects (their types are guarded already)."""
        if left.source is not None and right.source is not None and (
                left.python_type() is right.python_type()):
            self._guards.all_different([left.source, right.source])

    def key(self, value: SymbolicValue, obj: object) -> Any:
        """Record an outside object as a key: a guard keeps it different from the other keys."""
        if value.source is not None:
            self._keys.setdefault(value.python_type(), {})[value.source] = None
            self._sources[id(obj)] = value.source
        return obj

    def guard_lookup(self, owner: Source, keys: Container[Any], key: Any) -> None:
        """Guard the result of looking up `key` in an outside dictionary or set that has these
        keys."""
        if key.__class__ is tuple and key[:1] == (WEAK,):  # it may be removed again
            raise graph_break("unknown-operation", "a weak reference as a key outside")
        weakly = key.__class__ is weakref.ref
        source = self._sources.get(id(key() if weakly else key))
        if source is not None and key not in keys:
            self._guards.absent(source, owner, weakly=weakly)
            return
        for part in _parts(key):
            source = self._sources.get(id(part))
            if source is not None:
                self._guards.add(source, "is", part)

    @property
    def count(self) -> int:
        """How many objects were recorded as keys."""
        return sum(map(len, self._keys.values()))

    def finish(self) -> None:
        """Guard that the recorded keys are different objects."""
        for sources in self._keys.values():
            self._guards.all_different(list(sources))


def _parts(key: object) -> Iterator[object]:
    """The objects that a key consists of."""
    if key.__class__ in (tuple, frozenset):
        for part in key:
            yield from _parts(part)
    else:
        yield key() if key.__class__ is weakref.ref else key
