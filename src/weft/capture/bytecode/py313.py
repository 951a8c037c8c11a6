"""CPython 3.13: paired local instructions, CALL_KW, jumps with caches, NULL above the callable."""

from __future__ import annotations

from .version import VersionTable

TABLE = VersionTable(
    version=(3, 13),
    caches={
        "BINARY_OP": 1,
        "BINARY_SUBSCR": 1,
        "CALL": 3,
        "COMPARE_OP": 1,
        "CONTAINS_OP": 1,
        "FOR_ITER": 1,
        "JUMP_BACKWARD": 1,
        "LOAD_ATTR": 9,
        "LOAD_GLOBAL": 4,
        "LOAD_SUPER_ATTR": 1,
        "POP_JUMP_IF_FALSE": 1,
        "POP_JUMP_IF_NONE": 1,
        "POP_JUMP_IF_NOT_NONE": 1,
        "POP_JUMP_IF_TRUE": 1,
        "SEND": 1,
        "STORE_ATTR": 4,
        "STORE_SUBSCR": 1,
        "TO_BOOL": 3,
        "UNPACK_SEQUENCE": 1,
    },
    forward_jumps=frozenset(
        {
            "FOR_ITER",
            "JUMP_FORWARD",
            "POP_JUMP_IF_FALSE",
            "POP_JUMP_IF_NONE",
            "POP_JUMP_IF_NOT_NONE",
            "POP_JUMP_IF_TRUE",
            "SEND",
        }
    ),
    backward_jumps=frozenset({"JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"}),
    const_ops=frozenset({"LOAD_CONST", "RETURN_CONST"}),
    name_ops=frozenset(
        {
            "DELETE_ATTR",
            "DELETE_GLOBAL",
            "DELETE_NAME",
            "IMPORT_FROM",
            "IMPORT_NAME",
            "LOAD_ATTR",
            "LOAD_FROM_DICT_OR_GLOBALS",
            "LOAD_GLOBAL",
            "LOAD_NAME",
            "LOAD_SUPER_ATTR",
            "STORE_ATTR",
            "STORE_GLOBAL",
            "STORE_NAME",
        }
    ),
    slot_ops=frozenset(
        {
            "DELETE_DEREF",
            "DELETE_FAST",
            "LOAD_DEREF",
            "LOAD_FAST",
            "LOAD_FAST_AND_CLEAR",
            "LOAD_FAST_CHECK",
            "LOAD_FROM_DICT_OR_DEREF",
            "MAKE_CELL",
            "STORE_DEREF",
            "STORE_FAST",
        }
    ),
    flag_bits={"LOAD_ATTR": 1, "LOAD_GLOBAL": 1, "LOAD_SUPER_ATTR": 2},
    slot_pair_ops=frozenset(
        {"LOAD_FAST_LOAD_FAST", "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST"}
    ),
    compare_shift=5,
    reversed_jumps={"JUMP_FORWARD": "JUMP_BACKWARD", "JUMP_BACKWARD": "JUMP_FORWARD"},
    null_above_callable=True,
)
