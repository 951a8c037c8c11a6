"""Jumps, loops and returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from weft.capture.bytecode.tables import TABLE
from weft.capture.core.base import SymbolicValue
from weft.capture.core.constant import is_none
from weft.capture.core.frame import Frame, Instruction, opcode
from weft.capture.core.lifetimes import check_held
from weft.capture.library.containers.outside_iterators import OutsideIterator
from weft.capture.library.numbers.numbers_from_tensors import check_truth

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter

#: At the end of a loop FOR_ITER goes on behind the END_FOR (3.13: and the POP_TOP) at its target.
BEHIND_LOOP: Final = {(3, 11): 0, (3, 12): 1, (3, 13): 2}[TABLE.version]
_END_FOR_POPS: Final = 1 if TABLE.version >= (3, 13) else 2


@opcode("RETURN_VALUE")
def return_value(tx: Interpreter, frame: Frame, ins: Instruction) -> SymbolicValue:
    return frame.stack.pop()


@opcode("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT")
def jump(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    frame.pc = ins.target


@opcode("POP_JUMP_IF_TRUE", "POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_BACKWARD_IF_TRUE")
def pop_jump_if_true(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    if _branch(tx, frame, ins, jumps_if=True):
        frame.pc = ins.target


@opcode("POP_JUMP_IF_FALSE", "POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_BACKWARD_IF_FALSE")
def pop_jump_if_false(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    if not _branch(tx, frame, ins, jumps_if=False):
        frame.pc = ins.target


def _branch(tx: Interpreter, frame: Frame, ins: Instruction, jumps_if: bool) -> bool:
    """The truth of the top of the stack.

    If it depends on data and one side of the branch only raises, as in `assert`, assume the other
    side; the graph checks the condition, and if that fails, the frame is run eagerly.
    """
    return truth_at(tx, frame, ins, frame.stack.pop(), jumps_if)


def truth_at(tx: Interpreter, frame: Frame, ins: Instruction, value: SymbolicValue, jumps_if: bool
             ) -> bool:
    """The truth of a value that the jump `ins` tests."""
    if not value.is_constant:
        wanted = _truth_without_raising(frame, ins, jumps_if)
        if wanted is not None and check_truth(tx, value, wanted):
            return wanted
    return value.truth(tx)


def _truth_without_raising(frame: Frame, ins: Instruction, jumps_if: bool) -> bool | None:
    """The condition's value on the only side that does not end in a `raise`; None if there is no
    such side."""
    jump, stay = _only_raises(frame, ins.target), _only_raises(frame, ins.index + 1)
    return None if jump is stay else jumps_if is stay


def _only_raises(frame: Frame, start: int) -> bool:
    """Whether the instructions from there lead to a `raise` without a branch."""
    for ins in frame.program.instructions[start:]:
        if ins.name == "RAISE_VARARGS":
            return True
        if ins.target >= 0 or ins.name.startswith(("RETURN", "RERAISE", "STORE", "DELETE")):
            return False
    return False


@opcode("POP_JUMP_IF_NONE", "POP_JUMP_FORWARD_IF_NONE", "POP_JUMP_BACKWARD_IF_NONE")
def pop_jump_if_none(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    if is_none(frame.stack.pop()):
        frame.pc = ins.target


@opcode("POP_JUMP_IF_NOT_NONE", "POP_JUMP_FORWARD_IF_NOT_NONE", "POP_JUMP_BACKWARD_IF_NOT_NONE")
def pop_jump_if_not_none(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    if not is_none(frame.stack.pop()):
        frame.pc = ins.target


@opcode("JUMP_IF_TRUE_OR_POP")
def jump_if_true_or_pop(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    if frame.stack[-1].truth(tx):
        frame.pc = ins.target
    else:
        frame.stack.pop()


@opcode("JUMP_IF_FALSE_OR_POP")
def jump_if_false_or_pop(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    if frame.stack[-1].truth(tx):
        frame.stack.pop()
    else:
        frame.pc = ins.target


@opcode("GET_ITER")
def get_iter(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    value = frame.pop()
    check_held(tx, value)
    frame.push(value.iter(tx))


@opcode("FOR_ITER")
def for_iter(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    iterator = frame.stack[-1]
    tx.data.turns += 1
    if isinstance(iterator, OutsideIterator) and _is_stored(frame):
        item = iterator.next_unread(tx)  # a counting variable may never be read
    else:
        item = iterator.next(tx)
    if item is None:
        frame.stack.pop()
        frame.pc = ins.target + BEHIND_LOOP
    else:
        frame.stack.append(item)


def _is_stored(frame: Frame) -> bool:
    return frame.program.instructions[frame.pc].name == "STORE_FAST"


@opcode("END_FOR")
def end_for(tx: Interpreter, frame: Frame, ins: Instruction) -> None:
    del frame.stack[-_END_FOR_POPS:]
