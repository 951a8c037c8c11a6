"""`Instruction`s → code object: layout of jumps, inline caches, location and exception tables.

`assemble(instructions, exceptions, template, **fields)` keeps everything of the template code that
is not computed here or named in `fields` (as in `code.replace`)::

    assemble(body.instructions, body.exceptions, code, co_name="resumed")
"""

from __future__ import annotations

from collections.abc import Sequence
from types import CodeType
from typing import Any

from .instruction import ExceptionEntry, Instruction
from .locations import encode_locations
from .stacksize import stack_size
from .tables import BACKWARD, CACHES, EXTENDED_ARG, KIND, OPMAP, OPNAME, TABLE


def assemble(
    instructions: Sequence[Instruction], exceptions: Sequence[ExceptionEntry], template: CodeType,
    **fields: Any,
) -> CodeType:
    """A code object made of `instructions`, none of which is changed.

    Jump arguments are computed from `target`; other arguments are `arg`. Raises ValueError for a
    jump that this Python cannot express in the wanted direction.
    """
    layout = _Layout(instructions)
    first_line = fields.get("co_firstlineno", template.co_firstlineno)
    return template.replace(
        co_code=layout.encode(),
        co_linetable=encode_locations(instructions, layout.units(), first_line),
        co_exceptiontable=_encode_exceptions(exceptions, layout),
        co_stacksize=stack_size(instructions, exceptions),
        **fields,
    )


class _Layout:
    """Offsets (in code units of two bytes) and final arguments of a sequence of instructions."""

    def __init__(self, instructions: Sequence[Instruction]) -> None:
        self.instructions = instructions
        self.order = {id(i): n for n, i in enumerate(instructions)}
        self.args = [i.arg for i in instructions]
        self.opcodes = [i.opcode for i in instructions]
        self._jumps = [
            (n, self.order[id(i.target)])
            for n, i in enumerate(instructions)
            if i.target is not None
        ]
        self._choose_directions()
        for n, _ in self._jumps:
            self.args[n] = 0
        self._prefixes = [_prefixes(arg) for arg in self.args]
        self._place()
        while self._widen_jumps():
            self._place()

    def _choose_directions(self) -> None:
        for n, target in self._jumps:
            backward = target <= n
            if backward == (KIND[self.opcodes[n]] == BACKWARD):
                continue
            name = OPNAME[self.opcodes[n]]
            turned = TABLE.reversed_jumps.get(name)
            if turned is None:
                raise ValueError(f"{name} cannot jump {'backward' if backward else 'forward'}")
            self.opcodes[n] = OPMAP[turned]

    def _place(self) -> None:
        """Compute the start of each instruction from the number of its prefixes."""
        starts = []
        at = 0
        for op, prefixes in zip(self.opcodes, self._prefixes, strict=True):
            starts.append(at)
            at += prefixes + 1 + CACHES[op]
        starts.append(at)
        self.starts = starts

    def _widen_jumps(self) -> bool:
        """Compute the jumps' arguments; True if one needs more prefixes than it has."""
        starts, changed = self.starts, False
        for n, target in self._jumps:
            # Relative to the end of the instruction, which is where the next one starts.
            arg = self.args[n] = abs(starts[target] - starts[n + 1])
            needed = _prefixes(arg)
            if needed > self._prefixes[n]:
                self._prefixes[n] = needed
                changed = True
        return changed

    def units(self) -> list[int]:
        """The size of each instruction."""
        starts = self.starts
        return [starts[n + 1] - starts[n] for n in range(len(starts) - 1)]

    def start_of(self, instruction: Instruction) -> int:
        return self.starts[self.order[id(instruction)]]

    def end_of(self, instruction: Instruction) -> int:
        return self.starts[self.order[id(instruction)] + 1]

    def encode(self) -> bytes:
        out = bytearray()
        for op, arg, prefixes in zip(self.opcodes, self.args, self._prefixes, strict=True):
            for shift in range(8 * prefixes, 0, -8):
                out += bytes((EXTENDED_ARG, arg >> shift & 255))
            out += bytes((op, arg & 255))
            out += bytes(2 * CACHES[op])
        return bytes(out)


def _prefixes(arg: int) -> int:
    """How many EXTENDED_ARG an argument needs."""
    return 0 if arg < 256 else (arg.bit_length() - 1) // 8


def _encode_exceptions(exceptions: Sequence[ExceptionEntry], layout: _Layout) -> bytes:
    out = bytearray()
    for entry in exceptions:
        start = layout.start_of(entry.start)
        length = layout.end_of(entry.end) - start
        out += _base64(start, 128)  # the first byte of an entry is marked
        out += _base64(length)
        out += _base64(layout.start_of(entry.target))
        out += _base64(entry.depth << 1 | entry.lasti)
    return bytes(out)


def _base64(value: int, mark: int = 0) -> bytes:
    """Big-endian groups of six bits; bit 6 says that more follow."""
    groups = [value & 63]
    while value := value >> 6:
        groups.append(value & 63 | 64)
    groups[-1] |= mark
    return bytes(reversed(groups))
