"""Side effects: which outside objects the program changed, in the order of their first change.

Place in the pipeline: filled by the values of mutable objects, replayed by the replacement after
the graph. Only the final state of each object is written back, so an object that was changed a
hundred times is written once, and one that has its old state again not at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, final

from weft.capture.core.base import SymbolicValue

if TYPE_CHECKING:
    from weft.capture.core.protocols import Emitter


class Replayable(Protocol):
    """The value of an outside object that can emit its changes."""

    def replay(self, emit: Emitter) -> None: ...


@final
class SideEffects:
    """The changes of one interpretation."""

    def __init__(self) -> None:
        self._touched: dict[int, Any] = {}
        self.n_touches = 0
        self._forgotten: list[Any] = []

    def touch(self, value: Replayable) -> None:
        """Record that the object behind `value` was changed."""
        self.n_touches += 1
        self._touched.setdefault(id(value), value)

    def touch_last(self, value: Replayable) -> None:
        """As `touch`; what was changed so far is written before it."""
        self.n_touches += 1
        self._touched.pop(id(value), None)
        self._touched[id(value)] = value

    def touched(self) -> list[Any]:
        """The values of the changed objects."""
        return list(self._touched.values())

    def changed(self, value: object) -> bool:
        """Whether the object behind `value` was changed."""
        return id(value) in self._touched

    def changed_any(self, *objects: object) -> bool:
        """Whether the program has changed one of these outside objects."""
        changed = [v.real() for v in self._touched.values() if isinstance(v, SymbolicValue)]
        return any(value is obj for value in changed for obj in objects)

    def forget_gradient(self, tensor: object) -> None:
        """Record that the program drops a gradient from before the frame that nothing has read."""
        self._forgotten.append(tensor)

    def early_lines(self, emit: Emitter) -> list[str]:
        """Statements before the graph: dropped gradients free memory for the new ones, as in
        eager."""
        return [f"{emit.value(tensor)}.grad = None" for tensor in self._forgotten]

    @property
    def n_forgotten(self) -> int:
        """How many gradients the program drops."""
        return len(self._forgotten)

    def __len__(self) -> int:
        return len(self._touched)

    def replay(self, emit: Emitter, last: Replayable | None = None) -> None:
        """Emit the statements that make all changes visible, or those up to the last one."""
        for value in list(self._touched.values()):
            self.settle(value, emit)
            if value is last:
                return

    def settle(self, value: SymbolicValue, emit: Emitter) -> None:
        """Emit the changes of one object, unless that was done: early, if the next statement reads
        it."""
        changed = self._touched.get(id(value))
        if changed is not None and id(value) not in emit.settled:
            emit.settled.add(id(value))
            changed.replay(emit)
