"""Exact simplifications of scalar operators, applied as nodes are built.

Place in the pipeline: called by `loop_ir.KernelBuilder.op`. Only rewrites that give the same bits
are here: constants of integer and bool operators are folded, selections by a known condition
vanish, and neutral operands are dropped where IEEE arithmetic allows it (`x * 1`, `x - 0`, not
`x + 0`).

    where(True, x, y)   →  x
    not_(not_(c))       →  c
    where(c, True, False)  →  c
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from weft.codegen.ir.dtypes import INT_TYPES

if TYPE_CHECKING:
    from weft.codegen.ir.loop_ir import KernelBuilder, Node

Rule = Callable[..., Any]


def simplified(b: KernelBuilder, name: str, args: tuple[Node, ...], dtype: str) -> Node | None:
    """A node equal to `name(*args)`, or None if there is no simpler one."""
    rule = _RULES.get(name)
    if rule is None:
        return None
    simpler: Node | None = rule(b, args, dtype)
    return simpler


def literal(node: Node) -> Any:
    """The value of a constant node, else None."""
    return getattr(node, "value", None) if type(node).__name__ == "Const" else None


def _cast(b: KernelBuilder, args: tuple[Node, ...], dtype: str) -> Node | None:
    value = literal(args[0])
    if value is None or (dtype in INT_TYPES and isinstance(value, float)):
        return None
    return b.const(value, dtype) if dtype != "f32" or abs(value) <= 2**24 else None


def _where(b: KernelBuilder, args: tuple[Node, ...], dtype: str) -> Node | None:
    condition, left, right = args
    known = literal(condition)
    if known is not None:
        return left if known else right
    if left is right:
        return left
    if dtype != "bool":
        return None
    choices = literal(left), literal(right)
    if choices == (True, False):
        return condition
    return b.op("not_", condition) if choices == (False, True) else None


def _not(b: KernelBuilder, args: tuple[Node, ...], dtype: str) -> Node | None:
    known = literal(args[0])
    if known is not None:
        return b.const(not known if dtype == "bool" else ~known, dtype)
    inner = args[0]
    return inner.args[0] if getattr(inner, "name", "") == "not_" else None  # type: ignore[union-attr]


def _logic(absorbing: bool) -> Rule:
    """and_ (absorbed by False) and or_ (absorbed by True) over bool."""

    def rule(b: KernelBuilder, args: tuple[Node, ...], dtype: str) -> Node | None:
        if dtype != "bool":
            return None
        for known, other in ((args[0], args[1]), (args[1], args[0])):
            value = literal(known)
            if value is not None:
                return known if value is absorbing else other
        return args[0] if args[0] is args[1] else None

    return rule


def _compare(function: Callable[[Any, Any], bool]) -> Rule:
    def rule(b: KernelBuilder, args: tuple[Node, ...], dtype: str) -> Node | None:
        left, right = literal(args[0]), literal(args[1])
        if left is None or right is None:
            return None
        return b.const(function(left, right), "bool")

    return rule


def _arithmetic(
    function: Callable[[Any, Any], Any], left_unit: object, right_unit: object, float_unit: object
) -> Rule:
    """Folding for integers; dropping a unit on either side (for floats only `float_unit`)."""

    def rule(b: KernelBuilder, args: tuple[Node, ...], dtype: str) -> Node | None:
        left, right = literal(args[0]), literal(args[1])
        integral = dtype in INT_TYPES
        if integral and left is not None and right is not None:
            return b.const(function(left, right), dtype)
        if right is not None and right == (right_unit if integral else float_unit):
            return args[0] if not _is_negative_zero(right) else None
        if left is not None and left_unit is not None and left == left_unit:
            return args[1] if integral or float_unit == 1 else None
        return None

    return rule


def _is_negative_zero(value: object) -> bool:
    return isinstance(value, float) and str(value) == "-0.0"


_RULES: Final[dict[str, Rule]] = {
    "cast": _cast,
    "where": _where,
    "not_": _not,
    "and_": _logic(absorbing=False),
    "or_": _logic(absorbing=True),
    "eq": _compare(operator.eq),
    "ne": _compare(operator.ne),
    "lt": _compare(operator.lt),
    "le": _compare(operator.le),
    "gt": _compare(operator.gt),
    "ge": _compare(operator.ge),
    "add": _arithmetic(operator.add, 0, 0, None),
    "sub": _arithmetic(operator.sub, None, 0, 0),
    "mul": _arithmetic(operator.mul, 1, 1, 1),
    "div": _arithmetic(operator.truediv, None, 1, 1),
}
