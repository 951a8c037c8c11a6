"""Instructions that only move stack items, and those that mean nothing here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.capture.frame import Frame, Instruction, opcode
from weft.capture.values.base import NULL

if TYPE_CHECKING:
    from weft.capture.interpreter import Interpreter


@opcode("NOP", "RESUME", "PRECALL", "CACHE", "EXTENDED_ARG", "RETURN_GENERATOR")
def nop(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    """A generator's frame is suspended before it begins, so that RETURN_GENERATOR is behind it."""


@opcode("POP_TOP")
def pop_top(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    frame.stack.pop()


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
