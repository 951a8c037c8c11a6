"""Numbers that an expression never falls below, or never exceeds.

Place in the pipeline: under `expr.py`, which simplifies divisions and remainders by them; facts and
the code generator ask too, before they test or guard anything.

    >>> from weft.shapes.algebra.expr import loop_index, symbol
    >>> n = symbol("n", 2)
    >>> i = loop_index("i", n)
    >>> bounds(n - i)[0] == -INF, lower_bound(n - i)
    (True, 1)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.shapes.algebra.atoms import (
    HAS_EXTREME,
    HAS_LOOP_BOUND,
    Atom,
    FloorDiv,
    Max,
    Min,
    Mod,
    Symbol,
)
from weft.shapes.algebra.intervals import FAR, INF, quotient_bounds
from weft.shapes.algebra.polynomials import shifted_lower_bound

if TYPE_CHECKING:
    from weft.shapes.algebra.expr import Expr, IntExpr


def bounds(value: IntExpr) -> tuple[int, int]:
    """An interval that holds every value; ``INF`` and ``-INF`` where nothing is known."""
    return (value, value) if isinstance(value, int) else value.bounds


def lower_bound(value: IntExpr) -> int:
    """A number that ``value`` is never below (``-INF`` if unknown).

    Sharper than ``bounds``: it follows loop indices to their symbolic limits and compares products
    of sizes (``n*m - m`` is at least 0 if ``n >= 1`` and ``m >= 0``).
    """
    if isinstance(value, int):
        return value
    lo = value.bounds[0]
    if len(value.terms) == 1 or (lo > -INF and value.flags < HAS_LOOP_BOUND):
        return lo
    if value.least is None:
        value.least = max(lo, _structural_lower_bound(value))
    return value.least


def upper_bound(value: IntExpr) -> int:
    """A number that ``value`` is never above (``INF`` if unknown)."""
    return -lower_bound(-value)


def is_nonnegative(value: IntExpr) -> bool:
    return lower_bound(value) >= 0


def _structural_lower_bound(value: Expr) -> int:
    limited = _at_loop_limits(value)
    if isinstance(limited, int):
        return limited
    bound = max(limited.bounds[0], shifted_lower_bound(limited))
    if limited.flags & HAS_EXTREME:
        bound = max(bound, _bound_without_extremes(limited))
    return bound if bound > -INF else _bound_without_division(limited)


def _bound_without_extremes(value: Expr) -> int:
    """The bound with each min/max replaced by each argument: ``n - min(n, 14) >= n - n``."""
    for monomial, coefficient in value.terms.items():
        atom = monomial[0]
        if len(monomial) == 1 and isinstance(atom, Min | Max):
            rest = value - coefficient * atom.expr
            limits = [lower_bound(rest + coefficient * arg) for arg in atom.args]
            return max(limits) if isinstance(atom, Min) is (coefficient < 0) else min(limits)
    return -INF


def _bound_without_division(value: Expr) -> int:
    """The bound that follows from ``a - k + 1 <= k * (a // k) <= a``."""
    for monomial, coefficient in value.terms.items():
        if len(monomial) != 1 or not isinstance(atom := monomial[0], FloorDiv):
            continue
        left, k, rest = atom.left, atom.right, value - coefficient * atom.expr
        if isinstance(k, int) and k > 0:
            end = left if coefficient < 0 else left - k + 1
            scaled = lower_bound(k * rest + coefficient * end)
            return -INF if scaled <= -FAR else -(-scaled // k)
        if coefficient < 0 and lower_bound(k) >= 1 and lower_bound(left) >= 0:
            return lower_bound(rest + coefficient * left)
    return -INF


def _at_loop_limits(value: IntExpr) -> IntExpr:
    """``value`` with each symbolically bounded index where it makes ``value`` smallest."""
    while not isinstance(value, int) and value.flags & HAS_LOOP_BOUND:
        steps = (_at_limit(value, atom) for atom in value.atoms())
        step = next((e for e in steps if e is not None), None)
        if step is None:
            break
        value = step
    return value


def _at_limit(value: Expr, atom: Atom) -> IntExpr | None:
    """``value`` with one loop index at its extreme; None if the sign of its factor is unknown."""
    if not isinstance(atom, Symbol) or isinstance(atom.hi, int):
        return None
    slope, rest = value.linear_parts(atom.expr) or (None, 0)
    if slope is None:
        return None
    if bounds(slope)[0] >= 0:
        return rest + slope * atom.lo
    return rest + slope * atom.hi if bounds(slope)[1] <= 0 else None


def division_bounds(atom: FloorDiv | Mod) -> tuple[int, int]:
    left, right = bounds(atom.left), bounds(atom.right)
    if right[0] <= 0:
        return -INF, INF
    if isinstance(atom, FloorDiv):
        return quotient_bounds(left, right)
    highest = right[1] - 1 if right[1] < INF else INF
    return 0, min(highest, left[1]) if left[0] >= 0 else highest
