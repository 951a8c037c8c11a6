"""The depth of the value stack before each instruction.

A walk over the control flow, exception handlers included::

    depths = stack_depths(body.instructions, body.exceptions)   # -1: cannot be reached
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dis import stack_effect
from opcode import HAVE_ARGUMENT

from .instruction import ExceptionEntry, Instruction
from .tables import OPMAP
from .version import TERMINATORS

_HAS_ARGUMENT = {op for op in OPMAP.values() if op >= HAVE_ARGUMENT}
_RETURN_GENERATOR = OPMAP["RETURN_GENERATOR"]
#: 3.11 books the arguments of a call on PRECALL, although CALL is what pops them.
_PRECALL = OPMAP.get("PRECALL", -1)
_CALL = OPMAP["CALL"]


def stack_size(instructions: Sequence[Instruction], exceptions: Sequence[ExceptionEntry]) -> int:
    """The largest depth before or after any instruction that can be reached from the first."""
    return _walk(instructions, exceptions)[1]


def stack_depths(
    instructions: Sequence[Instruction], exceptions: Sequence[ExceptionEntry]
) -> list[int]:
    """The depth before each instruction; -1 for unreachable ones."""
    return _walk(instructions, exceptions)[0]


def _walk(
    instructions: Sequence[Instruction], exceptions: Sequence[ExceptionEntry]
) -> tuple[list[int], int]:
    order = {id(i): n for n, i in enumerate(instructions)}
    depths = [-1] * len(instructions)
    # Handlers start at a depth of their own, so that they are roots of the walk like the entry.
    work = [(order[id(e.target)], e.depth + e.lasti + 1) for e in exceptions]
    work.append((0, _entry_depth(instructions)))
    deepest = 0
    while work:
        at, depth = work.pop()
        deepest = max(deepest, depth)
        if at < 0 or depths[at] >= depth:
            continue
        depths[at] = depth
        work.extend(_successors(instructions, order, at, depth))
    return depths, deepest


def _entry_depth(instructions: Sequence[Instruction]) -> int:
    """A generator is resumed with one value on its stack, which RETURN_GENERATOR may not count."""
    if stack_effect(_RETURN_GENERATOR, None) > 0:
        return 0
    return int(any(i.opcode == _RETURN_GENERATOR for i in instructions[:16]))


def _successors(
    instructions: Sequence[Instruction], order: dict[int, int], at: int, depth: int
) -> Iterator[tuple[int, int]]:
    """The instructions that may run next, with their depths."""
    instruction = instructions[at]
    if instruction.target is not None:
        yield order[id(instruction.target)], depth + _effect(instruction, True)
    if instruction.opname not in TERMINATORS:
        yield at + 1, depth + _effect(instruction, False)


def _effect(instruction: Instruction, jump: bool) -> int:
    op = instruction.opcode
    if op == _PRECALL:
        return 0
    if op == _CALL and _PRECALL >= 0:
        return -1 - instruction.arg
    return stack_effect(op, instruction.arg if op in _HAS_ARGUMENT else None, jump=jump)
