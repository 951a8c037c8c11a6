"""What an equation or an inequality says about one symbol, and simpler inequalities.

Place in the pipeline: below `facts.py`, which learns from the results. The functions here know the
ranges of symbols, but no facts. A condition is given as an expression that is 0, or at least 0.
"""

from __future__ import annotations

from math import prod
from typing import Final

from weft.shapes.algebra.atoms import Atom, FloorDiv
from weft.shapes.algebra.bounds import lower_bound
from weft.shapes.algebra.expr import (
    Expr,
    IntExpr,
    floor_div,
    split_linear,
    subs,
    symbol,
    symbol_of,
    symbols,
)
from weft.shapes.algebra.intervals import INF
from weft.shapes.algebra.samples import somewhere_less

_FIRST_VALUES: Final = 8
"""How many of a symbol's values `after_first_values` computes an expression for."""


def is_never_less(left: IntExpr, right: IntExpr) -> bool:
    """Whether ``left >= right`` for all values of their symbols."""
    return not somewhere_less(left, right) and lower_bound(left - right) >= 0


def solve(expr: IntExpr) -> tuple[Expr, IntExpr] | None:
    """``(symbol, value)`` with ``symbol == value`` if ``expr == 0``, or None.

    The youngest symbol is chosen, so that the symbols of the first inputs survive. Data-dependent
    symbols are chosen first and never occur in a value of others, because inputs' sizes are known
    earlier.

    >>> n, m = symbol("n", 2), symbol("m", 2)
    >>> solve(2 * n - m + 1)
    (m, 2*n+1)
    """
    known = [s for s in symbols(expr) if not _depends_on_data(s)]
    data = [s for s in symbols(expr) if _depends_on_data(s)]
    for variable in sorted(data, key=_age) + ([] if data else sorted(known, key=_age)):
        slope, rest = split_linear(expr, variable) or (None, 0)
        if slope in (1, -1):
            return variable, -rest * slope
        if isinstance(slope, int) and len(data) == 1:
            return variable, floor_div(-rest, slope)
    return None


def _depends_on_data(variable: Expr) -> bool:
    return symbol_of(variable).kind == "unbacked"


def _age(variable: Expr) -> tuple[int, int]:
    """The sort key of a symbol's age: least for the youngest.

    Data-dependent symbols count in their names, in the order in which running code binds them; ids
    belong to the process.
    """
    variable_symbol = symbol_of(variable)
    number = variable_symbol.name[1:]
    counts = variable_symbol.kind == "unbacked" and number.isdigit()
    return (-int(number) if counts else 0), -variable_symbol.id


def narrow(expr: Expr) -> tuple[Expr, IntExpr] | None:
    """For ``a * symbol + b >= 0``: the symbol, and one of the same name with the narrower range.

    >>> variable, narrower = narrow(20 - 3 * symbol("n", 2))
    >>> narrower.bounds
    (2, 6)
    """
    if len(expr.symbols) != 1:
        return None
    (variable,) = expr.symbols
    slope, rest = split_linear(expr, variable) or (expr, expr)
    limits = symbol_of(variable)
    if not (isinstance(slope, int) and isinstance(rest, int) and isinstance(limits.hi, int)):
        return None
    if slope > 0:
        low, high = max(limits.lo, -(rest // slope)), limits.hi
    else:
        low, high = limits.lo, min(limits.hi, rest // -slope)
    value = low if low == high else symbol(limits.name, low, high, limits.kind)
    return variable, value


def single_atom(expr: IntExpr) -> tuple[Atom, int, int] | None:
    """For ``a * atom + b``: the atom, ``a`` and ``b``; else None."""
    if isinstance(expr, int) or len(expr.terms) != 1:
        return None
    ((monomial, slope),) = expr.terms.items()
    return (monomial[0], slope, expr.const) if len(monomial) == 1 else None


def dividend_bound(expr: Expr) -> IntExpr | None:
    """From ``a * (left // right) + b >= 0``, an expression of ``left`` that is at least 0.

    >>> dividend_bound(symbol("n", 2) // 4 - 3)
    n-12
    """
    atom, slope, rest = single_atom(expr) or (None, 0, 0)
    if not isinstance(atom, FloorDiv) or lower_bound(atom.right) < 1:
        return None
    if slope > 0:
        return atom.left - -(rest // slope) * atom.right
    return (rest // -slope + 1) * atom.right - 1 - atom.left


def without_division(expr: Expr) -> IntExpr | None:
    """A lower bound of a positive multiple of the expression, with a dividend in place of one of
    its quotients; None if there is no such quotient.

    >>> n, m = symbol("n", 2), symbol("m", 2)
    >>> without_division(m + n // 4), without_division(m - n // 4)
    (4*m+n-3, 4*m-n)
    """
    for monomial, slope in expr.terms.items():
        for at, atom in enumerate(monomial):
            if not isinstance(atom, FloorDiv) or not isinstance(atom.right, int) or atom.right < 1:
                continue
            rest = prod([other.expr for other in (*monomial[:at], *monomial[at + 1 :])])
            if lower_bound(rest) >= 0:
                dividend = atom.left if slope < 0 else atom.left - (atom.right - 1)
                others = expr - slope * rest * atom.expr
                return atom.right * others + slope * rest * dividend
    return None


def after_first_values(expr: Expr) -> Expr | None:
    """The expression for all but the first values of its one symbol, which leaves less to prove.

    None if it is negative for one of these first values, or has no division or several symbols.
    """
    if len(expr.symbols) != 1 or not any(isinstance(atom, FloorDiv) for atom in expr.atoms()):
        return None
    (variable,) = expr.symbols
    limits = symbol_of(variable)
    if limits.lo <= -INF or not isinstance(limits.hi, int) or limits.hi - limits.lo < _FIRST_VALUES:
        return None
    if any(_value_at(expr, variable, limits.lo + i) < 0 for i in range(_FIRST_VALUES)):
        return None
    rest = symbol(limits.name, limits.lo + _FIRST_VALUES, limits.hi, limits.kind)
    later = subs(expr, {variable: rest})
    return later if isinstance(later, Expr) else None


def _value_at(expr: Expr, variable: Expr, number: int) -> int:
    """The value for a number in place of the one symbol; 0 if a divisor is 0, which never
    happens."""
    try:
        value = subs(expr, {variable: number})
    except ZeroDivisionError:
        return 0
    assert isinstance(value, int)
    return value
