"""Borders that repeat the image: padding by reflection and by replication, and its gradients.

Place in the pipeline: part of `lowering/`. Along a dimension whose elements are adjacent in memory,
each part of a padded row is read as a run, which the targets recognise (`cpp/loop_splitting.py`);
along other dimensions the position is a formula::

    reflection_pad1d(x, (2, 2))    x[2] x[1] | x[0] x[1] ... x[n-1] | x[n-2] x[n-3]
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, final

import torch

from weft.codegen.ir.loop_ir import Node
from weft.codegen.lowering.registry import LoweringContext, NotLowered, cost_of, lowering
from weft.codegen.values import Emitter, Value
from weft.shapes.algebra.expr import IntExpr, maximum, minimum
from weft.shapes.algebra.views import Index

aten = torch.ops.aten

MOST_TERMS: Final = 36
"""The most elements of a gradient that are added up for one element of the image."""

Place = tuple[IntExpr, IntExpr]
"""A position, and the size that it must be less than (and not negative)."""


@final
@dataclass(frozen=True)
class Border:
    """The padding of one dimension of `size` elements: how much, and whether it is mirrored."""

    before: int
    after: int
    size: IntExpr
    reflects: bool

    def position(self, padded: IntExpr) -> IntExpr:
        """The image's element at a position of the padded image."""
        inside, last = padded - self.before, self.size - 1
        if not self.reflects:
            return minimum(maximum(inside, 0), last)
        up = last - maximum(inside, -inside)
        return last - maximum(up, -up)

    def outside(self, padded: IntExpr, *, low: bool) -> IntExpr:
        """As `position`, on one side of the image."""
        inside, last = padded - self.before, self.size - 1
        if not self.reflects:
            return 0 if low else last
        return -inside if low else 2 * last - inside

    def copies(self, position: IntExpr) -> Iterator[tuple[list[Place], IntExpr]]:
        """The positions of an element of the image in the padded one, each with the condition that
        it exists."""
        before, after, last = self.before, self.after, self.size - 1
        yield [], position + before
        if self.reflects:
            if before:
                yield [(position - 1, before)], before - position
            if after:
                yield [(position - last + after, after)], 2 * last - position + before
            return
        for padded in range(before):
            yield [(position, 1)], padded
        for padded in range(after):
            yield [(position - last, 1)], self.size + before + padded


@lowering(
    aten.reflection_pad1d.default, aten.reflection_pad2d.default, aten.reflection_pad3d.default,
    aten.replication_pad1d.default, aten.replication_pad2d.default, aten.replication_pad3d.default,
)
def repeated_border(cx: LoweringContext, x: Value, pad: list[Any]) -> Value:
    """The image with its borders."""
    borders = _borders(cx, x, pad)
    layout = cx.layouts[0]
    in_runs = layout is None or layout[-1] == 1

    def formula(em: Emitter, index: Index) -> Node:
        at = list(index)
        for d, border in borders.items():
            at[d] = border.position(index[d])
        if not in_runs:
            return x.at(em, at)
        return _in_runs(em, x, at, index[-1], borders[len(index) - 1])

    cost, reads = cost_of(x)
    return cx.lazy(cx.shape, cx.dtype, formula, 3 * (cost + 2), 3 * reads, layout)


def _in_runs(em: Emitter, x: Value, at: list[IntExpr], padded: IntExpr, border: Border) -> Node:
    """The element, by cases along the last dimension."""
    inside = padded - border.before
    low = em.op("lt", em.index(padded), em.index(border.before))
    high = em.op("gt", em.index(inside), em.index(border.size - 1))
    with em.masked(low, 0):
        first = x.at(em, [*at[:-1], border.outside(padded, low=True)])
    with em.masked(high, 0):
        final = x.at(em, [*at[:-1], border.outside(padded, low=False)])
    with em.masked(em.op("not_", em.op("or_", low, high)), 0):
        middle = x.at(em, [*at[:-1], inside])
    return em.op("where", low, first, em.op("where", high, final, middle))


@lowering(
    aten.reflection_pad1d_backward.default, aten.reflection_pad2d_backward.default,
    aten.reflection_pad3d_backward.default, aten.replication_pad1d_backward.default,
    aten.replication_pad2d_backward.default, aten.replication_pad3d_backward.default,
)
def repeated_border_backward(
    cx: LoweringContext, gradient: Value, x: Value, pad: list[Any]
) -> Value:
    """The gradient of each element is the sum of its copies' gradients."""
    borders = _borders(cx, x, pad)
    count = math.prod(len([*border.copies(0)]) for border in borders.values())
    if count > MOST_TERMS:
        raise NotLowered("many copies of an element")
    cx.share(gradient)

    def copy(em: Emitter, index: Index, parts: tuple[tuple[list[Place], IntExpr], ...]) -> Node:
        at = list(index)
        for d, (_, position) in zip(borders, parts, strict=True):
            at[d] = position
        inside = em.within(itertools.chain(*(tests for tests, _ in parts)))
        return gradient.at_or(em, at, inside, 0)

    def formula(em: Emitter, index: Index) -> Node:
        places = [list(border.copies(index[d])) for d, border in borders.items()]
        return em.fold("add", (copy(em, index, parts) for parts in itertools.product(*places)))

    cost, reads = cost_of(gradient)
    return cx.lazy(cx.shape, cx.dtype, formula, count * (cost + 3), count * reads, cx.layouts[0])


def _borders(cx: LoweringContext, x: Value, pad: list[Any]) -> dict[int, Border]:
    """The padded dimensions' borders, the first dimension's first."""
    if not all(isinstance(n, int) and n >= 0 for n in pad):
        raise NotLowered("padding that may take away")
    reflects, rank = "reflection" in str(cx.target), len(x.shape)
    dims = range(rank - len(pad) // 2, rank)
    pairs = {d: pad[2 * (rank - 1 - d) :] for d in dims}
    return {d: Border(pairs[d][0], pairs[d][1], x.shape[d], reflects) for d in dims}
