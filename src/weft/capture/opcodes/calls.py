"""Calls of every shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from weft.capture.breaks import graph_break
from weft.capture.bytecode.tables import TABLE
from weft.capture.frame import Frame, Instruction, opcode
from weft.capture.values.base import NULL, Args, Kwargs, SymbolicValue
from weft.capture.values.exceptions import stop_iteration_error
from weft.capture.values.functions import BoundMethodValue, FunctionValue
from weft.capture.values.mapping import DictValue
from weft.capture.values.modules import ModuleValue
from weft.capture.values.sequences import TupleValue

if TYPE_CHECKING:
    from collections.abc import Callable

    from weft.capture.interpreter import Interpreter


def call(
    tx: Interpreter, frame: Frame, function: SymbolicValue, args: Args, kwargs: Kwargs
) -> None:
    """Call and push the result. The frame of a Python function called here can be left and resumed
    in the middle (`direct_call`): all that this instruction has still to do is to push."""
    if isinstance(function, BoundMethodValue):
        tx.direct_call = isinstance(function.function, FunctionValue)
    else:
        tx.direct_call = isinstance(function, (FunctionValue, ModuleValue))
    result = function.call(tx, args, kwargs)
    tx.direct_call = False
    frame.stack.append(tx.force(result))


def pop_callable(frame: Frame) -> tuple[SymbolicValue, Args]:
    """The callable under the arguments, and the first argument if the pair was (function, self)."""
    first, second = frame.popn(2)
    if TABLE.null_above_callable:
        return (first, []) if second is NULL else (first, [second])
    return (second, []) if first is NULL else (first, [second])


def call_with_names(tx: Interpreter, frame: Frame, count: int, names: tuple[str, ...]) -> None:
    """A call with `count` arguments on the stack, the last ones by keyword."""
    args = frame.popn(count)
    kwargs = dict(zip(names, args[count - len(names) :], strict=True))
    function, before = pop_callable(frame)
    call(tx, frame, function, [*before, *args[: count - len(names)]], kwargs)


@opcode("KW_NAMES")
def kw_names(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    frame.kw_names = ins.argval


@opcode("CALL")
def call_opcode(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    names, frame.kw_names = frame.kw_names, ()
    call_with_names(tx, frame, ins.arg, names)


@opcode("CALL_KW")
def call_kw(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    names = frame.pop().constant()
    call_with_names(tx, frame, ins.arg, names)


@opcode("CALL_FUNCTION_EX")
def call_function_ex(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    kwargs = _keywords(tx, frame.pop()) if ins.arg & 1 else {}
    args = [tx.force(item) for item in tx.unpack(frame.pop())]
    function, before = pop_callable(frame)
    call(tx, frame, function, [*before, *args], kwargs)


def _keywords(tx: Interpreter, mapping: SymbolicValue) -> Kwargs:
    made = DictValue()
    made.update_from(tx, mapping)
    kwargs: Kwargs = {}
    for key, value in made.pairs(tx):
        name = key.constant()
        if not isinstance(name, str):
            raise tx.error(TypeError, "keywords must be strings")
        kwargs[name] = value if value is NULL else tx.force(value)
    return kwargs


# -- CALL_INTRINSIC -------------------------------------------------------------------------------


def _list_to_tuple(tx: Interpreter, value: SymbolicValue) -> SymbolicValue:
    return TupleValue(tx.unpack(value))


def _positive(tx: Interpreter, value: SymbolicValue) -> SymbolicValue:
    if value.is_constant:
        return tx.wrap_new(+value.constant())
    return value.method(tx, "__pos__", [], {})


_INTRINSICS: Final[dict[int, Callable[[Interpreter, SymbolicValue], SymbolicValue]]] = {
    3: stop_iteration_error,
    5: _positive,
    6: _list_to_tuple,
}


@opcode("CALL_INTRINSIC_1")
def call_intrinsic(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    function = _INTRINSICS.get(ins.arg)
    if function is None:
        raise graph_break("unknown-opcode", f"CALL_INTRINSIC_1 {ins.arg}")
    frame.push(function(tx, frame.pop()))
