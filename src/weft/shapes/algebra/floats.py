"""Floats computed from symbolic sizes and from symbolic Python floats.

Place in the pipeline: beside ``expr.py``; values like ``1 / math.sqrt(x.size(-1))`` stay symbolic
and reach the graph as formulas of its inputs. No algebra is done on floats (it would change
rounding): an expression is the hash-consed tree of the operations that Python performed, evaluated
as Python would.

    >>> from weft.shapes.algebra.expr import symbol
    >>> half = apply("truediv", symbol("n", 2), 2)
    >>> half, evaluate(half, {symbol("n", 2): 7})
    (((n) / 2), 3.5)
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Final, final
from weakref import WeakValueDictionary

from weft.shapes.algebra.atoms import Interned
from weft.shapes.algebra.bounds import lower_bound, upper_bound
from weft.shapes.algebra.expr import Expr, IntExpr, floor_div, subs, symbol_of, symbols
from weft.shapes.algebra.printing import python_text


@final
class FloatExpr(Interned):
    """``op`` applied to numbers: floats, ints, integer expressions, float expressions."""

    __slots__ = ("__weakref__", "args", "op")

    def __init__(self, op: str, args: tuple[Number, ...]) -> None:
        self.op, self.args = op, args

    def __repr__(self) -> str:
        return text(self)

    def __bool__(self) -> bool:
        raise TypeError(f"the truth of {self!r} depends on its symbols")


@final
class FloatSymbol(Interned):
    """A Python float that changes between calls."""

    __slots__ = ("__weakref__", "name")

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


@final
class FloatRelation(Interned):
    """A comparison that involves a float; decided by its hint and guarded as a whole.

    ``negated`` is a flag because ``not (a < b)`` is not ``a >= b`` for NaN.
    """

    __slots__ = ("__weakref__", "left", "negated", "op", "right")

    def __init__(self, op: str, left: Number, right: Number, negated: bool) -> None:
        self.op, self.left, self.right, self.negated = op, left, right, negated

    def __repr__(self) -> str:
        shown = COMPARISONS[self.op][1].format(text(self.left), text(self.right))
        return f"(not {shown})" if self.negated else f"({shown})"

    def __bool__(self) -> bool:
        raise TypeError(f"the truth of {self!r} depends on its symbols")


FloatValue = float | FloatExpr | FloatSymbol
Number = int | Expr | FloatValue
SYMBOLIC_FLOATS: Final = (FloatExpr, FloatSymbol)

OPERATIONS: Final[dict[str, tuple[Callable[..., float], str]]] = {
    "add": (operator.add, "+"),
    "sub": (operator.sub, "-"),
    "mul": (operator.mul, "*"),
    "truediv": (operator.truediv, "/"),
    "floordiv": (operator.floordiv, "//"),
    "mod": (operator.mod, "%"),
    "pow": (operator.pow, "**"),
    "min": (min, "min"),
    "max": (max, "max"),
    "neg": (operator.neg, "-"),
    "abs": (abs, "abs"),
    "float": (float, "float"),
    "round": (round, "round"),  # to a number of digits
    **{
        name: (getattr(math, name), f"math.{name}")
        for name in (
            *("sqrt", "exp", "log", "log2", "sin", "cos", "tan", "sinh", "cosh", "tanh"),
            *("asin", "acos", "atan", "atan2", "log10", "log1p", "expm1", "fmod", "hypot"),
            *("copysign", "fabs", "asinh", "acosh", "atanh", "radians", "degrees", "exp2", "cbrt"),
            *("erf", "erfc", "remainder"),
        )
    },
}

COMPARISONS: Final[dict[str, tuple[Callable[..., bool], str]]] = {
    "eq": (operator.eq, "{} == {}"),
    "ne": (operator.ne, "{} != {}"),
    "lt": (operator.lt, "{} < {}"),
    "le": (operator.le, "{} <= {}"),
    "gt": (operator.gt, "{} > {}"),
    "ge": (operator.ge, "{} >= {}"),
    # The same float, also for NaN and signed zeros.
    "same": (lambda a, b: repr(a) == repr(b), "repr({}) == repr({})"),
    # The left side is a real number: computing it does not raise.
    "is_real": (lambda a, b: type(a) in (int, float), "is_real(lambda: {})"),
}

_interned: WeakValueDictionary[tuple[object, ...], FloatExpr | FloatRelation] = (
    WeakValueDictionary()
)


def apply(op: str, *args: Number) -> FloatValue:
    """``op`` on ``args``: computed if all are constants, else an expression."""
    if all(isinstance(arg, int | float) for arg in args):
        return float(OPERATIONS[op][0](*args))
    if op == "truediv" or OPERATIONS[op][1].startswith("math."):
        args = tuple(map(_without_conversion, args))
    key = (op, *map(_identity, args))
    expr = _interned.get(key)
    if expr is None:
        expr = _interned[key] = FloatExpr(op, args)
    assert isinstance(expr, FloatExpr)
    return expr


def _without_conversion(value: Number) -> Number:
    """The value without a conversion of sizes to floats, which functions do themselves: one
    spelling for one value."""
    if isinstance(value, FloatExpr) and value.op == "float" and isinstance(value.args[0], Expr):
        return value.args[0]
    return value


def compare(op: str, left: Number, right: Number, negated: bool = False) -> bool | FloatRelation:
    """The comparison (or its negation); a bool if both sides are constants."""
    if isinstance(left, int | float) and isinstance(right, int | float):
        return bool(COMPARISONS[op][0](left, right)) is not negated
    key = (op, _identity(left), _identity(right), negated)
    relation = _interned.get(key)
    if relation is None:
        relation = _interned[key] = FloatRelation(op, left, right, negated)
    assert isinstance(relation, FloatRelation)
    return relation


# ------------------------------------------------------------------------------ whole numbers

_Ratio = tuple[IntExpr, int]
_SAFE: Final = 2**53
"""Integers below this are exact as floats, and so is arithmetic on them here."""


def rounded_down(value: Number) -> IntExpr | None:
    """``math.floor(value)`` as an integer expression, if that is exact for all sizes, else None.

    ``floor(n * 1.5)`` is ``3 * n // 2``; rounding never moves ``n / m`` to an integer.
    """
    ratio = _ratio(value)
    return None if ratio is None else floor_div(ratio[0], ratio[1])


def rounded_up(value: Number) -> IntExpr | None:
    """``math.ceil(value)``, likewise."""
    ratio = _ratio(value)
    return None if ratio is None else -floor_div(-ratio[0], ratio[1])


def truncated(value: Number) -> IntExpr | None:
    """``int(value)``, likewise, for values that are never negative."""
    ratio = _ratio(value)
    return rounded_down(value) if ratio is not None and lower_bound(ratio[0]) >= 0 else None


def _ratio(value: Number) -> tuple[IntExpr, IntExpr] | None:
    """Numerator and positive denominator of a value that Python computes without error, except
    perhaps for one final division of integers."""
    if isinstance(value, FloatExpr) and value.op == "truediv":
        over, under = (exact_ratio(arg) for arg in value.args)
        if over is not None and under is not None and over[1] == under[1] == 1:
            return (over[0], under[0]) if lower_bound(under[0]) > 0 else None
    return exact_ratio(value)


def exact_ratio(value: Number) -> _Ratio | None:
    """Numerator and denominator (a power of two) of a value computed without error."""
    if isinstance(value, int | float):
        ratio: _Ratio | None = value.as_integer_ratio() if math.isfinite(value) else None
    elif isinstance(value, Expr):
        ratio = value, 1
    elif isinstance(value, FloatExpr) and value.op in _EXACT:
        parts = [exact_ratio(arg) for arg in value.args]
        ratio = None if None in parts else _EXACT[value.op](*parts)
    else:
        ratio = None
    if ratio is None or ratio[1] > _SAFE:
        return None
    return ratio if -_SAFE < lower_bound(ratio[0]) and upper_bound(ratio[0]) < _SAFE else None


def _divide_by_power_of_two(a: _Ratio, b: _Ratio) -> _Ratio | None:
    """`a / b`, exact only if `b` is a power of two; else None."""
    over, under = b
    if not isinstance(over, int) or over <= 0 or over & (over - 1):
        return None
    return a[0] * under, a[1] * over


_EXACT: Final[Mapping[str, Callable[..., _Ratio | None]]] = {
    "float": lambda a: a,
    "neg": lambda a: (-a[0], a[1]),
    "mul": lambda a, b: (a[0] * b[0], a[1] * b[1]),
    "add": lambda a, b: (a[0] * b[1] + b[0] * a[1], a[1] * b[1]),
    "sub": lambda a, b: (a[0] * b[1] - b[0] * a[1], a[1] * b[1]),
    "truediv": _divide_by_power_of_two,
}


def is_nonnegative(value: Number) -> bool:
    """Whether a float computed from sizes cannot be negative (or NaN)."""
    if isinstance(value, int | Expr):
        return lower_bound(value) >= 0
    if isinstance(value, FloatExpr):
        return value.op in _NEVER_NEGATIVE and all(map(is_nonnegative, value.args))
    return isinstance(value, float) and value >= 0


_NEVER_NEGATIVE: Final = frozenset(
    ("float", "abs", "sqrt", "add", "mul", "truediv", "pow", "min", "max"))
"""Operations that give no negative number for operands that are not negative."""


def negation(condition: FloatRelation) -> FloatRelation:
    opposite = compare(condition.op, condition.left, condition.right, not condition.negated)
    assert isinstance(opposite, FloatRelation)
    return opposite


def _identity(value: Number) -> object:
    """A key that tells 1 from 1.0 and 0.0 from -0.0."""
    return (type(value), repr(value)) if isinstance(value, int | float) else value


def rewrite(value: Number, change: Callable[[IntExpr], IntExpr]) -> Number:
    """The value with ``change`` applied to the integer expressions in it."""
    if isinstance(value, FloatExpr):
        return apply(value.op, *(rewrite(arg, change) for arg in value.args))
    return change(value) if isinstance(value, Expr) else value


def evaluate(value: Number, env: Mapping[object, int | float]) -> int | float:
    """The number for given values of the symbols; KeyError if one is missing."""
    if isinstance(value, int | float):
        return value
    if isinstance(value, Expr):
        result = subs(value, {s: int(env[s]) for s in value.symbols})
        assert isinstance(result, int)
        return result
    if isinstance(value, FloatSymbol):
        return env[value]
    return OPERATIONS[value.op][0](*(evaluate(arg, env) for arg in value.args))


def is_real(compute: Callable[[], object]) -> bool:
    """Whether calling `compute` neither raises nor gives a complex number."""
    try:
        return type(compute()) in (int, float)
    except (ArithmeticError, ValueError):
        return False


def holds(relation: FloatRelation, env: Mapping[object, int | float]) -> bool:
    if relation.op == "is_real":
        return is_real(lambda: evaluate(relation.left, env)) is not relation.negated
    left, right = evaluate(relation.left, env), evaluate(relation.right, env)
    return bool(COMPARISONS[relation.op][0](left, right)) is not relation.negated


def number_symbols(value: Number | FloatRelation) -> frozenset[Expr | FloatSymbol]:
    """The symbols of both kinds in a number or comparison."""
    if isinstance(value, float):
        return frozenset()
    if isinstance(value, FloatSymbol):
        return frozenset((value,))
    if isinstance(value, int | Expr):
        return frozenset(symbols(value))
    args = (value.left, value.right) if isinstance(value, FloatRelation) else value.args
    return frozenset().union(*map(number_symbols, args))


def symbol_name(symbol: Expr | FloatSymbol) -> str:
    """The name of a symbol of either kind."""
    return symbol.name if isinstance(symbol, FloatSymbol) else symbol_of(symbol).name


def operations(value: Number) -> list[FloatExpr]:
    """The operations in the value, each once and after those of its arguments."""
    ordered: dict[FloatExpr, None] = {}
    pending = [value]
    while pending:
        last = pending[-1]
        if not isinstance(last, FloatExpr) or last in ordered:
            pending.pop()
            continue
        todo = [arg for arg in last.args if isinstance(arg, FloatExpr) and arg not in ordered]
        if not todo:
            ordered[last] = None
        pending += todo
    return list(ordered)


def text(value: Number, names: Mapping[str, str] | None = None,
         known: Mapping[FloatExpr, str] | None = None) -> str:
    """Python source of the value, over the module ``math`` and its symbols' names.

    ``names`` maps symbol names to other text, ``known`` values that were computed before to their
    names.
    """
    if not isinstance(value, FloatExpr):
        return _leaf_text(value, names or {})
    if known and value in known:
        return known[value]
    args = [text(arg, names, known) for arg in value.args]
    source = operation_text(value.op, args)
    if value.op == "truediv" and _may_be_zero(value.args[1]):  # operators accept it, and give inf
        return f"({source} if {args[1]} else {args[0]} * math.inf)"
    return source


def operation_text(op: str, args: Sequence[str]) -> str:
    """Python source of an operation on arguments."""
    spelling = OPERATIONS[op][1]
    if spelling.isidentifier() or spelling.startswith("math."):
        return f"{spelling}({', '.join(args)})"
    return f"({spelling}{args[0]})" if len(args) == 1 else f"({args[0]} {spelling} {args[1]})"


def _may_be_zero(divisor: Number) -> bool:
    if isinstance(divisor, int | float):
        return divisor == 0
    return not isinstance(divisor, Expr) or lower_bound(divisor) < 1


def _leaf_text(value: Number, names: Mapping[str, str]) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, FloatSymbol):
        return names.get(value.name, value.name)
    if isinstance(value, Expr):
        return f"({python_text(value, names)})"
    shown = repr(value)
    return f"({shown})" if shown.startswith("-") else shown
