"""The memo of a `copy.deepcopy`: which objects were copied, and their copies.

Place in the pipeline: under `rules`. To the program it is a dictionary from the `id` of
objects to their copies. `__deepcopy__` methods receive it and pass it to `copy.deepcopy`::

    def __deepcopy__(self, memo):
        memo[id(self)] = new = Node()
        new.next = copy.deepcopy(self.next, memo)
        return new
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

from weft.capture.core.base import MISSING, SymbolicValue
from weft.capture.core.breaks import graph_break
from weft.capture.library.containers.mapping import DictValue, Entry
from weft.capture.library.numbers.identities import RunTimeKey, RunTimeNumber

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter

_UNDER_WAY: Final = SymbolicValue()


@final
class Memo(DictValue):
    """Holds copies by value; entries that the program adds are in its dictionary."""

    __slots__ = ("_copies",)

    def __init__(self) -> None:
        super().__init__()
        self._copies: dict[int, Entry] = {}

    def begin(self, value: SymbolicValue) -> None:
        """Record that the parts of a value (a tuple) are copied before the value itself."""
        self._copies[id(value)] = value, _UNDER_WAY

    def add(self, tx: Interpreter, value: SymbolicValue, copy: SymbolicValue) -> None:
        """Record the copy of a value; a guard keeps its object different from the other keys."""
        self._copies[id(value)] = value, copy
        if value.real() is not MISSING:
            tx.identities.key(value, value.real())

    def copy_of(self, tx: Interpreter, value: SymbolicValue) -> SymbolicValue | None:
        """The copy that was made of the value, or None."""
        known = self._copies.get(id(value))
        if known is None:
            obj = value.real()
            key = RunTimeNumber(id, [value]).dict_key(tx) if obj is MISSING else id(obj)
            return super().lookup(tx, key)
        if known[1] is _UNDER_WAY:
            raise graph_break("unknown-operation", "deepcopy of a tuple in a cycle")
        return known[1]

    def lookup(self, tx: Interpreter, key: object) -> SymbolicValue | None:
        known = super().lookup(tx, key)
        if known is not None:
            return known
        for value, copy in self._copies.values():
            obj = value.real()
            if copy is not _UNDER_WAY and (key == id(obj) if obj is not MISSING else (
                    key.__class__ is RunTimeKey and key.number.args[0] is value)):
                return copy
        return None

    def complete(self, tx: Interpreter) -> dict[Any, Entry]:
        if self._copies:
            raise graph_break("unknown-operation", "all that a deepcopy has copied so far")
        return super().complete(tx)
