"""Polynomials: bounds from the bounds of their atoms, and factors of their terms.

Place in the pipeline: under `expr.py`, which adds what it knows of loops and divisions:

    n >= 2, m >= 0:    polynomial_bounds(n*m + 1) is (1, INF)
    n >= 1, m >= 0:    shifted_lower_bound(n*m - m) is 0
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.shapes.algebra.atoms import Monomial
from weft.shapes.algebra.intervals import FAR, INF, product_bounds, scaled_bound

if TYPE_CHECKING:
    from weft.shapes.algebra.expr import Expr


def shifted_lower_bound(value: Expr) -> int:
    """Write each atom as ``lo + t``; if no ``t`` has a negative factor, the constant is a lower
    bound."""
    total: dict[Monomial, int] = {(): value.const}
    for monomial, coefficient in value.terms.items():
        if any(abs(atom.bounds[0]) >= FAR for atom in monomial):
            return -INF
        for offset, shifted in _shift(monomial).items():
            total[offset] = total.get(offset, 0) + coefficient * shifted
    negative = any(c < 0 for m, c in total.items() if m)
    return -INF if negative else max(-INF, total[()])


def _shift(monomial: Monomial) -> dict[Monomial, int]:
    """The expansion of ``product(lo + t)``; an atom stands for its ``t``."""
    expansion: dict[Monomial, int] = {(): 1}
    for atom in monomial:
        grown: dict[Monomial, int] = {}
        for partial, c in expansion.items():
            longer = (*partial, atom)
            grown[longer] = grown.get(longer, 0) + c
            grown[partial] = grown.get(partial, 0) + c * atom.bounds[0]
        expansion = grown
    return expansion


def polynomial_bounds(value: Expr) -> tuple[int, int]:
    lo = hi = value.const
    for monomial, coefficient in value.terms.items():
        low, high = monomial[0].bounds
        for atom in monomial[1:]:
            low, high = product_bounds((low, high), atom.bounds)
        if coefficient < 0:
            low, high = high, low
        lo += scaled_bound(low, coefficient)
        hi += scaled_bound(high, coefficient)
        # A bound that is unknown stays so, whatever is added to it.
        lo, hi = (-INF if lo <= -FAR else lo), (INF if hi >= FAR else hi)
    return max(lo, -INF), min(hi, INF)


def shared_factors(monomials: list[Monomial]) -> Monomial:
    """The atoms that divide all monomials and are never 0."""
    shared = list(monomials[0])
    for monomial in monomials[1:]:
        rest, before, shared = list(monomial), shared, []
        for atom in before:
            if atom in rest:
                rest.remove(atom)
                shared.append(atom)
    return tuple(atom for atom in shared if atom.bounds[0] > 0)


def quotient_monomial(monomial: Monomial, divisor: Monomial) -> Monomial | None:
    """``monomial / divisor``, or None if it does not divide."""
    rest = list(monomial)
    for atom in divisor:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)
