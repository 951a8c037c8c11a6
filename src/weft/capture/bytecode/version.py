"""What differs between CPython versions, as data.

`py311.TABLE`, `py312.TABLE` and `py313.TABLE` are of this type. Everything else in
this folder is written once, against one `VersionTable`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class VersionTable:
    """The facts of one CPython version's byte code that the disassembler and assembler need."""

    version: tuple[int, int]
    #: Inline CACHE code units that follow an instruction.
    caches: Mapping[str, int]
    forward_jumps: frozenset[str]
    backward_jumps: frozenset[str]
    #: The argument (after its shift) indexes `co_consts`, `co_names` or the local slots.
    const_ops: frozenset[str]
    name_ops: frozenset[str]
    slot_ops: frozenset[str]
    #: Low bits of an argument that are flags, not part of the index.
    flag_bits: Mapping[str, int] = field(default_factory=dict)
    #: One argument packs two local slots of four bits each.
    slot_pair_ops: frozenset[str] = frozenset()
    #: Shift that gives the comparison operator of COMPARE_OP.
    compare_shift: int = 0
    #: A jump to be laid out in the other direction takes this name.
    reversed_jumps: Mapping[str, str] = field(default_factory=dict)
    #: The location table merges neighbours with equal positions into one entry.
    merges_locations: bool = True
    #: Loads the cell object itself (not its contents) from a slot.
    load_cell_op: str = "LOAD_FAST"
    #: A call's NULL (or self) lies above the callable, not below it.
    null_above_callable: bool = False


#: Control never goes on to the next instruction.
TERMINATORS = frozenset(
    {
        "JUMP_BACKWARD",
        "JUMP_BACKWARD_NO_INTERRUPT",
        "JUMP_FORWARD",
        "RAISE_VARARGS",
        "RERAISE",
        "RETURN_CONST",
        "RETURN_VALUE",
    }
)
