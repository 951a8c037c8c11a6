"""View operators: index maps (`shapes/algebra/views.py`), free on values in memory.

Place in the pipeline: part of `lowering/`. A view of a formula is the formula at the base's index;
a view of memory has other sizes, strides and offset.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from weft.codegen.lowering.registry import LoweringContext, NotLowered, lowering
from weft.codegen.values import Strided, Value
from weft.shapes.algebra.expr import IntExpr
from weft.shapes.algebra.views import (
    Diagonal,
    Expand,
    Permute,
    Reshape,
    Select,
    Shape,
    Slice,
    Unfold,
)

aten = torch.ops.aten


def reshaped(x: Value, shape: Shape) -> Value:
    """The value in another shape."""
    return x.view(shape, Reshape(x.shape, shape))


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
    rank = len(x.shape)
    first, second = normalize_dim(dim0, rank), normalize_dim(dim1, rank)
    return x.view(cx.shape, Permute.swapping(rank, first, second))


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
