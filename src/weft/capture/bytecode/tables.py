"""The running interpreter's `VersionTable`, spread into lists indexed by opcode number.

`KIND[op]` says what an instruction's argument means; `FLAG_BITS[op]` how many low bits of it are
flags; `CACHES[op]` how many inline cache units follow.
"""

from __future__ import annotations

import opcode
import sys

from . import py311, py312, py313
from .version import VersionTable

_TABLES = {t.version: t for t in (py311.TABLE, py312.TABLE, py313.TABLE)}

if sys.version_info[:2] not in _TABLES:
    raise ImportError(f"weft knows the byte code of CPython 3.11 to 3.13, not {sys.version}")

TABLE: VersionTable = _TABLES[sys.version_info[:2]]

OPNAME: list[str] = opcode.opname[:256]
OPMAP: dict[str, int] = {name: op for name, op in opcode.opmap.items() if op < 256}
EXTENDED_ARG: int = OPMAP["EXTENDED_ARG"]

# The kinds of argument, in the order of the per-code lookup tables of the disassembler.
PLAIN, CONST, NAME, SLOT, FORWARD, BACKWARD, COMPARE, SLOT_PAIR = range(8)

_KINDS = (
    (CONST, TABLE.const_ops),
    (NAME, TABLE.name_ops),
    (SLOT, TABLE.slot_ops),
    (FORWARD, TABLE.forward_jumps),
    (BACKWARD, TABLE.backward_jumps),
    (COMPARE, frozenset({"COMPARE_OP"})),
    (SLOT_PAIR, TABLE.slot_pair_ops),
)


def _by_opcode(values: dict[str, int]) -> list[int]:
    """A list over all opcode numbers, 0 where `values` has no entry."""
    return [values.get(name, 0) for name in OPNAME]


KIND: list[int] = _by_opcode({name: kind for kind, names in _KINDS for name in names})
CACHES: list[int] = _by_opcode(dict(TABLE.caches))
FLAG_BITS: list[int] = _by_opcode({**TABLE.flag_bits, "COMPARE_OP": TABLE.compare_shift})
