"""CPython 3.11: directed conditional jumps, PRECALL + CALL, KW_NAMES, LOAD_METHOD."""

from __future__ import annotations

from .version import VersionTable

_CONDITIONS = ("IF_FALSE", "IF_TRUE", "IF_NONE", "IF_NOT_NONE")
_FORWARD = tuple(f"POP_JUMP_FORWARD_{c}" for c in _CONDITIONS)
_BACKWARD = tuple(f"POP_JUMP_BACKWARD_{c}" for c in _CONDITIONS)

TABLE = VersionTable(
    version=(3, 11),
    caches={
        "BINARY_OP": 1,
        "BINARY_SUBSCR": 4,
        "CALL": 4,
        "COMPARE_OP": 2,
        "LOAD_ATTR": 4,
        "LOAD_GLOBAL": 5,
        "LOAD_METHOD": 10,
        "PRECALL": 1,
        "STORE_ATTR": 4,
        "STORE_SUBSCR": 1,
        "UNPACK_SEQUENCE": 1,
    },
    forward_jumps=frozenset(
        {
            "FOR_ITER",
            "JUMP_FORWARD",
            "JUMP_IF_FALSE_OR_POP",
            "JUMP_IF_TRUE_OR_POP",
            "SEND",
            *_FORWARD,
        }
    ),
    backward_jumps=frozenset({"JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", *_BACKWARD}),
    const_ops=frozenset({"KW_NAMES", "LOAD_CONST"}),
    name_ops=frozenset(
        {
            "DELETE_ATTR",
            "DELETE_GLOBAL",
            "DELETE_NAME",
            "IMPORT_FROM",
            "IMPORT_NAME",
            "LOAD_ATTR",
            "LOAD_GLOBAL",
            "LOAD_METHOD",
            "LOAD_NAME",
            "STORE_ATTR",
            "STORE_GLOBAL",
            "STORE_NAME",
        }
    ),
    slot_ops=frozenset(
        {
            "DELETE_DEREF",
            "DELETE_FAST",
            "LOAD_CLASSDEREF",
            "LOAD_CLOSURE",
            "LOAD_DEREF",
            "LOAD_FAST",
            "MAKE_CELL",
            "STORE_DEREF",
            "STORE_FAST",
        }
    ),
    flag_bits={"LOAD_GLOBAL": 1},
    reversed_jumps={
        "JUMP_FORWARD": "JUMP_BACKWARD",
        "JUMP_BACKWARD": "JUMP_FORWARD",
        **dict(zip(_FORWARD, _BACKWARD, strict=True)),
        **dict(zip(_BACKWARD, _FORWARD, strict=True)),
    },
    merges_locations=False,
    load_cell_op="LOAD_CLOSURE",
)
