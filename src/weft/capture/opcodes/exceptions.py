"""Raising, catching, and `with`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from weft.capture.core.base import MISSING, HandledMarker, SymbolicValue
from weft.capture.core.breaks import ObservedException, graph_break
from weft.capture.core.constant import NONE, boolean, is_none
from weft.capture.core.frame import Frame, Instruction, opcode
from weft.capture.library.classes.attributes import type_lookup
from weft.capture.library.classes.classes import ClassValue
from weft.capture.library.classes.instances import ObjectValue
from weft.capture.library.exceptions import group_polyfills
from weft.capture.library.exceptions.exceptions import ExceptionValue, is_exception, traceback_of

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter


# -- raising --------------------------------------------------------------------------------------


def instantiate(tx: Interpreter, value: SymbolicValue) -> SymbolicValue:
    """The exception that `raise value` raises."""
    kind = value.python_type() if not isinstance(value, ClassValue) else value.cls
    if BaseException not in kind.__mro__:
        raise tx.error(TypeError, "exceptions must derive from BaseException")
    error = tx.call(value, []) if isinstance(value, ClassValue) else value
    if not is_exception(error):
        raise graph_break("unknown-operation", f"raising {value!r}")
    return error


@opcode("RAISE_VARARGS")
def raise_varargs(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    if ins.arg == 0:
        current = frame.handled_exception()
        if current is None:
            raise tx.error(RuntimeError, "No active exception to reraise")
        raise ObservedException(current, again=True)
    cause = frame.pop() if ins.arg == 2 else None
    value = instantiate(tx, frame.pop())
    if cause is not None and isinstance(value, ExceptionValue):
        value.set_link(tx, "__cause__", _cause(tx, cause))
    raise ObservedException(value)


def _cause(tx: Interpreter, value: SymbolicValue) -> SymbolicValue:
    """The cause that `raise error from value` sets."""
    cause = tx.call(value, []) if isinstance(value, ClassValue) else value
    if is_none(cause):
        return NONE
    if is_exception(cause):
        return cause
    if cause is not value:
        raise graph_break("unknown-operation", f"{value!r} as the cause of an exception")
    raise tx.error(TypeError, "exception causes must derive from BaseException")


@opcode("RERAISE")
def reraise(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    if ins.arg:  # the frame is taken back to where the exception was raised
        frame.last_offset = frame.stack[-1 - ins.arg].constant()
    raise ObservedException(frame.pop(), again=True)


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
    frame.push(boolean(_catches(classes, frame.stack[-1].python_type())))


def _catches(classes: object, kind: type) -> bool:
    """Whether `except classes` catches exceptions of the kind (metaclasses are not consulted)."""
    if isinstance(classes, tuple):
        return any(_catches(cls, kind) for cls in classes)
    return classes in kind.__mro__


def _are_exceptions(classes: object) -> bool:
    if isinstance(classes, tuple):
        return all(_are_exceptions(cls) for cls in classes)
    return isinstance(classes, type) and BaseException in classes.__mro__


@opcode("CHECK_EG_MATCH")
def check_eg_match(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    kinds, error = frame.pop(), frame.pop()
    rest, matching = tx.unpack(_python(tx, group_polyfills.check_match, error, kinds))
    frame.push(rest)
    frame.push(matching)
    if not is_none(matching):
        frame.handled[-1] = matching
        markers = (item for item in reversed(frame.stack) if isinstance(item, HandledMarker))
        next(marker for marker in markers if marker.active).exception = matching


@opcode("PREP_RERAISE_STAR")
def prepare_reraise(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    raised, error = frame.pop(), frame.pop()
    frame.push(_python(tx, group_polyfills.prepare_reraise, error, raised))


@opcode("CALL_INTRINSIC_2")
def call_intrinsic_2(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    if ins.arg != _PREPARE_RERAISE:
        raise graph_break("unknown-opcode", f"CALL_INTRINSIC_2 {ins.arg}")
    prepare_reraise(tx, frame, ins)


_PREPARE_RERAISE: Final = 1


def _python(tx: Interpreter, function: object, *args: SymbolicValue) -> SymbolicValue:
    """A polyfill as a value."""
    return tx.force(tx.call_python(function, [*args]))


# -- with -----------------------------------------------------------------------------------------


def special_method(tx: Interpreter, value: SymbolicValue, name: str) -> SymbolicValue:
    """The method that the class of `value` defines."""
    if isinstance(value, ObjectValue):
        method = value.special(tx, name)
        if method is not None:
            return method
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
    args = [tx.wrap_fixed(kind, kind.__name__), error, traceback_of(tx, error)]
    frame.push(tx.force(tx.call(frame.stack[-4], args)))
