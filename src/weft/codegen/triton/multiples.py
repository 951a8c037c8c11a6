"""Parts of sizes that powers of two divide: what is written for half of a row.

Place in the pipeline: used by `indices.py`. Triton is told that `n` is a multiple of 16, but does
not follow that through quotients: a second half that starts at `(n + 1) // 2` may start anywhere
for it, and is loaded element by element. With `n = 16 * n_16` the half starts at `8 * n_16`, and is
loaded in whole vectors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, cast

from weft.codegen.ir.loop_ir import Kernel, index_exprs
from weft.shapes.algebra.atoms import Monomial, Symbol
from weft.shapes.algebra.expr import Expr, IntExpr, symbol, symbol_of

MOST: Final = 16
"""Elements of the widest load: no larger multiple helps."""


def quotients(kernel: Kernel, multiples: Mapping[str, int]) -> dict[Expr, Expr]:
    """The sizes that occur inside quotients, minima and the like, each as a multiple of a new
    variable.

    multiples: names of sizes, and the powers of two that divide them.
    """
    extents = [v.extent for v in (*kernel.outer, *kernel.inner)]
    indices = [*index_exprs(kernel.nodes), *(s.index for s in kernel.stores), *extents]
    multiplied: dict[Expr, Expr] = {}
    for size in _symbols_within_atoms(indices):
        power = multiples.get(str(size), 0)
        if power:
            part = symbol(f"{size}_{power}", max(0, symbol_of(size).lo // power))
            multiplied[size] = cast(Expr, power * part)
    return multiplied


def power_of_two(value: IntExpr, multiples: Mapping[str, int]) -> int:
    """A power of two, at most 16, that divides the value of sizes (its `multiples` as above).

    >>> power_of_two(12, {})
    4
    """
    common = MOST
    for monomial, coefficient in _terms(value):
        factor = coefficient
        for atom in monomial:
            factor *= multiples.get(str(atom.expr), 1)
        common = math.gcd(common, factor)
    return common


def _terms(value: IntExpr) -> Iterable[tuple[Monomial, int]]:
    if isinstance(value, int):
        return [((), value)]
    return [((), value.const), *value.terms.items()]


def _symbols_within_atoms(values: Iterable[IntExpr]) -> Iterator[Expr]:
    """The symbols inside the values' quotients, minima and the like."""
    for value in values:
        atoms = value.atoms() if isinstance(value, Expr) else ()
        for atom in atoms:
            if not isinstance(atom, Symbol):
                yield from sorted(atom.expr.symbols, key=str)
