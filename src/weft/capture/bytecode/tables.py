"""The running interpreter's byte code, as lists indexed by opcode number.

`KIND[op]` says what an instruction's argument means; `FLAG_BITS[op]` how many low bits of it are
flags; `CACHES[op]` how many inline cache units follow.
"""

from __future__ import annotations

import opcode
import sys
from collections.abc import Iterable, Mapping

from .version import TABLES, VersionTable

_BY_VERSION = {table.version: table for table in TABLES}

if sys.version_info[:2] not in _BY_VERSION:
    raise ImportError(f"weft knows the byte code of CPython 3.11 to 3.13, not {sys.version}")

TABLE: VersionTable = _BY_VERSION[sys.version_info[:2]]

OPNAME: list[str] = opcode.opname[:256]
OPMAP: dict[str, int] = {name: op for name, op in opcode.opmap.items() if op < 256}
EXTENDED_ARG: int = OPMAP["EXTENDED_ARG"]

# The kinds of argument, in the order of the per-code lookup tables of the disassembler.
PLAIN, CONST, NAME, SLOT, FORWARD, BACKWARD, COMPARE, SLOT_PAIR = range(8)


def _names(opcodes: Iterable[int]) -> list[str]:
    return [OPNAME[op] for op in opcodes if op < 256]


def _by_opcode(values: Mapping[str, int]) -> list[int]:
    """A list over all opcode numbers, 0 where `values` has no entry."""
    return [values.get(name, 0) for name in OPNAME]


def _caches() -> Mapping[str, int]:
    known = opcode._inline_cache_entries  # type: ignore[attr-defined]
    return known if isinstance(known, dict) else dict(zip(OPNAME, known, strict=False))


KIND: list[int] = _by_opcode({
    **dict.fromkeys(_names(opcode.hasconst), CONST),
    **dict.fromkeys(_names(opcode.hasname), NAME),
    **dict.fromkeys(_names((*opcode.haslocal, *opcode.hasfree)), SLOT),
    **{n: BACKWARD if "BACKWARD" in n else FORWARD for n in _names(opcode.hasjrel)},
    "COMPARE_OP": COMPARE,
    **dict.fromkeys(TABLE.slot_pair_ops, SLOT_PAIR),
})
CACHES: list[int] = _by_opcode(_caches())
FLAG_BITS: list[int] = _by_opcode(TABLE.flag_bits)
