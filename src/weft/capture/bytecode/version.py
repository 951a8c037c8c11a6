"""What differs between CPython versions, as data.

Which instructions name a constant, a local or a jump target the standard library's `opcode` knows.
The rest is in one `VersionTable` a version; everything else in this folder is written once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

_TURNED: Final = {"JUMP_FORWARD": "JUMP_BACKWARD", "JUMP_BACKWARD": "JUMP_FORWARD"}
_TURNED_BRANCHES: Final = {
    f"POP_JUMP_{way}_IF_{condition}": f"POP_JUMP_{other}_IF_{condition}"
    for way, other in (("FORWARD", "BACKWARD"), ("BACKWARD", "FORWARD"))
    for condition in ("FALSE", "TRUE", "NONE", "NOT_NONE")
}


@dataclass(frozen=True, slots=True)
class VersionTable:
    """The facts of one CPython version's byte code that the disassembler and assembler need."""

    version: tuple[int, int]
    #: Low bits of an argument that are flags, not part of the index; of COMPARE_OP's, those below
    #: the comparison operator.
    flag_bits: Mapping[str, int]
    #: One argument packs two local slots of four bits each.
    slot_pair_ops: frozenset[str] = frozenset()
    #: A jump to be laid out in the other direction takes this name.
    reversed_jumps: Mapping[str, str] = field(default_factory=_TURNED.copy)
    #: The location table merges neighbours with equal positions into one entry.
    merges_locations: bool = True
    #: Loads the cell object itself (not its contents) from a slot.
    load_cell_op: str = "LOAD_CLOSURE"
    #: A call's NULL (or self) lies above the callable, not below it.
    null_above_callable: bool = False


TABLES: Final = (
    # Directed conditional jumps, PRECALL + CALL, KW_NAMES, LOAD_METHOD.
    VersionTable(
        version=(3, 11),
        flag_bits={"LOAD_GLOBAL": 1},
        reversed_jumps=_TURNED | _TURNED_BRANCHES,
        merges_locations=False,
    ),
    # Inlined comprehensions, RETURN_CONST, LOAD_SUPER_ATTR, FOR_ITER with a cache.
    VersionTable(
        version=(3, 12),
        flag_bits={"LOAD_ATTR": 1, "LOAD_GLOBAL": 1, "LOAD_SUPER_ATTR": 2, "COMPARE_OP": 4},
    ),
    # Paired local instructions, CALL_KW, jumps with caches, NULL above the callable.
    VersionTable(
        version=(3, 13),
        flag_bits={"LOAD_ATTR": 1, "LOAD_GLOBAL": 1, "LOAD_SUPER_ATTR": 2, "COMPARE_OP": 5},
        slot_pair_ops=frozenset(
            ("LOAD_FAST_LOAD_FAST", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST")),
        load_cell_op="LOAD_FAST",
        null_above_callable=True,
    ),
)

#: Control never goes on to the next instruction.
TERMINATORS: Final = frozenset((
    "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_FORWARD", "RAISE_VARARGS", "RERAISE",
    "RETURN_CONST", "RETURN_VALUE",
))
