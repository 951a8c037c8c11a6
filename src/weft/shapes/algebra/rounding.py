"""Ints from floats of sizes: ``int(n * 0.3)``, ``round(h / 7)``, ``math.ceil(n ** 0.5)``.

Place in the pipeline: beside ``floats.py``. If the float is exact the int is a polynomial with
divisions; otherwise it is a function of the sizes, computed as Python would (`functions.py`). Such
functions take ints: a Python float that changes between calls is passed as two, mantissa and
exponent.

    >>> from weft.shapes.algebra.expr import symbol
    >>> from weft.shapes.algebra.floats import apply
    >>> n = symbol("n", 2, 100)
    >>> rounded("int", apply("mul", n, 1.5)), rounded("int", apply("mul", n, 0.3))
    (((3*n)//2), int((n * 0.3)))
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from typing import Final

from weft.shapes.algebra.expr import Expr, IntExpr, applied
from weft.shapes.algebra.floats import (
    FloatExpr,
    FloatSymbol,
    Number,
    apply,
    number_symbols,
    operation_text,
    rounded_down,
    rounded_up,
    text,
    truncated,
)
from weft.shapes.algebra.functions import Interval, int_function
from weft.shapes.algebra.intervals import INF

HOW: Final[Mapping[str, Callable[[float], int]]] = {
    "int": math.trunc, "math.floor": math.floor, "math.ceil": math.ceil, "round": round,
}
_EXACT: Final[Mapping[str, Callable[[Number], IntExpr | None]]] = {
    "int": truncated, "math.floor": rounded_down, "math.ceil": rounded_up,
}

Parts = Callable[[FloatSymbol], tuple[Expr, Expr] | None]
"""The `mantissa` and the `exponent` of a Python float as symbols, if they can be read."""

Range = tuple[float, float]
_ANY: Final[Range] = (-math.inf, math.inf)


def rounded(how: str, value: Number, parts: Parts = lambda number: None) -> IntExpr | None:
    """``how(value)``; None if it involves a float whose parts are not known."""
    exact = _EXACT[how](value) if how in _EXACT else None
    if exact is not None:
        return exact
    of_ints = {number: parts(number) for number in float_symbols(value)}
    if None in of_ints.values():
        return None
    value = _of_ints(value, of_ints)
    leaves: dict[Expr, str] = {}
    template = f"{how}({_template_text(value, leaves)})"

    def limits(*args: Interval) -> Interval:
        return _rounded_range(how, _range(value, dict(zip(leaves, args, strict=True))))

    return applied(int_function(template, limits), *leaves)


def float_symbols(value: Number) -> list[FloatSymbol]:
    """The Python floats that change between calls in the value."""
    return [s for s in number_symbols(value) if isinstance(s, FloatSymbol)]


def mantissa(value: float) -> int:
    """`value` is ``mantissa(value) * 2.0 ** exponent(value)``; 0 if it is not finite."""
    return int(math.ldexp(value, -exponent(value))) if math.isfinite(value) else 0


def exponent(value: float) -> int:
    return max(math.frexp(value)[1] - sys.float_info.mant_dig, _LEAST_EXPONENT)


_LEAST_EXPONENT: Final = -1074
"""The exponent of the smallest double."""


def _of_ints(value: Number, parts: Mapping[FloatSymbol, tuple[Expr, Expr] | None]) -> Number:
    """The value with each float symbol replaced by its parts' product."""
    if isinstance(value, FloatExpr):
        return apply(value.op, *(_of_ints(arg, parts) for arg in value.args))
    factors = parts[value] if isinstance(value, FloatSymbol) else None
    return value if factors is None else apply("mul", factors[0], apply("pow", 2.0, factors[1]))


def _template_text(value: Number, leaves: dict[Expr, str]) -> str:
    """Python source with ``{0}``, ``{1}`` for the integer expressions."""
    if isinstance(value, Expr):
        return leaves.setdefault(value, f"{{{len(leaves)}}}")
    if isinstance(value, FloatExpr):
        return operation_text(value.op, [_template_text(arg, leaves) for arg in value.args])
    return text(value)


# ------------------------------------------------------------------------------ ranges


def _rounded_range(how: str, limits: Range) -> Interval:
    low, high = limits
    return (-INF if low <= -INF else HOW[how](low)), (INF if high >= INF else HOW[how](high))


def _range(value: Number, ranges: Mapping[Expr, Interval]) -> Range:
    """Floats that bound the value: rounding preserves order."""
    if isinstance(value, Expr):
        least, most = ranges[value]
        return (-math.inf if least <= -INF else least), (math.inf if most >= INF else most)
    if not isinstance(value, FloatExpr):
        return (value, value) if isinstance(value, int | float) and value == value else _ANY
    rule = _RANGE_RULES.get(value.op)
    if rule is None:
        return _ANY
    try:
        low, high = rule(*(_range(arg, ranges) for arg in value.args))
    except (ArithmeticError, ValueError):
        return _ANY
    return (low, high) if low <= high else _ANY  # NaN: infinity times zero


def _corners(function: Callable[[float, float], float]) -> Callable[[Range, Range], Range]:
    def rule(left: Range, right: Range) -> Range:
        values = [function(a, b) for a in left for b in right]
        return _ANY if any(f != f for f in values) else (min(values), max(values))

    return rule


def _quotient(left: Range, right: Range) -> Range:
    return _corners(lambda a, b: a / b)(left, right) if right[0] > 0 else _ANY


def _power(base: Range, exponent: Range) -> Range:
    if base[0] < 0 or exponent[0] != exponent[1]:
        return _ANY
    ends = [float(end) ** exponent[0] for end in base]
    return min(ends), max(ends)


def _logarithm(function: Callable[[float], float]) -> Callable[[Range], Range]:
    def end(at: float) -> float:
        return function(at) if at > 0 else -math.inf

    return lambda arg: (end(arg[0]), end(arg[1]))


_RANGE_RULES: Final[Mapping[str, Callable[..., Range]]] = {
    "add": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "sub": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "mul": _corners(lambda a, b: a * b),
    "truediv": _quotient,
    "pow": _power,
    "neg": lambda a: (-a[1], -a[0]),
    "float": lambda a: a,
    "min": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "max": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "sqrt": lambda a: (math.sqrt(max(a[0], 0)), math.sqrt(a[1])),
    **{name: _logarithm(getattr(math, name)) for name in ("log", "log2", "log10")},
}
