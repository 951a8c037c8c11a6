"""Iteration domains of fused kernels: common refinements of shapes.

Place in the pipeline: used by `scheduling/schedule.py`. Definitions can share a kernel if their
domains are the same set of points with different shapes. The *refinement* is the coarsest shape
such that both are row-major groupings of its dimensions::

    (4, 128, 768) and (512, 768)   →  (4, 128, 768): the second one's index 0 is 128*d0 + d1

A domain's dimensions may be marked inner (reduced). Symbols are canonical - dimension k of extent n
is always `loop_index("dk", n)` - so equal accesses in equal domains are the same `Expr`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

from weft.shapes.algebra.expr import Expr, IntExpr, loop_index


@final
@dataclass(frozen=True)
class Domain:
    """Extents (none of them 1) with flags: True for reduced dimensions."""

    extents: tuple[IntExpr, ...]
    inner: tuple[bool, ...]

    @property
    def is_reduction(self) -> bool:
        return any(self.inner)

    def symbols(self) -> list[Expr]:
        """The canonical loop variables."""
        return [loop_index(f"d{k}", n) for k, n in enumerate(self.extents)]


@final
@dataclass(frozen=True)
class Refinement:
    """A joint domain, and each partner's loop variables in terms of its variables."""

    domain: Domain
    left: dict[Expr, IntExpr]
    right: dict[Expr, IntExpr]


def refine(left: Domain, right: Domain) -> Refinement | None:
    """The joint domain of two domains, or None.

    A domain without reduction joins one with a reduction either over all its points or over its
    outer ones.
    """
    if left == right:
        same: dict[Expr, IntExpr] = {s: s for s in left.symbols()}
        return Refinement(left, same, same)
    if left.is_reduction and right.is_reduction:
        return _refine_all(left, right)
    if right.is_reduction:
        swapped = refine(right, left)
        return swapped and Refinement(swapped.domain, swapped.right, swapped.left)
    if (math.prod(left.extents) - math.prod(right.extents)) == 0:
        return _refine_all(left, right)
    return _refine_outer(left, right) if left.is_reduction else None


def _refine_all(left: Domain, right: Domain) -> Refinement | None:
    pieces = _pieces(left.extents, right.extents)
    if pieces is None:
        return None
    extents, left_owner, right_owner = pieces
    flags = [left.inner[k] if left.is_reduction else right.inner[j]
             for k, j in zip(left_owner, right_owner, strict=True)]
    if left.is_reduction and right.is_reduction and flags != [right.inner[j] for j in right_owner]:
        return None
    domain = Domain(tuple(extents), tuple(flags))
    symbols = domain.symbols()
    return Refinement(
        domain,
        _rewrite(left, left_owner, extents, symbols),
        _rewrite(right, right_owner, extents, symbols),
    )


def _refine_outer(left: Domain, right: Domain) -> Refinement | None:
    """The refinement if `right` runs over the outer points of the reduction domain `left`."""
    outer = [k for k, inner in enumerate(left.inner) if not inner]
    pieces = _pieces(tuple(left.extents[k] for k in outer), right.extents)
    if pieces is None:
        return None
    outer_extents, left_owner, right_owner = pieces
    extents: list[IntExpr] = []
    owner: list[int] = []
    positions: list[int] = []
    for k, n in enumerate(left.extents):
        if left.inner[k]:
            extents.append(n)
            owner.append(k)
            continue
        for size, dim in zip(outer_extents, left_owner, strict=True):
            if outer[dim] == k:
                positions.append(len(extents))
                extents.append(size)
                owner.append(k)
    domain = Domain(tuple(extents), tuple(left.inner[k] for k in owner))
    symbols = domain.symbols()
    chosen = [symbols[p] for p in positions]
    return Refinement(
        domain,
        _rewrite(left, owner, extents, symbols),
        _rewrite(right, right_owner, outer_extents, chosen),
    )


def _pieces(
    left: tuple[IntExpr, ...], right: tuple[IntExpr, ...]
) -> tuple[list[IntExpr], list[int], list[int]] | None:
    """Extents of the refinement, and for each the dimension of either shape that it belongs to."""
    if any(n == 0 for n in (*left, *right)):
        return None  # nothing to do, and nothing to divide by
    extents: list[IntExpr] = []
    owners: list[tuple[int, int]] = []
    i, j = len(left) - 1, len(right) - 1
    a: IntExpr = left[i] if i >= 0 else 1
    b: IntExpr = right[j] if j >= 0 else 1
    while i >= 0 and j >= 0:
        owners.append((i, j))
        if (a - b) == 0:
            extents.append(a)
            i, j = i - 1, j - 1
            a, b = left[i] if i >= 0 else 1, right[j] if j >= 0 else 1
        elif (a % b) == 0:
            extents.append(b)
            a, j = a // b, j - 1
            b = right[j] if j >= 0 else 1
        elif (b % a) == 0:
            extents.append(a)
            b, i = b // a, i - 1
            a = left[i] if i >= 0 else 1
        else:
            return None
    if i >= 0 or j >= 0:
        return None
    return extents[::-1], [o[0] for o in owners[::-1]], [o[1] for o in owners[::-1]]


def _rewrite(
    old: Domain, owner: list[int], extents: list[IntExpr], symbols: list[Expr]
) -> dict[Expr, IntExpr]:
    """Each old loop variable as a row-major position in its pieces."""
    result: dict[Expr, IntExpr] = {}
    for k, variable in enumerate(old.symbols()):
        position: IntExpr = 0
        for dim, extent, symbol in zip(owner, extents, symbols, strict=True):
            if dim == k:
                position = position * extent + symbol
        result[variable] = position
    return result
