"""Symbolic sizes as data, and in another process again: expressions, and what is known of them.

Place in the pipeline: used by `graphs.py` for graphs that may still be compiled. Expressions are in
normal form, so equal data give equal expressions::

    to_data(2 * s0)       # ['+', 0, [[2, [['s', 's0', 2, 128, 'size']]]]]
    from_data(data)       # 2 * s0
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import reduce
from typing import Any, Final

import torch

from weft.shapes.algebra.atoms import Applied, Atom, FloorDiv, Max, Min, Mod, Symbol
from weft.shapes.algebra.expr import (
    Expr,
    IntExpr,
    floor_div,
    maximum,
    minimum,
    mod,
    symbol,
    symbols,
)
from weft.shapes.algebra.relation import Condition, Junction, Relation, and_, or_, relation
from weft.shapes.context import ShapeContext
from weft.shapes.guard import AnyCondition
from weft.shapes.symnode import expr_of
from weft.store.errors import NotStorable
from weft.store.identity import Data


def to_data(value: IntExpr) -> Data:
    """An expression as data."""
    if isinstance(value, int):
        return value
    return ["+", value.const, [[factor, [_atom_to_data(atom) for atom in monomial]]
                               for monomial, factor in value.terms.items()]]


def _atom_to_data(atom: Atom) -> Data:
    if isinstance(atom, Symbol):
        if atom.kind == "unbacked":
            raise NotStorable("its backward has sizes that depend on data")
        return ["s", atom.name, atom.lo, to_data(atom.hi), atom.kind]
    if isinstance(atom, FloorDiv | Mod):
        return ["//" if isinstance(atom, FloorDiv) else "%", to_data(atom.left),
                to_data(atom.right)]
    if isinstance(atom, Min | Max):
        return ["min" if isinstance(atom, Min) else "max", *map(to_data, atom.args)]
    kind = atom.function.text if isinstance(atom, Applied) else type(atom).__name__
    raise NotStorable(f"its backward has the size {kind}")


def from_data(data: Data) -> IntExpr:
    """The expression that the data describe."""
    if type(data) is int:
        return data
    _, const, terms = data
    total: IntExpr = const
    for factor, atoms in terms:
        total = total + reduce(operator.mul, map(_atom_from_data, atoms), factor)
    return total


def _atom_from_data(data: Data) -> IntExpr:
    kind, *rest = data
    if kind == "s":
        name, lo, hi, of = rest
        return symbol(name, lo, from_data(hi), of)
    return _ATOMS[kind](*map(from_data, rest))


_ATOMS: Final[dict[str, Callable[..., IntExpr]]] = {
    "//": floor_div, "%": mod, "min": minimum, "max": maximum}


# -- what is known of them -------------------------------------------------------------------------


def context_to_data(context: ShapeContext, used: set[Expr]) -> Data:
    """What a context knows of the symbols: facts, and their values in the first call."""
    learned = [_condition_to_data(held) for held in context.facts_learned()]
    hints = [[to_data(known), context.hints.known[known]] for known in used
             if known in context.hints.known]
    return [learned, sorted(hints, key=repr)]


def context_of(data: Data) -> ShapeContext:
    """A context that knows the same."""
    learned, hints = data
    context = ShapeContext()
    for known, hint in hints:
        variable = from_data(known)
        context.hints.known[variable] = hint
    for condition in learned:
        context.learn(_condition_from_data(condition), True)
    return context


def symbols_in(number: object) -> frozenset[Expr]:
    """The symbols of a torch number."""
    return symbols(expr_of(number)) if isinstance(number, torch.SymInt) else frozenset()


def _condition_to_data(condition: AnyCondition) -> Data:
    if isinstance(condition, Relation):
        return [condition.kind, to_data(condition.expr)]
    if isinstance(condition, Junction):
        return [condition.kind, *sorted(map(_condition_to_data, condition.parts), key=repr)]
    raise NotStorable("its backward depends on conditions on floats")


def _condition_from_data(data: Data) -> Any:
    kind, *rest = data
    if kind in ("and", "or"):
        parts: list[Condition] = list(map(_condition_from_data, rest))
        return (and_ if kind == "and" else or_)(*parts)
    return relation(kind, from_data(rest[0]))
