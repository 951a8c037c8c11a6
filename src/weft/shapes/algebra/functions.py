"""Opaque functions from ints to ints: no algebraic rules, they stay symbolic as they are.

Place in the pipeline: beside ``expr.py``, which applies them. Python evaluates them (in guards, in
call sequences); kernels receive their values. Rounded floats of sizes are such functions too
(``floats.rounded``).

    >>> from weft.shapes.algebra.expr import applied, symbol
    >>> n = symbol("n", 2, 64)
    >>> applied(GCD, n, 12), applied(GCD, 8, 12), applied(int_function("int({0}*0.3)"), n)
    (math.gcd(n, 12), 4, int(n*0.3))
"""

from __future__ import annotations

import math
import string
from collections.abc import Callable
from typing import Final

from weft.shapes.algebra.atoms import Applied, Atom, IntFunction, Symbol
from weft.shapes.algebra.bounds import bounds
from weft.shapes.algebra.expr import (
    OPERATORS,
    Expr,
    IntExpr,
    applied,
    operands,
    sum_of_products,
    symbol_of,
    symbols,
)
from weft.shapes.algebra.intervals import INF
from weft.shapes.algebra.printing import python_text

Interval = tuple[int, int]

_functions: dict[str, IntFunction] = {}


def int_function(text: str, limits: Callable[..., Interval] | None = None) -> IntFunction:
    """The function that Python computes by `text`; its first user sets its limits."""
    function = _functions.get(text)
    if function is None:
        function = _functions[text] = IntFunction(text, _function_of(text), limits or _anything)
    return function


def _anything(*args: Interval) -> Interval:
    return -INF, INF


def _function_of(text: str) -> Callable[..., int]:
    count = len({field for _, field, _, _ in string.Formatter().parse(text) if field is not None})
    names = [f"a{i}" for i in range(count)]
    source = f"lambda {', '.join(names)}: {text.format(*names)}"
    function: Callable[..., int] = eval(source, {"math": math})
    return function


def has_functions(value: IntExpr) -> bool:
    """Whether an `Applied` is anywhere in it."""
    return isinstance(value, Expr) and any(
        isinstance(atom, Applied) or any(map(has_functions, operands(atom)))
        for atom in value.atoms())


def with_functions(value: IntExpr, change: Callable[[Expr], IntExpr]) -> IntExpr:
    """The value with ``change`` applied to each outermost `Applied` in it."""

    def changed(atom: Atom) -> IntExpr:
        if isinstance(atom, Applied | Symbol):
            return change(atom.expr) if isinstance(atom, Applied) else atom.expr
        return OPERATORS[type(atom)](*(with_functions(arg, change) for arg in operands(atom)))

    return value if isinstance(value, int) else sum_of_products(value, changed)


def computed_exactly(value: IntExpr) -> IntExpr:
    """The value with divisions and comparisons of numbers that might exceed 64 bits replaced by
    functions, which Python computes. (Sums and products may wrap around.)"""
    return value if isinstance(value, int) else sum_of_products(value, _exact_atom)


def _exact_atom(atom: Atom) -> IntExpr:
    if type(atom) not in OPERATORS:
        return atom.expr
    if not any(map(_may_be_large, operands(atom))):
        return OPERATORS[type(atom)](*map(computed_exactly, operands(atom)))
    leaves = sorted(symbols(atom.expr), key=str)
    names = {str(leaf): f"{{{i}}}" for i, leaf in enumerate(leaves)}
    return applied(int_function(python_text(atom.expr, names)), *leaves)


def _may_be_large(value: IntExpr) -> bool:
    """Whether it is computed from numbers of any size."""
    numbers = [variable for variable in symbols(value) if symbol_of(variable).kind == "int"]
    if not numbers or [value] == numbers:
        return False
    low, high = bounds(value)
    return low <= -INF or high >= INF


# ------------------------------------------------------------------------------ limits


def _not_negative(*args: Interval) -> Interval:
    return 0, INF


def _divisor_limits(*args: Interval) -> Interval:
    """Limits of a greatest common divisor: no larger than any argument that is certainly not
    zero."""
    largest = [high for low, high in args if low > 0]
    least = 1 if largest else 0
    return least, min(largest, default=INF)


def _root_limits(arg: Interval) -> Interval:
    low, high = arg
    return math.isqrt(max(low, 0)), INF if high >= INF else math.isqrt(max(high, 0))


def _length_limits(arg: Interval) -> Interval:
    low, high = arg
    if low < 0:
        return 0, 64
    return low.bit_length(), min(64, high.bit_length())


def _bits_limits(*args: Interval) -> Interval:
    """Limits of a function that sets no bit that no argument has, for nonnegative arguments."""
    if any(low < 0 for low, _ in args):
        return -INF, INF
    return 0, min(INF, (1 << max(high for _, high in args).bit_length()) - 1)


def power_of(base: int) -> tuple[IntFunction, int]:
    """`base**n`, and the largest `n` whose power fits in 62 bits."""
    largest = int(62 / math.log2(base))

    def limits(exponent: Interval) -> Interval:
        low, high = exponent
        return base ** max(low, 0), INF if high > largest else int(base**high)

    return int_function(f"({base}**{{0}})", limits), largest


GCD: Final = int_function("math.gcd({0}, {1})", _divisor_limits)
LCM: Final = int_function("math.lcm({0}, {1})", _not_negative)
ISQRT: Final = int_function("math.isqrt({0})", _root_limits)
COMB: Final = int_function("math.comb({0}, {1})", _not_negative)
BIT_LENGTH: Final = int_function("({0}).bit_length()", _length_limits)
BIT_AND: Final = int_function("({0} & {1})", _bits_limits)
BIT_OR: Final = int_function("({0} | {1})", _bits_limits)
BIT_XOR: Final = int_function("({0} ^ {1})", _bits_limits)
