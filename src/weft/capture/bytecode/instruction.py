"""The instruction model: what the disassembler gives and the assembler takes.

An `Instruction` is one operation with its EXTENDED_ARG prefixes and CACHE units folded in; jumps
and exception table entries point at instructions, not at offsets, so that code can be cut and
moved before it is assembled again::

    code = disassemble(f.__code__)
    for instruction in code.instructions:
        print(instruction)              #   10  LOAD_ATTR  12  'relu'
    code.at(10).positions               # (3, 3, 8, 14): line, end line, column, end column
    code.handler_of(code.at(10))        # ExceptionEntry or None: where its exceptions go
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, final

#: line, end line, column, end column; None where the compiler recorded none.
Positions = tuple[int | None, int | None, int | None, int | None]

NO_POSITIONS: Positions = (None, None, None, None)


@final
@dataclass(slots=True, eq=False)
class Instruction:
    """One operation. `arg` is what is encoded (recomputed for jumps); `argval` is its meaning.

    `argval` by operation: the constant; the name; the local or cell variable's name (a pair of
    names for 3.13's paired instructions); a jump's target offset; the comparison operator's text;
    otherwise the number itself. `flags` are the low bits that are no part of an index (LOAD_GLOBAL:
    1 = also push NULL).
    """

    opcode: int
    opname: str
    arg: int = 0
    argval: Any = None
    flags: int = 0
    target: Instruction | None = None
    positions: Positions = NO_POSITIONS
    #: Byte offset in the code it was read from, of its first EXTENDED_ARG if it has any; or -1.
    offset: int = -1
    #: Index in the instruction list it was read from; or -1.
    index: int = -1

    @property
    def line(self) -> int | None:
        return self.positions[0]

    def __str__(self) -> str:
        shown = f"to {self.target.offset}" if self.target is not None else repr(self.argval)
        return f"{self.offset:5}  {self.opname:<24} {self.arg:<5} {shown}"

    def __repr__(self) -> str:
        return f"<{str(self).strip()}>"


@final
@dataclass(slots=True, eq=False)
class ExceptionEntry:
    """An exception raised in `start`..`end` (both included) unwinds the stack to `depth`,
    pushes the index of the raising instruction if `lasti`, then the exception, and goes to
    `target`."""

    start: Instruction
    end: Instruction
    target: Instruction
    depth: int
    lasti: bool


@final
@dataclass(slots=True, eq=False)
class Bytecode:
    """A disassembled code object. Shared and cached: read it, copy before changing it."""

    instructions: list[Instruction]
    exceptions: list[ExceptionEntry]
    _by_offset: dict[int, Instruction] = field(default_factory=dict)
    _handlers: list[ExceptionEntry | None] | None = None

    def at(self, offset: int) -> Instruction:
        """The instruction that starts at a byte offset (prefixes count as its start)."""
        return self._by_offset[offset]

    def handler_of(self, instruction: Instruction) -> ExceptionEntry | None:
        """The entry that protects an instruction of this code."""
        if self._handlers is None:
            self._handlers = self._spread_handlers()
        return self._handlers[instruction.index]

    def _spread_handlers(self) -> list[ExceptionEntry | None]:
        handlers: list[ExceptionEntry | None] = [None] * len(self.instructions)
        for entry in self.exceptions:
            first, last = entry.start.index, entry.end.index
            handlers[first : last + 1] = [entry] * (last + 1 - first)
        return handlers

    def __str__(self) -> str:
        lines = [str(i) for i in self.instructions]
        lines += [
            f"{e.start.offset} to {e.end.offset} -> {e.target.offset} [{e.depth}]"
            + (" lasti" if e.lasti else "")
            for e in self.exceptions
        ]
        return "\n".join(lines)
