"""`yield` and `yield from` in generators that are made and used inside."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING

from weft.capture.bytecode.tables import TABLE
from weft.capture.core.base import SymbolicValue
from weft.capture.core.breaks import ObservedException, graph_break
from weft.capture.core.constant import NONE, is_none
from weft.capture.core.frame import Frame, Instruction, opcode
from weft.capture.library.functions.generators import GeneratorValue, next_or_stop

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter


@opcode("YIELD_VALUE")
def yield_value(tx: Interpreter, frame: Frame, ins: Instruction) -> SymbolicValue:
    frame.generator.yielded = True
    return frame.pop()


@opcode("GET_YIELD_FROM_ITER")
def get_yield_from_iter(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    value = frame.pop()
    if issubclass(value.python_type(), types.CoroutineType):
        raise graph_break("unknown-operation", "`yield from` of a coroutine")
    frame.push(value if isinstance(value, GeneratorValue) else value.iter(tx))


@opcode("SEND")
def send(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    """Stack: the inner iterator, the value sent; the item replaces the latter."""
    sent = frame.pop()
    inner = frame.stack[-1]
    result: SymbolicValue = NONE
    if isinstance(inner, GeneratorValue):
        item = inner.resume(tx, sent)
        result = inner.result
    else:
        try:
            item = (next_or_stop(tx, inner) if is_none(sent)
                    else inner.method(tx, "send", [sent], {}))
        except ObservedException as error:
            if not issubclass(error.value.python_type(), StopIteration):
                raise
            item, result = None, error.value.getattr(tx, "value")
    if item is not None:
        frame.push(item)
        return
    if TABLE.version == (3, 11):
        frame.pop()
    frame.push(result)
    frame.pc = ins.target


@opcode("END_SEND")
def end_send(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    del frame.stack[-2]


@opcode("CLEANUP_THROW")
def cleanup_throw(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    """Stack: the inner iterator, the value sent, the exception thrown into it."""
    error = frame.stack[-1]
    if not issubclass(error.python_type(), StopIteration):
        raise ObservedException(error, again=True)
    frame.popn(3)
    frame.push(NONE)
    frame.push(error.getattr(tx, "value"))
