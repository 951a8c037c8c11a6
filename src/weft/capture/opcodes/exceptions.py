"""Raising, catching, and `with`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.capture.breaks import ObservedException, graph_break
from weft.capture.frame import Frame, Instruction, opcode
from weft.capture.values.attributes import type_lookup
from weft.capture.values.base import MISSING, HandledMarker, SymbolicValue
from weft.capture.values.classes import ClassValue
from weft.capture.values.constant import NONE, boolean
from weft.capture.values.exceptions import (
    ExceptionValue,
    is_exception,
    new_exception,
    traceback_of,
)
from weft.capture.values.objects import ObjectValue

if TYPE_CHECKING:
    from weft.capture.interpreter import Interpreter


# -- raising --------------------------------------------------------------------------------------


def instantiate(tx: Interpreter, value: SymbolicValue) -> SymbolicValue:
    """The exception that `raise value` raises."""
    made = tx.call(value, []) if isinstance(value, ClassValue) else value
    if not is_exception(made):
        raise tx.error(TypeError, "exceptions must derive from BaseException")
    return made


@opcode("RAISE_VARARGS")
def raise_varargs(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    if ins.arg == 0:
        current = frame.handled_exception()
        if current is None:
            raise tx.error(RuntimeError, "No active exception to reraise")
        raise ObservedException(current)
    cause = frame.pop() if ins.arg == 2 else None
    value = instantiate(tx, frame.pop())
    if cause is not None and isinstance(value, ExceptionValue):
        is_none = cause.is_constant and cause.constant() is None
        value.set_link(tx, "__cause__", NONE if is_none else instantiate(tx, cause))
    raise ObservedException(value)


@opcode("RERAISE")
def reraise(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    raise ObservedException(frame.pop())


def stop_iteration_error(tx: Interpreter, error: SymbolicValue) -> SymbolicValue:
    """What leaves a generator when its body raises StopIteration (PEP 479)."""
    if not issubclass(error.python_type(), StopIteration):
        return error
    made = new_exception(RuntimeError, [tx.wrap_new("generator raised StopIteration")])
    made.set_link(tx, "__cause__", error)
    made.set_link(tx, "__context__", error)
    return made


# -- catching -------------------------------------------------------------------------------------


@opcode("PUSH_EXC_INFO")
def push_exc_info(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    error = frame.pop()
    frame.handled.append(error)
    frame.push(HandledMarker(error))
    frame.push(error)


@opcode("POP_EXCEPT")
def pop_except(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    marker = frame.pop()
    if isinstance(marker, HandledMarker):
        marker.active = False
    frame.handled.pop()


@opcode("CHECK_EXC_MATCH")
def check_exc_match(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    wanted = frame.pop()
    classes = wanted.constant() if wanted.is_constant else None
    if not _are_exceptions(classes):
        text = "catching classes that do not inherit from BaseException is not allowed"
        raise tx.error(TypeError, text)
    frame.push(boolean(issubclass(frame.stack[-1].python_type(), classes)))  # type: ignore[arg-type]


def _are_exceptions(classes: object) -> bool:
    if isinstance(classes, tuple):
        return all(_are_exceptions(one) for one in classes)
    return isinstance(classes, type) and issubclass(classes, BaseException)


# -- with -----------------------------------------------------------------------------------------


def special_method(tx: Interpreter, value: SymbolicValue, name: str) -> SymbolicValue:
    """The method that the class of `value` defines."""
    if isinstance(value, ObjectValue):
        found = value.special(tx, name)
        if found is not None:
            return found
    elif type_lookup(value.python_type(), name) is not MISSING:
        return value.getattr(tx, name)
    kind = value.python_type().__name__
    missed = " (missed __exit__ method)" if name == "__exit__" else ""
    text = f"'{kind}' object does not support the context manager protocol{missed}"
    raise tx.error(TypeError, text)


@opcode("BEFORE_WITH")
def before_with(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    manager = frame.pop()
    enter = special_method(tx, manager, "__enter__")
    leave = special_method(tx, manager, "__exit__")
    entered = tx.call(enter, [])
    frame.push(leave)
    frame.push(tx.force(entered))


@opcode("WITH_EXCEPT_START")
def with_except_start(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    """Stack: `__exit__`, the raising instruction, what was handled before, the exception."""
    error = frame.stack[-1]
    if not is_exception(error):
        raise graph_break("unknown-value", f"{error!r} raised in a with block")
    kind = error.python_type()
    args = [tx.wrap_fixed(kind, kind.__name__), error, traceback_of(error)]
    frame.push(tx.force(tx.call(frame.stack[-4], args)))
