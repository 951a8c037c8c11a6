"""Instructions that call."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Final, NoReturn

from weft.capture.bytecode.tables import TABLE
from weft.capture.core.base import NULL, Args, Kwargs, SymbolicValue
from weft.capture.core.breaks import graph_break
from weft.capture.core.frame import Frame, Instruction, opcode
from weft.capture.library.classes.attributes import is_iterable
from weft.capture.library.containers.mapping import DictValue, is_mapping_object
from weft.capture.library.containers.sequences import TupleValue
from weft.capture.library.exceptions.exceptions import stop_iteration_error
from weft.capture.library.functions.builtin_rules import attribute_or_none
from weft.capture.library.functions.functions import RULES, BoundMethodValue, FunctionValue
from weft.capture.library.modules.modules import ModuleValue

if TYPE_CHECKING:
    from collections.abc import Callable

    from weft.capture.core.protocols import Interpreter


def call(
    tx: Interpreter, frame: Frame, function: SymbolicValue, args: Args, kwargs: Kwargs
) -> None:
    """Call and push the result.

    The frame of a Python function called here is resumable (`direct_call`): all that this
    instruction still has to do after the call is to push the result.
    """
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
    """Call with `count` arguments from the stack, the last ones by keyword."""
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
    mapping = frame.pop() if ins.arg & 1 else None
    starred = frame.pop()
    function, before = pop_callable(frame)
    kwargs = {} if mapping is None else _keywords(tx, function, mapping)
    if not is_iterable(tx, starred):
        refuse_argument(tx, function, "* must be an iterable", starred)
    args = [tx.force(item) for item in tx.to_list(starred)]
    call(tx, frame, function, [*before, *args], kwargs)


@opcode("DICT_MERGE")
def dict_merge(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    """`f(**mapping)`: like an update, but each key may occur once only."""
    merged = frame.pop()
    function = frame.stack[-ins.arg - (3 if TABLE.null_above_callable else 2)]
    added, target = _merge(tx, function, merged), frame.stack[-ins.arg]
    for key, value in added.pairs(tx):
        if target.contains(tx, key):
            name = _keyword(tx, key)
            text = f"{_function_text(tx, function)} got multiple values for keyword argument"
            raise tx.error(TypeError, f"{text} '{name}'")
        target.setitem(tx, key, value)


def _merge(tx: Interpreter, function: SymbolicValue, mapping: SymbolicValue) -> DictValue:
    if not is_mapping_object(tx.force(mapping)):
        refuse_argument(tx, function, "** must be a mapping", mapping)
    merged = DictValue()
    merged.update_from(tx, mapping)
    return merged


def refuse_argument(
    tx: Interpreter, function: SymbolicValue, text: str, value: SymbolicValue
) -> NoReturn:
    """The error of `function(*given)` or `function(**given)`."""
    kind = tx.force(value).python_type().__name__
    raise tx.error(TypeError, f"{_function_text(tx, function)} argument after {text}, not {kind}")


def _function_text(tx: Interpreter, function: SymbolicValue) -> str:
    """How errors about arguments name a function."""
    name, module = (attribute_or_none(tx, function, a) for a in ("__qualname__", "__module__"))
    if name is None:
        raise graph_break("unknown-operation", f"an error about the arguments of {function!r}")
    where = None if module is None else module.constant()
    prefix = "" if where in (None, "builtins") else f"{where}."
    return f"{prefix}{name.constant()}()"


def _keyword(tx: Interpreter, key: SymbolicValue) -> str:
    name = key.constant()
    if not isinstance(name, str):
        raise tx.error(TypeError, "keywords must be strings")
    return name


def _keywords(tx: Interpreter, function: SymbolicValue, mapping: SymbolicValue) -> Kwargs:
    kwargs: Kwargs = {}
    for key, value in _merge(tx, function, mapping).pairs(tx):
        kwargs[_keyword(tx, key)] = value if value is NULL else tx.force(value)
    return kwargs


# -- CALL_INTRINSIC -------------------------------------------------------------------------------


def _list_to_tuple(tx: Interpreter, value: SymbolicValue) -> SymbolicValue:
    return TupleValue(tx.unpack(value))


def _positive(tx: Interpreter, value: SymbolicValue) -> SymbolicValue:
    return RULES[id(operator.pos)][1].call((tx,), [value], {})


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
