"""A table keyed by code object *identity*, whose entries die with the code object.

Code objects compare by value, so an ordinary (weak) dictionary would confuse two functions with
equal bodies. (A class, which stands for the code of its objects, may be a key as well.)::

    sizes: PerCode[int] = PerCode()
    sizes[f.__code__] = 3
"""

from __future__ import annotations

import weakref
from types import CodeType
from typing import Generic, TypeVar, final

T = TypeVar("T")


@final
class PerCode(Generic[T]):
    """One value per live code object. The value must not refer strongly to its own code object."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[CodeType | type], T]] = {}

    def get(self, code: CodeType | type) -> T | None:
        entry = self._entries.get(id(code))
        if entry is None or entry[0]() is not code:  # `forget` fails if the stack is full
            return None
        return entry[1]

    def __setitem__(self, code: CodeType | type, value: T) -> None:
        key, entries = id(code), self._entries

        def forget(_: weakref.ref[CodeType | type]) -> None:
            entries.pop(key, None)

        entries[key] = (weakref.ref(code, forget), value)

    def __len__(self) -> int:
        return len(self._entries)

    def clear(self) -> None:
        self._entries.clear()
