"""Dictionary keys that are instances of dataclasses: equal if their fields are.

Place in the pipeline: under `objects`. A `UserKey` stands for such an object in the dictionaries of
capture: its hash and equality interpret the generated `__hash__` and `__eq__`. (Methods that the
program writes may have side effects, and the replacement would call them again.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from weft.capture.breaks import graph_break

if TYPE_CHECKING:
    from weft.capture.interpreter import Interpreter
    from weft.capture.values.objects import ObjectValue


@final
class UserKey:
    """An object made while capturing, as a key."""

    __slots__ = ("number", "state", "tx", "value")

    def __init__(self, tx: Interpreter, value: ObjectValue, number: int) -> None:
        self.tx = tx
        self.value = value
        self.number = number
        self.state = self._state()

    def _state(self) -> tuple[int, ...]:
        parts = [value for _, value in self.value.attributes.complete(self.tx).values()]
        return tuple(map(id, (*parts, *self.value.slots.values())))

    def check(self) -> None:
        """Check that the object's hash did not change: the replacement hashes it again."""
        if self.state != self._state():
            raise graph_break("unknown-operation", "a dictionary key that was changed")

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        if isinstance(other, UserKey):
            return self.tx.equal(self.value, other.value)
        return self.tx.equal(self.value, self.tx.wrap_new(other))

    def __repr__(self) -> str:
        return f"key {self.value!r}"
