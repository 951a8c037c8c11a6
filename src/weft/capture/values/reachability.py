"""Whether an object made while capturing would still be alive in the program.

Place in the pipeline: asked when a weak reference is called. Capture keeps every value; the program
frees an object with its last reference, so what matters is who in the frames under way holds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from weft.capture.frame import Frame
from weft.capture.values.base import SymbolicValue

if TYPE_CHECKING:
    from weft.capture.interpreter import Interpreter

_WEAK = frozenset({"target"})
"""Slots of weak references that do not hold what they refer to."""


def is_held(tx: Interpreter, value: SymbolicValue) -> bool:
    """Whether a variable, an outside object or something reachable from them holds the value."""
    return _reaches([*_frames(tx.frame), *tx.effects.touched()], value)


def holds_itself(value: SymbolicValue) -> bool:
    """Whether the value is in a reference cycle, which the collector frees at some time."""
    return _reaches(list(_parts(value)), value)


def _frames(frame: Frame | None) -> Iterator[Frame]:
    while frame is not None:
        yield frame
        frame = frame.caller


def _reaches(todo: list[Any], wanted: SymbolicValue) -> bool:
    seen: set[int] = set()
    while todo:
        one = todo.pop()
        if one is wanted:
            return True
        if id(one) not in seen:
            seen.add(id(one))
            todo.extend(_parts(one))
    return False


def _parts(one: Any) -> Iterator[Any]:
    """What an object of the interpreter refers to."""
    if isinstance(one, Frame):
        yield from (one.locals, one.cells, one.stack, one.handled)
    elif isinstance(one, SymbolicValue):
        for cls in type(one).__mro__:
            for name in vars(cls).get("__slots__", ()):
                if name not in _WEAK and hasattr(one, name):
                    yield getattr(one, name)
    elif isinstance(one, dict):
        yield from one.values()
    elif isinstance(one, (list, tuple)):
        yield from one
