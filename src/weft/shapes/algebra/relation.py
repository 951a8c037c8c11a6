"""Comparisons of integer expressions, joined by and/or: guards and branch conditions.

Place in the pipeline: ``facts.py`` decides them, ``guard.py`` turns the undecided into guards.

A condition is a plain ``bool`` when the ranges of its symbols decide it, else a hash-consed
`Relation` (``expr == 0``, ``expr != 0`` or ``expr >= 0``, with common factors divided out) or
`Junction`.

    >>> from weft.shapes.algebra.expr import symbol
    >>> n = symbol("n", 2)
    >>> gt(n, 1), eq(2 * n, 2 * n + 1), le(4 * n, 10)
    (True, False, (-n+2 >= 0))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import gcd
from typing import Final, final
from weakref import WeakValueDictionary

from weft.shapes.algebra.atoms import Interned
from weft.shapes.algebra.bounds import lower_bound, upper_bound
from weft.shapes.algebra.expr import Expr, IntExpr, subs, symbols, without_positive_factors
from weft.shapes.algebra.rendering import render

EQ: Final = "=="
NE: Final = "!="
GE: Final = ">="


@final
class Relation(Interned):
    """``expr == 0``, ``expr != 0`` or ``expr >= 0``, undecided by the ranges of the symbols."""

    __slots__ = ("__weakref__", "expr", "kind")

    def __init__(self, kind: str, expr: Expr) -> None:
        self.kind, self.expr = kind, expr

    def __repr__(self) -> str:
        return f"({render(self.expr)} {self.kind} 0)"

    def __bool__(self) -> bool:
        raise TypeError(f"the truth of {self!r} depends on its symbols; ask Facts.decide")


@final
class Junction(Interned):
    """All (``kind == "and"``) or any (``"or"``) of two or more conditions."""

    __slots__ = ("__weakref__", "kind", "parts")

    def __init__(self, kind: str, parts: frozenset[Condition]) -> None:
        self.kind, self.parts = kind, parts

    def __repr__(self) -> str:
        return f"({f' {self.kind} '.join(sorted(map(repr, self.parts)))})"

    def __bool__(self) -> bool:
        raise TypeError(f"the truth of {self!r} depends on its symbols; ask Facts.decide")


Condition = bool | Relation | Junction

_interned: WeakValueDictionary[tuple[object, ...], Relation | Junction] = WeakValueDictionary()


def eq(left: IntExpr, right: IntExpr) -> Condition:
    return relation(EQ, left - right)


def ne(left: IntExpr, right: IntExpr) -> Condition:
    return relation(NE, left - right)


def ge(left: IntExpr, right: IntExpr) -> Condition:
    return relation(GE, left - right)


def le(left: IntExpr, right: IntExpr) -> Condition:
    return relation(GE, right - left)


def gt(left: IntExpr, right: IntExpr) -> Condition:
    return relation(GE, left - right - 1)


def lt(left: IntExpr, right: IntExpr) -> Condition:
    return relation(GE, right - left - 1)


def relation(kind: str, expr: IntExpr) -> Condition:
    """``expr <kind> 0`` in normal form, or its truth if the ranges decide it."""
    if isinstance(expr, int):
        return expr == 0 if kind == EQ else expr != 0 if kind == NE else expr >= 0
    return _order(expr) if kind == GE else _equality(kind, expr)


def _order(expr: Expr) -> Condition:
    if lower_bound(expr) >= 0:
        return True
    if upper_bound(expr) < 0:
        return False
    return _relation(GE, _divide_out(expr))


def _equality(kind: str, expr: Expr) -> Condition:
    divisor = gcd(*expr.terms.values())
    if expr.const % divisor or lower_bound(expr) > 0 or upper_bound(expr) < 0:
        return kind == NE
    reduced = _divide_out(expr)
    # ``e == 0`` and ``-e == 0`` are the same: keep the one whose first term is positive.
    first = min(reduced.terms.items(), key=lambda item: [atom.id for atom in item[0]])
    return _relation(kind, reduced if first[1] > 0 else -reduced)


def _divide_out(expr: Expr) -> Expr:
    """``expr`` divided by the common factors of its terms (the constant is floored)."""
    divisor = gcd(*expr.terms.values())
    result = expr if divisor == 1 else expr // divisor
    assert isinstance(result, Expr)
    return without_positive_factors(result)


def _relation(kind: str, expr: Expr) -> Relation:
    key = (kind, expr)
    known = _interned.get(key)
    if known is None:
        known = _interned[key] = Relation(kind, expr)
    assert isinstance(known, Relation)
    return known


def not_(condition: Condition) -> Condition:
    if isinstance(condition, bool):
        return not condition
    if isinstance(condition, Junction):
        return _junction("or" if condition.kind == "and" else "and", map(not_, condition.parts))
    if condition.kind == GE:
        return relation(GE, -condition.expr - 1)
    return relation(NE if condition.kind == EQ else EQ, condition.expr)


def and_(*conditions: Condition) -> Condition:
    return _junction("and", conditions)


def or_(*conditions: Condition) -> Condition:
    return _junction("or", conditions)


def _junction(kind: str, conditions: Iterable[Condition]) -> Condition:
    absorbing = kind == "or"  # one True decides an ``or``, one False an ``and``
    parts: set[Condition] = set()
    for condition in conditions:
        if isinstance(condition, bool):
            if condition is absorbing:
                return absorbing
        elif isinstance(condition, Junction) and condition.kind == kind:
            parts |= condition.parts
        else:
            parts.add(condition)
    return _join(kind, frozenset(parts))


def _join(kind: str, parts: frozenset[Condition]) -> Condition:
    if not parts:
        return kind == "and"
    if len(parts) == 1:
        return next(iter(parts))
    key = (kind, parts)
    junction = _interned.get(key)
    if junction is None:
        junction = _interned[key] = Junction(kind, parts)
    return junction


def substitute(condition: Condition, mapping: Mapping[Expr, IntExpr]) -> Condition:
    """The condition with symbols replaced; a bool if that decides it."""
    return rewrite(condition, lambda expr: subs(expr, mapping))


def rewrite(condition: Condition, change: Callable[[IntExpr], IntExpr]) -> Condition:
    """The condition with ``change`` applied to every expression compared with 0."""
    if isinstance(condition, bool):
        return condition
    if isinstance(condition, Relation):
        return relation(condition.kind, change(condition.expr))
    return _junction(condition.kind, (rewrite(part, change) for part in condition.parts))


def condition_symbols(condition: Condition) -> frozenset[Expr]:
    """The symbols of all its expressions."""
    if isinstance(condition, bool):
        return frozenset()
    if isinstance(condition, Relation):
        return symbols(condition.expr)
    return frozenset().union(*map(condition_symbols, condition.parts))
