"""Unary, binary, comparison and subscription operators."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Final

from weft.capture.bytecode.tables import TABLE
from weft.capture.core.constant import boolean, constant
from weft.capture.core.frame import Frame, Instruction, opcode
from weft.capture.core.operator_names import ARITHMETIC, IN_PLACE
from weft.capture.library.containers.sequences import make_slice
from weft.capture.library.functions.functions import RULES
from weft.capture.opcodes.control import truth_at

if TYPE_CHECKING:
    from weft.capture.core.base import SymbolicValue
    from weft.capture.core.protocols import Interpreter

_BINARY: Final = (*ARITHMETIC, *IN_PLACE)
"""Names of the operator module by the argument of BINARY_OP."""

COMPARISONS: Final = {"<": "lt", "<=": "le", "==": "eq", "!=": "ne", ">": "gt", ">=": "ge"}
TO_BOOL: Final = 16 if TABLE.version >= (3, 13) else 0


def _register_unary(name: str, function: object) -> None:
    own = RULES[id(function)][1]

    @opcode(name)
    def unary(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
        frame.push(own.call((tx,), [frame.pop()], {}))


_register_unary("UNARY_NEGATIVE", operator.neg)
_register_unary("UNARY_POSITIVE", operator.pos)
_register_unary("UNARY_INVERT", operator.invert)


@opcode("UNARY_NOT")
def unary_not(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    frame.push(boolean(not frame.pop().truth(tx)))


@opcode("TO_BOOL")
def to_bool(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    frame.push(_as_bool(tx, frame, frame.pop()))


def _as_bool(tx: Interpreter, frame: Frame, value: SymbolicValue) -> SymbolicValue:
    """The truth of a value; if a jump follows, as that jump tests it."""
    jump = frame.program.instructions[frame.pc]
    if jump.name in ("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE"):
        return boolean(truth_at(tx, frame, jump, value, jump.name == "POP_JUMP_IF_TRUE"))
    return boolean(value.truth(tx))


@opcode("BINARY_OP")
def binary_op(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    left, right = frame.popn(2)
    frame.push(tx.binary(_BINARY[ins.arg], left, right))


@opcode("COMPARE_OP")
def compare_op(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    left, right = frame.popn(2)
    result = tx.binary(COMPARISONS[ins.argval], left, right)
    frame.push(_as_bool(tx, frame, result) if ins.arg & TO_BOOL else result)


@opcode("IS_OP")
def is_op(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    left, right = frame.popn(2)
    frame.push(boolean(tx.same(left, right) is not bool(ins.arg)))


@opcode("CONTAINS_OP")
def contains_op(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    item, container = frame.popn(2)
    frame.push(boolean(container.contains(tx, item) is not bool(ins.arg)))


# -- subscriptions --------------------------------------------------------------------------------


@opcode("BINARY_SUBSCR")
def binary_subscr(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    container, key = frame.popn(2)
    frame.push(container.getitem(tx, key))


@opcode("STORE_SUBSCR")
def store_subscr(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    value, container, key = frame.popn(3)
    container.setitem(tx, key, value)


@opcode("DELETE_SUBSCR")
def delete_subscr(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    container, key = frame.popn(2)
    container.delitem(tx, key)


@opcode("BINARY_SLICE")
def binary_slice(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    container, start, stop = frame.popn(3)
    frame.push(container.getitem(tx, make_slice([start, stop])))


@opcode("STORE_SLICE")
def store_slice(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    value, container, start, stop = frame.popn(4)
    container.setitem(tx, make_slice([start, stop]), value)


@opcode("BUILD_SLICE")
def build_slice(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    frame.push(make_slice(frame.popn(ins.arg)))


@opcode("GET_LEN")
def get_len(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    frame.push(constant(frame.stack[-1].length(tx)))
