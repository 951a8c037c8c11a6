"""How deep the value stack gets: a walk over the control flow, exception handlers included."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dis import stack_effect

from .instruction import ExceptionEntry, Instruction
from .tables import OPMAP
from .version import TERMINATORS

_HAS_ARGUMENT = {
    op for op in OPMAP.values() if op >= __import__("opcode").HAVE_ARGUMENT
}


def stack_size(instructions: Sequence[Instruction], exceptions: Sequence[ExceptionEntry]) -> int:
    """The greatest depth at any instruction that can be reached from the first."""
    if not instructions:
        return 0
    order = {id(i): n for n, i in enumerate(instructions)}
    depths = [-1] * len(instructions)
    deepest = 0
    # Handlers start at a depth of their own, so that they are roots of the walk like the entry.
    work = [(order[id(e.target)], e.depth + e.lasti + 1) for e in exceptions]
    work.append((0, 0))
    while work:
        at, depth = work.pop()
        if depths[at] >= depth:
            continue
        depths[at] = depth
        deepest = max(deepest, depth)
        for successor, after in _successors(instructions, order, at, depth):
            deepest = max(deepest, after)
            if successor >= 0:
                work.append((successor, after))
    return deepest


def _successors(
    instructions: Sequence[Instruction], order: dict[int, int], at: int, depth: int
) -> Iterator[tuple[int, int]]:
    """The instructions that may run next with the depth there (-1: nothing follows)."""
    instruction = instructions[at]
    op = instruction.opcode
    arg = instruction.arg if op in _HAS_ARGUMENT else None
    if instruction.target is not None:
        yield order[id(instruction.target)], depth + stack_effect(op, arg, jump=True)
    if instruction.opname in TERMINATORS:
        yield -1, depth
    else:
        yield at + 1, depth + stack_effect(op, arg, jump=False)
