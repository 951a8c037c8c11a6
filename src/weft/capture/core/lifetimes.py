"""How long the program's objects live, where the program can see it.

Place in the pipeline: asked by instructions that drop a variable, by weak references, and where a
continuation's variables are chosen. Freeing an object may have an effect: a `__del__`, a weak
reference's callback, a lock or file that is closed. Then the graph must end before the object is
freed, and a continuation must hold it as long as the frame would have::

    def f(x):
        lock = Lock(path)          # passed on to the continuation, although it is not read again
        print("working")
        return x * 2

Objects from outside the frame are real ones, so Python's weak references and `gc` can be asked.
Those made while capturing are values, which capture keeps: there, what matters is which frames hold
them.
"""

from __future__ import annotations

import gc
import types
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, final

import torch

from weft.capture.bytecode.liveness import live_locals
from weft.capture.core.base import SymbolicValue, is_heap_type
from weft.capture.core.breaks import graph_break
from weft.capture.core.frame import Frame
from weft.capture.core.source import Reference

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter

_LONG_LIVED: Final = (type, types.FunctionType, types.ModuleType, torch.Tensor, torch.nn.Module)
"""Types whose weak references say nothing; tensors should be freed early."""

_LEAVING: Final = (type, memoryview)
"""A class leaves its bases' `__subclasses__` and the registries of abstract classes, a view lets
its memory be resized again."""

_WEAK: Final = frozenset({"target"})
"""Slots of weak references, which do not keep objects alive."""

_PATIENCE: Final = 200_000
"""A watched object counts as freed if it was not found among this many objects."""


# -- objects from outside -------------------------------------------------------------------------


def frame_variables(frame: Frame, code: types.CodeType, offset: int) -> list[str]:
    """The bound variables that a continuation at `offset` needs.

    These are the variables that the code may still read, and those whose object does something when
    it is freed and so must live as long as the frame.
    """
    live = live_locals(code, offset)
    names = dict.fromkeys(
        n for n in (*code.co_varnames, *code.co_cellvars)
        if n in live or acts_when_freed(frame.locals.get(n), frame.stack))
    return [n for n in names if n in frame.locals or n in frame.cells]


def acts_when_freed(value: SymbolicValue | None, used: list[SymbolicValue]) -> bool:
    """Whether freeing an object may have an effect that the program sees.

    It may if the object looks like one that holds a resource (a lock, a temporary directory) or if
    it is referred to weakly; `used` are the values of the operation at the break, which may refer
    to it.
    """
    if value is None:
        return False
    if value.weakly_held or (value.weakly_held is not None and any(v is value for v in used)):
        return True
    if value.source is None:
        return issubclass(value.python_type(), _LEAVING)
    obj = value.outside_object()
    if issubclass(type(obj), _LEAVING):
        return True
    if issubclass(type(obj), (int, float, str)) and type(obj).__weakrefoffset__ and any(
            v is value for v in used):
        return True
    if any(hasattr(type(obj), name) for name in ("__del__", "__exit__", "close")):
        return True
    function = issubclass(type(obj), types.FunctionType)
    return (function or not issubclass(type(obj), _LONG_LIVED)) and any(
        type(reference) is not Reference for reference in weakref.getweakrefs(obj))


def is_watched(obj: object) -> bool:
    """Whether freeing an outside object, and with it what its attributes hold, has an effect."""
    if _acts_alone(obj):
        return True
    if not is_heap_type(type(obj)) or issubclass(type(obj), _LONG_LIVED):
        return False  # objects of C's classes are not asked what they hold
    held = gc.get_referents(obj)
    held += [item for part in held if type(part) is dict for item in part.values()]
    return any(map(_acts_alone, held))


def _acts_alone(obj: object) -> bool:
    """Whether the object has a weak reference with a callback, or a `__del__` in Python."""
    cls = type(obj)
    if isinstance(getattr(cls, "__del__", None), types.FunctionType):
        return True
    return not issubclass(cls, _LONG_LIVED) and any(
        type(reference) in weakref.ProxyTypes or reference.__callback__ is not None
        for reference in weakref.getweakrefs(obj))  # a proxy has the attributes of the object


def check_held(tx: Interpreter, value: SymbolicValue) -> None:
    """Break the graph before an iterator becomes the only holder of a watched object: the real
    iterator frees it at its end."""
    if is_watched_result(tx, value):
        raise graph_break("unknown-operation", f"an iterator over {value!r}, which is watched")


def check_let_go(tx: Interpreter, value: SymbolicValue) -> None:
    """Break the graph before the stack lets go of an object from outside, if that may free it and
    freeing it has an effect."""
    if value.source is not None and type(value.real()) is types.GeneratorType:
        # The end of a loop that was left early: the generator's `finally` runs now.
        raise graph_break("unknown-operation", "a generator from outside that is let go")
    if is_watched_result(tx, value):
        raise graph_break("unknown-operation", f"{value!r}, which is watched, is let go")


def is_watched_result(tx: Interpreter, value: SymbolicValue) -> bool:
    """Whether only the stack holds a watched object: the operation of the last break gave it."""
    place = value.source
    if tx.root is None or place is None or place.base or place.accessor[0] != "local":
        return False
    return tx.root.code.co_varnames[place.accessor[1]].startswith(".stack") and is_watched(
        value.outside_object())


def check_kept(obj: object) -> None:
    """Break the graph before an outside container loses an object, if that may free the object and
    freeing it has an effect."""
    if _acts_alone(obj):
        raise graph_break("unknown-operation",
                          f"a container loses a {type(obj).__name__}, which is watched")


# -- objects made while capturing -----------------------------------------------------------------


def check_left(tx: Interpreter, frame: Frame) -> None:
    """Break the graph before an exception leaves an inlined frame whose variables alone hold an
    object that is referred to weakly: Python's traceback keeps them alive, that of a replacement
    does not."""
    if frame.caller is None:
        return
    weak = [held for held in frame.locals.values()
            if held.source is None and held.weakly_held]
    if not all(_is_held_from(tx, frame.caller, held) for held in weak):
        raise graph_break("watched-object", "an exception leaves what is referred to weakly")


@final
class Lifetimes:
    """Objects whose end of life the program may notice (`tx.lifetimes`)."""

    def __init__(self) -> None:
        self.deleted: list[Any] = []
        """Outside objects whose variables the root frame has deleted."""
        self.step = 0
        """The outermost frame's step when all watched objects were held last."""
        self._watched: dict[int, tuple[SymbolicValue, Frame | None, str]] = {}
        """Objects whose end of life has an effect, each with the variable that held it last."""
        self._n_visited = 0

    def watch(self, value: SymbolicValue) -> None:
        """Watch another object."""
        self._watched[id(value)] = (value, None, "")

    @property
    def count(self) -> int:
        """How many objects have been noted."""
        return len(self.deleted) + len(self._watched)

    def all_held(self, tx: Interpreter) -> bool:
        """Whether all watched objects are still alive after the last instruction."""
        return self._n_visited < _PATIENCE and all(
            self._holds(tx, frame, name, value) or self._find(tx, value)
            for value, frame, name in list(self._watched.values()))

    def _holds(self, tx: Interpreter, frame: Frame | None, name: str, value: SymbolicValue
               ) -> bool:
        """Whether the variable that held the object still does."""
        if frame is None or not any(frame is other for other in _frames(tx.frame)):
            return False
        return self._leads(tx, frame.locals.get(name), value)

    def _find(self, tx: Interpreter, value: SymbolicValue) -> bool:
        """Look for the object in all variables, and note the one that holds it."""
        for frame in _frames(tx.frame):
            for name, held in frame.locals.items():
                if self._leads(tx, held, value):
                    self._watched[id(value)] = (value, frame, name)
                    return True
        return self._leads(tx, [*_frames(tx.frame), *tx.effects.touched()], value)

    def _leads(self, tx: Interpreter, start: object, value: SymbolicValue) -> bool:
        seen: set[int] = set()
        reached = _reaches(tx, [start], value, seen)
        self._n_visited += len(seen)
        return reached


def is_held(tx: Interpreter, value: SymbolicValue) -> bool:
    """Whether a variable, an outside object, or something reachable from them refers to the
    value."""
    return _is_held_from(tx, tx.frame, value)


def _is_held_from(tx: Interpreter, frame: Frame | None, value: SymbolicValue) -> bool:
    """As `is_held`, by the variables of a frame and its callers."""
    return _reaches(tx, [*_frames(frame), *tx.effects.touched()], value)


def holds_itself(tx: Interpreter, value: SymbolicValue) -> bool:
    """Whether the value is in a reference cycle, so that the garbage collector frees it."""
    return _reaches(tx, list(_parts(tx, value)), value)


def _frames(frame: Frame | None) -> Iterator[Frame]:
    while frame is not None:
        yield frame
        frame = frame.caller


def _reaches(tx: Interpreter, todo: list[Any], wanted: SymbolicValue,
             seen: set[int] | None = None) -> bool:
    seen = set() if seen is None else seen
    while todo:
        item = todo.pop()
        if item is wanted:
            return True
        if id(item) not in seen:
            seen.add(id(item))
            todo.extend(_parts(tx, item))
    return False


def outside_values(tx: Interpreter, value: SymbolicValue) -> list[SymbolicValue]:
    """The values from outside that a value made by the program refers to."""
    outside: list[SymbolicValue] = []
    seen: set[int] = set()
    todo: list[Any] = [value]
    while todo:
        item = todo.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, SymbolicValue) and item.source is not None:
            outside.append(item)
        else:
            todo.extend(_parts(tx, item))
    return outside


def _parts(tx: Interpreter, item: object) -> Iterator[object]:
    """The objects that an object of the interpreter refers to."""
    if isinstance(item, Frame):
        yield from (item.locals, item.cells, item.stack, item.handled)
    elif isinstance(item, SymbolicValue):
        slots = (name for cls in type(item).__mro__ for name in vars(cls).get("__slots__", ()))
        yield from (getattr(item, n) for n in slots if n not in _WEAK and hasattr(item, n))
    elif isinstance(item, dict):
        yield from item.values()
    elif isinstance(item, (list, tuple)):
        yield from item
    elif tx.classes.made and issubclass(type(item), type) and item in tx.classes.made:
        yield tx.classes.made[item]  # the model of a class: what its recipe holds
