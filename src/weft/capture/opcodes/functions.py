"""Making functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from weft.capture.bytecode.tables import TABLE
from weft.capture.core.base import SymbolicValue
from weft.capture.core.frame import Frame, Instruction, opcode
from weft.capture.library.containers.mapping import DictValue
from weft.capture.library.functions.functions import FunctionValue

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter


def _set_defaults(tx: Interpreter, function: FunctionValue, value: SymbolicValue) -> None:
    function.defaults = tx.unpack(value)


def _set_kwdefaults(tx: Interpreter, function: FunctionValue, value: SymbolicValue) -> None:
    assert isinstance(value, DictValue)
    function.kwdefaults = {
        key.constant(): tx.force(default) for key, default in value.pairs(tx)}


def _set_annotations(tx: Interpreter, function: FunctionValue, value: SymbolicValue) -> None:
    names = tx.unpack(value)
    if isinstance(value, DictValue):
        function.described["__annotations__"] = value
        return
    by_parameter = DictValue()
    for name, annotation in zip(names[::2], names[1::2], strict=True):
        by_parameter.store(tx, name.constant(), name, annotation)
    function.described["__annotations__"] = by_parameter


def _set_closure(tx: Interpreter, function: FunctionValue, value: SymbolicValue) -> None:
    function.closure = list(value.items)  # type: ignore[attr-defined]


_ATTRIBUTES: Final[dict[int, Callable[[Any, FunctionValue, SymbolicValue], None]]] = {
    1: _set_defaults,
    2: _set_kwdefaults,
    4: _set_annotations,
    8: _set_closure,
}


@opcode("MAKE_FUNCTION")
def make_function(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    """Until 3.12 the flags say which other items are on the stack, the highest flag on top."""
    code = frame.pop().constant()
    function = FunctionValue(
        code, frame.globals.original, code.co_qualname, closure=[], defaults=[], kwdefaults={}
    )
    if not TABLE.null_above_callable:  # 3.13 has SET_FUNCTION_ATTRIBUTE instead of flags
        for flag in (8, 4, 2, 1):
            if ins.arg & flag:
                _ATTRIBUTES[flag](tx, function, frame.pop())
    frame.push(function)


@opcode("SET_FUNCTION_ATTRIBUTE")
def set_function_attribute(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    value, function = frame.popn(2)
    assert isinstance(function, FunctionValue)
    _ATTRIBUTES[ins.arg](tx, function, value)
    frame.push(function)
