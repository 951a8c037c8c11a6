"""Values of expressions at a few points of their symbols' ranges.

Place in the pipeline: below ``facts.py``, which looks for proofs that one expression is never less
than another. Where it is less at one of these points there is none, and finding that out from the
expressions takes long where divisions are nested.

    >>> from weft.shapes.algebra.expr import symbol
    >>> n, m = symbol("n", 2), symbol("m", 0, 1)
    >>> somewhere_less(n, 2 * n - 2), somewhere_less(n, n // 4 * 4), somewhere_less(n, m)
    (True, False, False)
"""

from __future__ import annotations

import operator
import random
from collections.abc import Iterator
from math import prod
from typing import Final
from weakref import WeakKeyDictionary

from weft.shapes.algebra.atoms import Applied, Atom, Symbol
from weft.shapes.algebra.expr import OPERATORS, Expr, IntExpr, operands
from weft.shapes.algebra.intervals import INF

_POINTS: Final = 12
_MOST_BITS: Final = 14
"""The most bits of what is added to a symbol's least value, so that products of a few symbols fit
in 64 bits."""

Values = tuple[int, ...]
_of_exprs: WeakKeyDictionary[Expr, Values] = WeakKeyDictionary()


class _Nowhere(Exception):
    """A symbol's range depends on others, or a divisor is 0."""


def somewhere_less(left: IntExpr, right: IntExpr) -> bool:
    """Whether ``left < right`` at one of the points."""
    try:
        return any(map(operator.lt, _values(left), _values(right)))
    except _Nowhere:
        return False


def _values(value: IntExpr) -> Values:
    if isinstance(value, int):
        return (value,) * _POINTS
    values = _of_exprs.get(value)
    if values is None:
        atom = value.atom
        values = _of_exprs[value] = _of_sum(value) if atom is None else _of_atom(atom)
    return values


def _of_sum(value: Expr) -> Values:
    products = (
        [coefficient * prod(factors) for factors in zip(*map(_factor, monomial), strict=True)]
        for monomial, coefficient in value.terms.items())
    return tuple([value.const + sum(terms) for terms in zip(*products, strict=True)])


def _factor(atom: Atom) -> Values:
    return _values(atom.expr)


def _of_atom(atom: Atom) -> Values:
    if isinstance(atom, Symbol):
        return tuple(_sample(atom))
    function = atom.function.compute if isinstance(atom, Applied) else OPERATORS[type(atom)]
    try:
        values = [function(*args) for args in zip(*map(_values, operands(atom)), strict=True)]
    except ArithmeticError as error:
        raise _Nowhere from error
    return tuple([value for value in values if isinstance(value, int)])


def _sample(variable: Symbol) -> Iterator[int]:
    """Values at distances from the range's end that differ in length, so that each symbol is large
    beside the rest somewhere. (The same ones in each process.)"""
    if not isinstance(variable.hi, int):
        raise _Nowhere
    draw = random.Random(variable.name)
    for _ in range(_POINTS):
        distance = draw.choice((0, draw.getrandbits(draw.randrange(_MOST_BITS))))
        if variable.lo > -INF:
            yield min(variable.lo + distance, variable.hi)
        else:
            yield min(draw.choice((distance, -distance)), variable.hi)
