"""Code object → `Bytecode`. On the compile path: plain tables, one pass, cached per code object."""

from __future__ import annotations

import opcode
from types import CodeType
from typing import Any

from .instruction import (
    NO_POSITIONS,
    Bytecode,
    ExceptionEntry,
    Instruction,
    Positions,
)
from .percode import PerCode
from .tables import (
    BACKWARD,
    CACHES,
    EXTENDED_ARG,
    FLAG_BITS,
    FORWARD,
    KIND,
    OPNAME,
    PLAIN,
    SLOT_PAIR,
)

_CACHE: PerCode[Bytecode] = PerCode()


def disassemble(code: CodeType) -> Bytecode:
    """The instructions and exception table of `code`; the same object each time."""
    body = _CACHE.get(code)
    if body is None:
        body = _CACHE[code] = _disassemble(code)
    return body


def _disassemble(code: CodeType) -> Bytecode:
    instructions = _read_instructions(code)
    by_offset = {i.offset: i for i in instructions}
    for instruction in instructions:
        if KIND[instruction.opcode] in (FORWARD, BACKWARD):
            instruction.target = by_offset[instruction.argval]
    return Bytecode(instructions, _read_exceptions(code, instructions, by_offset), by_offset)


def slot_names(code: CodeType) -> tuple[str, ...]:
    """The name of each "fast local" slot: parameters and locals, cells, free variables."""
    local = code.co_varnames
    cells = code.co_cellvars
    if cells:
        known = set(local)
        cells = tuple(name for name in cells if name not in known)
    return local + cells + code.co_freevars


def _read_instructions(code: CodeType) -> list[Instruction]:
    """Decode `co_code` (which CPython gives without its run-time specialisation)."""
    raw = code.co_code
    positions: list[Positions] = list(code.co_positions())
    positions += [NO_POSITIONS] * (len(raw) // 2 - len(positions))  # of code that got longer
    names = slot_names(code)
    # Indexed by argument kind; the jumps' and plain kinds have no table.
    tables: tuple[Any, ...] = (
        None, code.co_consts, code.co_names, names, None, None, opcode.cmp_op, names,
    )
    instructions: list[Instruction] = []
    offset, start, size, prefix = 0, 0, len(raw), 0
    while offset < size:
        op = raw[offset]
        arg = raw[offset + 1] | prefix
        if op == EXTENDED_ARG:
            prefix = arg << 8
            offset += 2
            continue
        end = offset + 2 + 2 * CACHES[op]
        kind, bits = KIND[op], FLAG_BITS[op]
        value: Any = arg
        if kind != PLAIN:
            if kind == FORWARD:
                value = end + 2 * arg
            elif kind == BACKWARD:
                value = end - 2 * arg
            elif kind == SLOT_PAIR:
                value = (names[arg >> 4], names[arg & 15])
            else:
                value = tables[kind][arg >> bits]
        instructions.append(
            Instruction(
                op, OPNAME[op], arg, value, arg & ((1 << bits) - 1), None,
                positions[offset >> 1], start, len(instructions),
            )
        )
        prefix = 0
        offset = start = end
    return instructions


def _read_exceptions(
    code: CodeType, instructions: list[Instruction], by_offset: dict[int, Instruction]
) -> list[ExceptionEntry]:
    """Decode `co_exceptiontable`: four big-endian base-64 numbers an entry."""
    table = code.co_exceptiontable
    if not table:
        return []
    numbers: list[int] = []
    value = 0
    for byte in table:
        value = value << 6 | byte & 63
        if not byte & 64:
            numbers.append(value)
            value = 0
    entries = []
    for at in range(0, len(numbers), 4):
        start, length, target, depth_lasti = numbers[at : at + 4]
        following = by_offset.get(2 * (start + length))
        end = instructions[following.index - 1] if following is not None else instructions[-1]
        entries.append(
            ExceptionEntry(
                by_offset[2 * start], end, by_offset[2 * target],
                depth_lasti >> 1, bool(depth_lasti & 1),
            )
        )
    return entries
