"""View operators: index maps, free on values in memory.

Place in the pipeline: part of `lowering/`. Each map is a small class with two forms (see
`values.View`): on an index, for values that are still formulas, and on shape/strides/offset, for
values in memory.

    x.permute(0, 2, 1)      Permute((0, 2, 1))
    x.view(512, 768)        Reshape((4, 128, 768), (512, 768))
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, final

import torch

from weft.codegen.lowering.registry import LoweringContext, NotLowered, lowering
from weft.codegen.values import (
    Index,
    Shape,
    Strided,
    Strides,
    Value,
)
from weft.shapes.algebra.bounds import lower_bound
from weft.shapes.algebra.expr import IntExpr

aten = torch.ops.aten


@final
@dataclass(frozen=True)
class Permute:
    """Dimension k of the view is dimension order[k] of the base."""

    order: tuple[int, ...]

    def index(self, index: Index) -> Index:
        result: list[IntExpr] = [0] * len(self.order)
        for position, dim in enumerate(self.order):
            result[dim] = index[position]
        return result

    def strided(self, shape: Shape, strides: Shape, offset: IntExpr) -> Strides | None:
        pick = self.order
        return tuple(shape[d] for d in pick), tuple(strides[d] for d in pick), offset


@final
@dataclass(frozen=True)
class Slice:
    """start + step * index in one dimension (step may be negative: flip)."""

    dim: int
    start: IntExpr
    step: IntExpr
    size: IntExpr

    def index(self, index: Index) -> Index:
        moved = self.start + index[self.dim] * self.step
        return [moved if d == self.dim else i for d, i in enumerate(index)]

    def strided(self, shape: Shape, strides: Shape, offset: IntExpr) -> Strides | None:
        if lower_bound(self.step) <= 0:
            return None  # torch tensors have no negative strides
        d = self.dim
        return (
            (*shape[:d], self.size, *shape[d + 1 :]),
            (*strides[:d], strides[d] * self.step, *strides[d + 1 :]),
            offset + self.start * strides[d],
        )


@final
@dataclass(frozen=True)
class Select:
    """Fixes one dimension."""

    dim: int
    position: IntExpr

    def index(self, index: Index) -> Index:
        return [*index[: self.dim], self.position, *index[self.dim :]]

    def strided(self, shape: Shape, strides: Shape, offset: IntExpr) -> Strides | None:
        d = self.dim
        rest = (*shape[:d], *shape[d + 1 :]), (*strides[:d], *strides[d + 1 :])
        return *rest, offset + self.position * strides[d]


@final
@dataclass(frozen=True)
class Expand:
    """Broadcasts to `shape` (new dimensions in front)."""

    base: Shape
    shape: Shape

    def index(self, index: Index) -> Index:
        return broadcast_index(index, self.base)

    def strided(self, shape: Shape, strides: Shape, offset: IntExpr) -> Strides | None:
        new = len(self.shape) - len(shape)
        kept = [
            0 if have == 1 and want != 1 else stride
            for have, want, stride in zip(shape, self.shape[new:], strides, strict=True)
        ]
        return self.shape, (*(0,) * new, *kept), offset


@final
@dataclass(frozen=True)
class Reshape:
    """The same elements in row-major order under another shape."""

    base: Shape
    shape: Shape

    def index(self, index: Index) -> Index:
        result: list[IntExpr] = []
        for base_group, view_group in dimension_groups(self.base, self.shape):
            inside = [index[d] for d in view_group]
            flat = flatten_index(inside, [self.shape[d] for d in view_group])
            result += split_index(flat, [self.base[d] for d in base_group])
        return result

    def strided(self, shape: Shape, strides: Shape, offset: IntExpr) -> Strides | None:
        steps: list[IntExpr] = [0] * len(self.shape)
        for base_group, view_group in dimension_groups(shape, self.shape):
            step = _joint_stride([(shape[d], strides[d]) for d in base_group])
            sizes = [self.shape[d] for d in view_group]
            if step is None:
                return None
            for d, size in zip(reversed(view_group), reversed(sizes), strict=True):
                steps[d] = step
                step = step * size
        return self.shape, tuple(steps), offset


def reshaped(x: Value, shape: Shape) -> Value:
    """The value in another shape."""
    return x.view(shape, Reshape(x.shape, shape))


def _joint_stride(dims: list[tuple[IntExpr, IntExpr]]) -> IntExpr | None:
    """The innermost stride of dimensions that are row-major in one piece; None if they are not."""
    kept = [(size, stride) for size, stride in dims if size != 1]
    if not kept:
        return 1
    for (_, outer), (size, inner) in pairwise(kept):
        if (outer - inner * size) != 0:
            return None
    return kept[-1][1]


def broadcast_index(index: Index, shape: Shape) -> Index:
    """The index into a value of `shape` that is broadcast to the shape of `index`."""
    tail = index[len(index) - len(shape) :]
    return [0 if size == 1 else i for i, size in zip(tail, shape, strict=True)]


def flatten_index(index: Index, shape: Index) -> IntExpr:
    """The row-major position."""
    flat: IntExpr = 0
    for i, size in zip(index, shape, strict=True):
        flat = flat * size + i
    return flat


def split_index(flat: IntExpr, shape: Index) -> list[IntExpr]:
    """The index of a row-major position (inverse of `flatten_index`)."""
    if len(shape) == 1:
        return [0] if shape[0] == 1 else [flat]
    result: list[IntExpr] = []
    for size in reversed(shape[1:]):
        result.append(flat % size)
        flat = flat // size
    result.append(0 if shape and shape[0] == 1 else flat)
    return result[::-1] if shape else []


def dimension_groups(left: Shape, right: Shape) -> list[tuple[list[int], list[int]]]:
    """Smallest runs of dimensions of the two shapes that have equal products, in order.

    >>> dimension_groups((4, 128, 768), (512, 12, 64))
    [([0, 1], [0]), ([2], [1, 2])]
    """
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(left) or j < len(right):
        first, second = ([i], [j]) if i < len(left) and j < len(right) else ([], [])
        if not first:  # what is left are sizes of 1
            rest = list(range(i, len(left))), list(range(j, len(right)))
            if groups:
                groups[-1][0].extend(rest[0])
                groups[-1][1].extend(rest[1])
            else:
                groups.append(rest)
            break
        a, b = left[i], right[j]
        i, j = i + 1, j + 1
        while (a - b) != 0 and (i < len(left) or j < len(right)):
            if i < len(left) and (j == len(right) or _left_is_behind(a, b)):
                a = a * left[i]
                first.append(i)
                i += 1
            else:
                b = b * right[j]
                second.append(j)
                j += 1
        groups.append((first, second))
    return groups


def _left_is_behind(a: IntExpr, b: IntExpr) -> bool:
    """Whether the run with product `a` should grow before the one with product `b`."""
    if isinstance(a, int) and isinstance(b, int):
        return a < b
    return bool((b % a) == 0) if a != 0 else True


def normalize_dim(dim: int, rank: int) -> int:
    """A non-negative dimension number."""
    return dim + max(rank, 1) if dim < 0 else dim


# --- operators


@lowering(aten.permute.default)
def permute(cx: LoweringContext, x: Value, dims: list[int]) -> Value:
    order = tuple(normalize_dim(d, len(x.shape)) for d in dims)
    return x.view(cx.shape, Permute(order))


@lowering(aten.transpose.int)
def transpose(cx: LoweringContext, x: Value, dim0: int, dim1: int) -> Value:
    if not x.shape:
        return alias(cx, x)
    order = list(range(len(x.shape)))
    a, b = normalize_dim(dim0, len(order)), normalize_dim(dim1, len(order))
    order[a], order[b] = order[b], order[a]
    return x.view(cx.shape, Permute(tuple(order)))


@lowering(aten.t.default)
def t(cx: LoweringContext, x: Value) -> Value:
    return transpose(cx, x, 0, 1) if len(x.shape) == 2 else alias(cx, x)


@lowering(
    aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten._reshape_alias.default,
    aten.unsqueeze.default, aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims,
    aten.flatten.using_ints, aten.unflatten.int,
)
def reshape(cx: LoweringContext, x: Value, *_: object) -> Value:
    return reshaped(x, cx.shape)


@lowering(aten.expand.default)
def expand(cx: LoweringContext, x: Value, *_: object, implicit: bool = False) -> Value:
    return x.view(cx.shape, Expand(x.shape, cx.shape))


@lowering(aten.alias.default, aten.detach.default, aten.lift_fresh_copy.default)
def alias(cx: LoweringContext, x: Value) -> Value:
    return x


@lowering(aten.slice.Tensor)
def slice_(
    cx: LoweringContext, x: Value, dim: int = 0, start: Any = None, end: object = None,
    step: int = 1
) -> Value:
    dim = normalize_dim(dim, len(x.shape))
    first = cx.clamp_start(start, x.shape[dim])
    return x.view(cx.shape, Slice(dim, first, step, cx.shape[dim]))


@lowering(aten.select.int)
def select(cx: LoweringContext, x: Value, dim: int, position: Any) -> Value:
    dim = normalize_dim(dim, len(x.shape))
    return x.view(cx.shape, Select(dim, cx.wrap_index(position, x.shape[dim])))


VIEWS: Final = frozenset({permute, transpose, t, reshape, expand, alias, slice_, select})
"""The lowerings whose results are views where that is possible, whatever the elements are."""


@lowering(aten.flip.default)
def flip(cx: LoweringContext, x: Value, dims: list[int]) -> Value:
    for d in {normalize_dim(d, len(x.shape)) for d in dims} if x.shape else ():
        x = x.view(x.shape, Slice(d, x.shape[d] - 1, -1, x.shape[d]))
    return cx.copy(x)


@lowering(aten.diagonal.default)
def diagonal(cx: LoweringContext, x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    first, second = normalize_dim(dim1, len(x.shape)), normalize_dim(dim2, len(x.shape))
    rest = tuple(d for d in range(len(x.shape)) if d not in (first, second))
    return x.view(cx.shape, Diagonal(rest, first, second, max(0, -offset), max(0, offset)))


@final
@dataclass(frozen=True)
class Diagonal:
    """The last dimension of the view runs along two of the base's."""

    rest: tuple[int, ...]
    first: int
    second: int
    row: int
    column: int

    def index(self, index: Index) -> Index:
        result: list[IntExpr] = [0] * (len(self.rest) + 2)
        for position, dim in enumerate(self.rest):
            result[dim] = index[position]
        result[self.first] = index[-1] + self.row
        result[self.second] = index[-1] + self.column
        return result

    def strided(self, shape: Shape, strides: Shape, offset: IntExpr) -> Strides | None:
        return None  # its length needs a minimum; as a formula it is just as good


@lowering(aten.as_strided.default)
def as_strided(
    cx: LoweringContext, x: Value, size: Any, strides: Any, offset: IntExpr | None = None
) -> Value:
    """`x` lies in memory with the strides of its metadata (`GraphLowering._lower`)."""
    memory = x.realize()
    start = memory.offset if offset is None else memory.offset + offset
    view = Strided(memory.buffer, tuple(size), tuple(strides), start)
    return Value(cx.shape, x.dtype, view, x.device, x.owner)


@lowering(aten.unfold.default)
def unfold(cx: LoweringContext, x: Value, dim: int, size: int, step: int) -> Value:
    if not x.shape:
        raise NotLowered("unfold of a scalar")
    return x.view(cx.shape, Unfold(normalize_dim(dim, len(x.shape)), step))


@final
@dataclass(frozen=True)
class Unfold:
    """Sliding windows: dimension `dim` counts windows, a new last dimension runs inside one."""

    dim: int
    step: int

    def index(self, index: Index) -> Index:
        result = list(index[:-1])
        result[self.dim] = result[self.dim] * self.step + index[-1]
        return result

    def strided(self, shape: Shape, strides: Shape, offset: IntExpr) -> Strides | None:
        return None
