"""Pickling and copying of expressions: read back, they are the hash-consed objects again.

Place in the pipeline: beside ``expr.py``; nothing calls it, the registry of ``copyreg`` does.

    pickle.loads(pickle.dumps(n * 2 + 1)) is n * 2 + 1
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable

from weft.shapes.algebra.atoms import Applied, Atom, Monomial, Symbol
from weft.shapes.algebra.expr import (
    OPERATORS,
    Expr,
    IntExpr,
    applied,
    operands,
    symbol,
    symbol_of,
)
from weft.shapes.algebra.functions import int_function


def _reduce_expr(value: Expr) -> tuple[Callable[..., IntExpr], tuple[object, ...]]:
    return _from_terms, (value.const, [(m, c) for m, c in value.terms.items()])


def _from_terms(const: int, terms: list[tuple[Monomial, int]]) -> IntExpr:
    """Rebuild an unpickled expression (atoms rebuild themselves)."""
    total: IntExpr = const
    for monomial, coefficient in terms:
        term: IntExpr = coefficient
        for atom in monomial:
            term = term * atom.expr
        total = total + term
    return total


def _reduce_symbol(atom: Symbol) -> tuple[Callable[..., Symbol], tuple[object, ...]]:
    return _rebuild_symbol, (atom.name, atom.lo, atom.hi, atom.kind)


def _rebuild_symbol(name: str, lo: int, hi: IntExpr, kind: str) -> Symbol:
    return symbol_of(symbol(name, lo, hi, kind))


def _reduce_operation(atom: Atom) -> tuple[Callable[..., Atom], tuple[object, ...]]:
    return _rebuild_operation, (type(atom), operands(atom))


def _rebuild_operation(kind: type[Atom], args: tuple[IntExpr, ...]) -> Atom:
    """The atom of an operator on unpickled operands, which is in normal form already."""
    return _atom_of(OPERATORS[kind](*args))


def _reduce_applied(atom: Applied) -> tuple[Callable[..., Atom], tuple[object, ...]]:
    return _rebuild_applied, (atom.function.text, atom.args)


def _rebuild_applied(text: str, args: tuple[IntExpr, ...]) -> Atom:
    return _atom_of(applied(int_function(text), *args))


def _atom_of(made: IntExpr) -> Atom:
    assert isinstance(made, Expr) and made.atom is not None
    return made.atom


copyreg.pickle(Expr, _reduce_expr)  # type: ignore[arg-type]  # it may be a constant
copyreg.pickle(Symbol, _reduce_symbol)
copyreg.pickle(Applied, _reduce_applied)  # type: ignore[arg-type]
for _kind in OPERATORS:
    copyreg.pickle(_kind, _reduce_operation)
