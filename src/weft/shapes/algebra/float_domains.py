"""Where Python's operations on floats are defined; elsewhere they raise (or give complex numbers).

Place in the pipeline: beside ``floats.py``. Capture checks this before an operation becomes part of
a formula. If it is not certain, a guard requires it, so a call with other numbers is captured
separately and raises where the program can catch it.

    >>> from weft.shapes.algebra.expr import symbol
    >>> from weft.shapes.algebra.floats import apply
    >>> n = symbol("n", 2, 100)
    >>> is_certain("sqrt", n), is_certain("exp", apply("mul", n, 100.0))
    (True, False)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from weft.shapes.algebra.bounds import lower_bound, upper_bound
from weft.shapes.algebra.expr import Expr
from weft.shapes.algebra.floats import (
    FloatExpr,
    FloatSymbol,
    Number,
    is_nonnegative,
    number_symbols,
)

_EXPONENT: Final = 700
"""`math.exp` is defined up to here."""

_POWER: Final = 16
"""Sizes to this power are far from overflowing."""


def is_certain(op: str, *args: Number) -> bool:
    """Whether the operation is defined for all values of the symbols."""
    rule = _RULES.get(op)
    return rule is None or rule(*args)


def _is_positive(value: Number) -> bool:
    if isinstance(value, int | Expr):
        return lower_bound(value) > 0
    if isinstance(value, FloatExpr):
        return value.op in _KEEP_POSITIVE and all(map(_is_positive, value.args))
    return isinstance(value, float) and value > 0


_KEEP_POSITIVE: Final = frozenset(("float", "sqrt", "add", "mul", "min", "max", "abs"))
"""Operations that give positive numbers for positive ones (of sizes: nothing underflows)."""


def _is_finite(value: Number) -> bool:
    """Whether a value computed from sizes is finite; a float of the program may be infinite."""
    return not any(isinstance(s, FloatSymbol) for s in number_symbols(value)) and value not in (
        float("inf"), float("-inf"))


def _is_limited(value: Number) -> bool:
    """Whether the exponential of the value cannot overflow."""
    if isinstance(value, int | Expr):
        return upper_bound(value) <= _EXPONENT
    if isinstance(value, FloatExpr):
        return value.op == "neg" and is_nonnegative(value.args[0])
    return isinstance(value, float) and value <= _EXPONENT


def _has_power(base: Number, exponent: Number) -> bool:
    if isinstance(base, int | float) and 0 < base <= 1:
        return is_nonnegative(exponent)
    if not isinstance(base, Expr) or not isinstance(exponent, int | float):
        return False
    return abs(exponent) <= _POWER and lower_bound(base) >= (0 if exponent >= 0 else 1)


def _has_remainder(value: Number, divisor: Number) -> bool:
    return _is_positive(divisor)


_RULES: Final[Mapping[str, Callable[..., bool]]] = {
    "sqrt": is_nonnegative,
    "log1p": is_nonnegative,
    **dict.fromkeys(("log", "log2", "log10"), _is_positive),
    **dict.fromkeys(("asin", "acos", "acosh", "atanh"), lambda value: False),
    **dict.fromkeys(("sin", "cos", "tan"), _is_finite),
    **dict.fromkeys(("exp", "exp2", "expm1"), _is_limited),
    **dict.fromkeys(("sinh", "cosh"), lambda value: _is_limited(value) and is_nonnegative(value)),
    "pow": _has_power,
    "mod": _has_remainder,
    "floordiv": _has_remainder,
    **dict.fromkeys(("fmod", "remainder"),
                    lambda value, divisor: _is_finite(value) and _is_positive(divisor)),
    "round": lambda value, digits: isinstance(digits, int) and digits >= 0,
}
"""For operations that are not defined everywhere: whether they certainly are here."""
