"""Whether an object made while capturing would still be alive in the program.

Place in the pipeline: used when a weak reference is called. Capture keeps every value, but the
program frees an object with its last reference; so what matters is which frames hold it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, final

from weft.capture.frame import Frame
from weft.capture.values.base import SymbolicValue

if TYPE_CHECKING:
    from weft.capture.interpreter import Interpreter

_WEAK = frozenset({"target"})
"""Slots of weak references, which do not keep objects alive."""


def is_held(tx: Interpreter, value: SymbolicValue) -> bool:
    """Whether a variable, an outside object, or something reachable from them refers to the
    value."""
    return _reaches([*_frames(tx.frame), *tx.effects.touched()], value)


_PATIENCE: Final = 200_000
"""A watched object counts as freed if it was not found among this many objects."""


@final
class Watch:
    """Objects made while capturing whose end of life has an effect."""

    def __init__(self) -> None:
        self._objects: dict[int, tuple[SymbolicValue, Any, str]] = {}
        self._looked = 0
        self.step = 0
        """The outermost frame's step at the last time that all were held."""

    def __bool__(self) -> bool:
        return bool(self._objects)

    def add(self, value: SymbolicValue) -> None:
        """Watch another object."""
        self._objects[id(value)] = (value, None, "")

    def all_held(self, tx: Interpreter) -> bool:
        """Whether all of them are still alive after the last instruction."""
        return self._looked < _PATIENCE and all(
            self._holds(tx, frame, name, value) or self._find(tx, value)
            for value, frame, name in list(self._objects.values()))

    def _holds(self, tx: Interpreter, frame: Frame | None, name: str, value: SymbolicValue
               ) -> bool:
        """Whether the variable that held the object still does."""
        if frame is None or not any(frame is other for other in _frames(tx.frame)):
            return False
        return self._leads(frame.locals.get(name), value)

    def _find(self, tx: Interpreter, value: SymbolicValue) -> bool:
        for frame in _frames(tx.frame):
            for name, held in frame.locals.items():
                if self._leads(held, value):
                    self._objects[id(value)] = (value, frame, name)
                    return True
        return self._leads([*_frames(tx.frame), *tx.effects.touched()], value)

    def _leads(self, start: Any, value: SymbolicValue) -> bool:
        seen: set[int] = set()
        found = _reaches([start], value, seen)
        self._looked += len(seen)
        return found


def holds_itself(value: SymbolicValue) -> bool:
    """Whether the value is in a reference cycle, so that the garbage collector frees it."""
    return _reaches(list(_parts(value)), value)


def _frames(frame: Frame | None) -> Iterator[Frame]:
    while frame is not None:
        yield frame
        frame = frame.caller


def _reaches(todo: list[Any], wanted: SymbolicValue, seen: set[int] | None = None) -> bool:
    seen = set() if seen is None else seen
    while todo:
        one = todo.pop()
        if one is wanted:
            return True
        if id(one) not in seen:
            seen.add(id(one))
            todo.extend(_parts(one))
    return False


def _parts(one: Any) -> Iterator[Any]:
    """The objects that an object of the interpreter refers to."""
    if isinstance(one, Frame):
        yield from (one.locals, one.cells, one.stack, one.handled)
    elif isinstance(one, SymbolicValue):
        slots = (name for cls in type(one).__mro__ for name in vars(cls).get("__slots__", ()))
        yield from (getattr(one, n) for n in slots if n not in _WEAK and hasattr(one, n))
    elif isinstance(one, dict):
        yield from one.values()
    elif isinstance(one, (list, tuple)):
        yield from one
