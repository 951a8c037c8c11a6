"""Dictionary keys whose class says in Python what they are equal to.

Place in the pipeline: under `objects`. A `UserKey` stands for such an object in the dictionaries
that capture keeps: its hash and equality interpret the program's `__hash__` and `__eq__`, in the
order in which Python's own dictionary calls them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from weft.capture.values.base import SymbolicValue

if TYPE_CHECKING:
    from weft.capture.interpreter import Interpreter


@final
class UserKey:
    """An object made while capturing, as a key."""

    __slots__ = ("number", "tx", "value")

    def __init__(self, tx: Interpreter, value: SymbolicValue, number: int) -> None:
        self.tx = tx
        self.value = value
        self.number = number

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        if isinstance(other, UserKey):
            return self.tx.equal(self.value, other.value)
        return self.tx.equal(self.value, self.tx.wrap_new(other))

    def __repr__(self) -> str:
        return f"key {self.value!r}"
