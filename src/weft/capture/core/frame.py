"""Frames: the state of one Python function under interpretation, and its decoded program.

Place in the pipeline: data of the interpreter. `decode(code)` looks every handler up once per code
object; a `Frame` is a program counter, a stack and variables over such a program.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, final

from weft.capture import bytecode
from weft.capture.core.breaks import graph_break
from weft.capture.core.tracebacks import Place
from weft.errors import SourceLine
from weft.registrar import registrar

if TYPE_CHECKING:
    from weft.capture.core.base import Namespace, SymbolicValue
    from weft.capture.core.cell import CellValue
    from weft.capture.core.protocols import Interpreter

Handler = Callable[["Interpreter", "Frame", "Instruction"], Any]

OPCODES: dict[str, Handler] = {}
"""Handlers by opcode name; filled by the modules of `opcodes/`."""

opcode = registrar(OPCODES)
"""Register the handler of some opcodes."""


@final
class Instruction:
    """A decoded instruction: its handler, its operands, and its line."""

    __slots__ = ("arg", "argval", "flags", "handler", "index", "line", "name", "offset", "place",
                 "target")

    def __init__(self, raw: bytecode.Instruction, line: int) -> None:
        self.name = raw.opname
        self.arg = raw.arg
        self.argval = raw.argval
        self.flags = raw.flags
        self.offset = raw.offset
        self.index = raw.index
        self.line = line
        self.target = -1 if raw.target is None else raw.target.index
        self.place: SourceLine | None = None
        """The user's line; made when first needed."""
        self.handler = OPCODES.get(raw.opname, unknown_opcode)


def unknown_opcode(tx: Interpreter, frame: Frame, ins: Instruction) -> object:
    """Stands in for opcodes without a handler."""
    raise graph_break("unknown-opcode", f"the instruction {ins.name}")


@final
@dataclass(slots=True)
class Protected:
    """An entry of the exception table, in instruction indices; `end` is inclusive."""

    start: int
    end: int
    target: int
    depth: int
    lasti: bool


@final
class Program:
    """A decoded code object."""

    __slots__ = ("by_offset", "file", "instructions", "protected")

    def __init__(self, code: types.CodeType) -> None:
        body = bytecode.disassemble(code)
        self.file = code.co_filename
        self.instructions = _decode(body, code.co_firstlineno)
        self.by_offset = {ins.offset: ins.index for ins in self.instructions}
        self.protected = [
            Protected(row.start.index, row.end.index, row.target.index, row.depth, row.lasti)
            for row in body.exceptions
        ]

    def handler_of(self, index: int) -> Protected | None:
        """The entry of the exception table that protects the instruction, or None."""
        return next((row for row in self.protected if row.start <= index <= row.end), None)


def _decode(body: bytecode.Bytecode, line: int) -> list[Instruction]:
    decoded: list[Instruction] = []
    for raw in body.instructions:
        at = raw.positions[0]
        line = at if at is not None else line
        decoded.append(Instruction(raw, line))
    return decoded


_programs: bytecode.PerCode[Program] = bytecode.PerCode()


def decode(code: types.CodeType) -> Program:
    """The program of a code object; cached for as long as the code lives."""
    program = _programs.get(code)
    if program is None:
        program = _programs[code] = Program(code)
    return program


@final
class Frame:
    """The state of one Python function call under interpretation."""

    __slots__ = ("_callers", "called_here", "caller", "cells", "code", "current", "generator",
                 "globals", "handled", "kw_names", "last_offset", "locals", "modules", "pc",
                 "program", "resumable", "stack", "step", "value")

    def __init__(
        self, code: types.CodeType, globals: Namespace, locals: dict[str, SymbolicValue],
        cells: dict[str, CellValue], caller: Frame | None,
    ) -> None:
        self.code = code
        self.program = decode(code)
        self.globals = globals
        self.locals = locals
        self.cells = cells
        self.caller = caller
        self.stack: list[SymbolicValue] = []
        self._callers: tuple[SourceLine, ...] | None = None
        self.modules: dict[str, tuple[str, type]] | None = None
        """The modules whose `forward` is running, outermost first, the root's left out; None: not
        looked for so far."""
        self.pc = 0
        self.step = 0
        """The interpreter's step count at the current instruction."""
        self.current: Instruction = self.program.instructions[0]
        self.kw_names: tuple[str, ...] = ()
        """Names of the keyword arguments of the next call (set by KW_NAMES)."""
        self.last_offset = -1
        """The offset that a re-raise restored as the place of the exception, else -1."""
        self.handled: list[SymbolicValue | None] = []
        """The exceptions being handled, outermost first; a bare `raise` raises the last one."""
        self.called_here = False
        """Whether Python, too, has no frame between this one and its caller's."""
        self.resumable = False
        """Whether the caller's instruction is complete once this frame's result is pushed on its
        stack."""
        self.generator: Any = None
        """The generator whose body the frame runs, if it is one's."""
        self.value: SymbolicValue | None = None
        """What stands for the frame itself, if the program asked for it."""

    def push(self, value: SymbolicValue) -> None:
        self.stack.append(value)

    def pop(self) -> SymbolicValue:
        return self.stack.pop()

    def popn(self, n: int) -> list[SymbolicValue]:
        """The n topmost values, deepest first."""
        if n == 0:
            return []
        values = self.stack[-n:]
        del self.stack[-n:]
        return values

    def handled_exception(self) -> SymbolicValue | None:
        """The exception being handled here or in a caller, as `sys.exception()` gives it."""
        frame: Frame | None = self
        while frame is not None:
            if frame.handled:
                return frame.handled[-1]
            frame = frame.caller
        return None

    @property
    def has_all_callers(self) -> bool:
        """Whether the frames from the root to this one are those that Python has."""
        return self.caller is None or (self.called_here and self.caller.has_all_callers)

    @property
    def last_line(self) -> int:
        """The line that tracebacks show for the frame."""
        back = self.program.by_offset.get(self.last_offset)
        return self.current.line if back is None else self.program.instructions[back].line

    def where(self) -> SourceLine:
        """The line of the current instruction."""
        ins = self.current
        if ins.place is None:
            ins.place = SourceLine(self.program.file, ins.line, self.code.co_qualname)
        return ins.place

    def lines(self) -> tuple[SourceLine, ...]:
        """The current lines of the callers and of this frame, outermost first."""
        caller = self.caller
        if caller is None:
            return (self.where(),)
        if self._callers is None or self.generator is not None:
            self._callers = caller.lines()  # the caller does not move while this frame runs
        return (*self._callers, self.where())


_LIBRARY: Final = str(Path(__file__).parent.parent / "library")


def is_polyfill(code: types.CodeType) -> bool:
    """Whether the code is of a polyfill, whose frames do not exist in eager execution."""
    file = code.co_filename
    return file.endswith("polyfills.py") and file.startswith(_LIBRARY)


def frame_places(frame: Frame) -> tuple[Place, ...]:
    """The current places of the frame and its callers, outermost first."""
    places: list[Place] = []
    at: Frame | None = frame
    while at is not None:
        if not is_polyfill(at.code):
            line = at.current.line
            places.append(Place(at.code, at.globals.original, at.current.offset, line, line))
        at = at.caller
    return tuple(reversed(places))
