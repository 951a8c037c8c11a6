"""Side effects: which outside objects the program changed, in the order of their first change.

Place in the pipeline: filled by the mutable value families, replayed by the replacement after the
graph. What is kept is the final state of each object (its families know how to write it back), so
an object changed a hundred times is written once, and one restored to what it was not at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, final

if TYPE_CHECKING:
    from weft.capture.replacement import Emitter
    from weft.capture.values.base import SymbolicValue


class Replayable(Protocol):
    """A value of an outside object that can write its changes back."""

    def replay(self, emit: Emitter) -> None: ...


@final
class SideEffects:
    """The journal of one interpretation."""

    def __init__(self) -> None:
        self._touched: dict[int, Any] = {}
        self.n_touches = 0
        self._forgotten: list[Any] = []

    def touch(self, value: Replayable) -> None:
        """The object behind `value` was changed."""
        self.n_touches += 1
        self._touched.setdefault(id(value), value)

    def touched(self) -> list[Any]:
        """The values of the changed objects."""
        return list(self._touched.values())

    def changed(self, value: object) -> bool:
        """Whether the object behind `value` was changed."""
        return id(value) in self._touched

    def forget_gradient(self, tensor: Any) -> None:
        """The program drops a gradient from before the frame, which nothing has read."""
        self._forgotten.append(tensor)

    def early_lines(self, emit: Emitter) -> list[str]:
        """What is done ahead of the graph: eager would have that memory for new gradients."""
        return [f"{emit.value(tensor)}.grad = None" for tensor in self._forgotten]

    def __len__(self) -> int:
        return len(self._touched)

    def replay(self, emit: Emitter) -> None:
        """Emits the statements that make the changes visible."""
        for value in list(self._touched.values()):
            self.settle(value, emit)

    def settle(self, value: SymbolicValue, emit: Emitter) -> None:
        """Emits the changes of one object, if there are any: once, and ahead of the others' if
        what is made of it next looks at them."""
        changed = self._touched.get(id(value))
        if changed is not None and id(value) not in emit.settled:
            emit.settled.add(id(value))
            changed.replay(emit)
