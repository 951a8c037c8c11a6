"""Names of Python's binary operators, and of the special methods that implement them.

Place in the pipeline: under the values. An operator is called by its name in the module `operator`
everywhere in capture (`tx.binary("iand", a, b)`)::

    plain_operator("iand")        # "and_", to which `a &= b` falls back
    method_name("and_")           # "__and__"
    reflected_method("iand")      # "__rand__"
    reflected_method("lt")        # "__gt__"
    OPERATOR_METHODS["__rsub__"]  # ("sub", True)
"""

from __future__ import annotations

from typing import Final

ARITHMETIC: Final = ("add", "and_", "floordiv", "lshift", "matmul", "mul", "mod", "or_", "pow",
                     "rshift", "sub", "truediv", "xor")
"""In the order of BINARY_OP's arguments."""

COMPARISONS: Final = ("eq", "ne", "lt", "le", "gt", "ge")

_PLAIN: Final = {f"i{op.strip('_')}": op for op in ARITHMETIC}
IN_PLACE: Final = tuple(_PLAIN)
"""In the same order as `ARITHMETIC`."""

_MIRRORED: Final = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}


def plain_operator(op: str) -> str:
    """The operator that an in-place operator falls back to; others as they are."""
    return _PLAIN.get(op, op)


def method_name(op: str) -> str:
    """The special method that the left side is asked for."""
    return f"__{op.strip('_')}__"


def reflected_method(op: str) -> str:
    """The special method that the right side is asked for."""
    if op in COMPARISONS:
        return method_name(_MIRRORED.get(op, op))
    return f"__r{plain_operator(op).strip('_')}__"


OPERATOR_METHODS: Final = {
    **{method_name(op): (op, False) for op in (*COMPARISONS, *ARITHMETIC, *IN_PLACE)},
    **{reflected_method(op): (op, True) for op in ARITHMETIC}}
"""Special methods: the operator's name, and whether the other operand comes first."""
