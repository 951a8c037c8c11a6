"""Instructions that only move stack items, and those without an effect here."""

from __future__ import annotations

from types import GeneratorType
from typing import TYPE_CHECKING

from weft.capture.core.base import NULL
from weft.capture.core.breaks import graph_break
from weft.capture.core.frame import Frame, Instruction, opcode
from weft.capture.core.lifetimes import is_watched_result

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter


@opcode("NOP", "RESUME", "PRECALL", "CACHE", "EXTENDED_ARG", "RETURN_GENERATOR")
def nop(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    """RETURN_GENERATOR is one: a generator's frame starts suspended behind it."""


@opcode("POP_TOP")
def pop_top(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    value = frame.stack.pop()
    if value.source is not None and type(value.real()) is GeneratorType:
        # The end of a loop that was left early: the generator's `finally` runs now.
        raise graph_break("unknown-operation", "a generator from outside that is let go")
    if is_watched_result(tx, value):
        raise graph_break("unknown-operation", f"{value!r}, which is watched, is let go")


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
