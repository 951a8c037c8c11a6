"""Instructions that only move stack items, and those without an effect here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.capture.core.base import NULL
from weft.capture.core.frame import Frame, Instruction, opcode
from weft.capture.core.lifetimes import check_let_go

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter


@opcode("NOP", "RESUME", "PRECALL", "CACHE", "EXTENDED_ARG", "RETURN_GENERATOR")
def nop(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    """RETURN_GENERATOR is one: a generator's frame starts suspended behind it."""


@opcode("POP_TOP")
def pop_top(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    check_let_go(tx, frame.stack.pop())


@opcode("PUSH_NULL")
def push_null(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    frame.stack.append(NULL)


@opcode("COPY")
def copy(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    frame.stack.append(frame.stack[-ins.arg])


@opcode("SWAP")
def swap(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    stack = frame.stack
    stack[-1], stack[-ins.arg] = stack[-ins.arg], stack[-1]
