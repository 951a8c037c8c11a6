"""Sums, products and extrema at computed places: `index_add`, `scatter_add`, `scatter_reduce`, the
gradients of gathers and embeddings.

Place in the pipeline: part of `lowering/`. The result starts as a copy of the operand, in memory of
its own. A kernel over the *source* changes it point after point, in the order of eager's kernels
(so that sums have eager's bits), and computes the source as it goes:

    zeros.index_add(0, at, relu(x))     buf0[64*i0+i1] = 0
                                        buf1[64*j0+i1] = add(buf1[64*j0+i1], relu(x[64*i0+i1]))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

import torch

from weft.codegen.ir.dtypes import from_torch
from weft.codegen.ir.loop_ir import Node, Scalar
from weft.codegen.lowering.indexing import Positions
from weft.codegen.lowering.registry import LoweringContext, NotLowered, lowering
from weft.codegen.lowering.terms import apply, maximum
from weft.codegen.lowering.views import normalize_dim
from weft.codegen.targets import COMBINES
from weft.codegen.values import Computed, Emitter, Formula, Value, strided_index
from weft.shapes.algebra.expr import IntExpr
from weft.shapes.algebra.layout import row_major
from weft.shapes.algebra.views import Index, Shape

aten = torch.ops.aten

Places: TypeAlias = Callable[[Emitter, Index], Index]
"""The index in the result for a point of the source."""

_TYPES: Final = frozenset({"f32", "f64", "i64", "i32", "i16", "i8", "u8"})
"""Half types are ATen's: some of its operators add them up in float32."""
_MODES: Final = {"sum": "add", "mean": "add", "prod": "mul", "amax": "maximum", "amin": "minimum"}


def _combine_at(
    cx: LoweringContext, x: Value, dims: Shape, places: Places, formula: Formula, mode: str
) -> Value:
    """`x` with the formula's values, one for each point of `dims`, combined with the elements at
    their places (mode "assign": in place of them)."""
    scalar, layout = x.scalar, cx.layouts[0] or row_major(cx.shape)
    base = cx.lazy(cx.shape, cx.dtype, cx.share(x).at, layout=layout).realize().buffer
    buffer = cx.graph.new_buffer(cx.dtype, cx.shape, layout, cx.device)
    value: Value = cx.graph.define(Computed(
        buffer, dims, lambda em, index: em.cast(formula(em, index), scalar),
        lambda em, index: strided_index(places(em, index), layout),
        mode=mode, origins=cx.origins, updates=base,
    ))
    return value


def _check(cx: LoweringContext, x: Value, *indices: Value) -> None:
    """Raises NotLowered for what is better called."""
    if x.device.type not in COMBINES or from_torch(cx.dtype) not in _TYPES or not x.shape:
        raise NotLowered("type, device or a scalar")
    if cx.graph.is_rewritten(x):
        raise NotLowered("ATen's call writes the caller's tensor in place")
    if any(not v.shape or v.dtype in (torch.bool, torch.uint8) for v in indices):
        raise NotLowered("a scalar or a mask as index")


def _along(indices: Value, dim: int, size: IntExpr, at: Callable[[Index], Index]) -> Places:
    """The place of a point: the point itself, except along `dim`, where `indices` (read at `at`)
    has it."""

    def places(em: Emitter, index: Index) -> Index:
        chosen = em.indirect(indices.at(em, at(index)), size, wrap=False, check=True)
        return [chosen if d == dim else i for d, i in enumerate(index)]

    return places


@lowering(aten.index_add.default)
def index_add(
    cx: LoweringContext, x: Value, dim: int, indices: Value, source: Value, *, alpha: object = 1
) -> Value:
    _check(cx, x, indices)
    if alpha != 1:
        raise NotLowered("a product that is rounded with the sum")
    dim = normalize_dim(dim, len(x.shape))
    places = _along(indices, dim, x.shape[dim], lambda index: [index[dim]])
    return _combine_at(cx, x, source.shape, places, source.at, "add")


@lowering(aten.scatter_add.default)
def scatter_add(cx: LoweringContext, x: Value, dim: int, indices: Value, source: Value) -> Value:
    _check(cx, x, indices)
    if normalize_dim(dim, len(x.shape)) == len(x.shape) - 1 and cx.is_lone(x, indices, source):
        raise NotLowered("rows, in which ATen's loop is faster")
    return _scatter_values(cx, x, dim, indices, source.at, "add")


def _scatter_values(
    cx: LoweringContext, x: Value, dim: int, indices: Value, formula: Formula, mode: str
) -> Value:
    dim = normalize_dim(dim, len(x.shape))
    places = _along(indices, dim, x.shape[dim], lambda index: index)
    return _combine_at(cx, x, indices.shape, places, formula, mode)


@lowering(aten.scatter_reduce.two)
def scatter_reduce(
    cx: LoweringContext, x: Value, dim: int, indices: Value, source: Value, reduce: str,
    *, include_self: bool = True,
) -> Value:
    """Without `include_self`, the elements that are reached start as the neutral element."""
    _check(cx, x, indices)
    scalar = x.scalar

    def number(value: Scalar) -> Formula:
        return lambda em, index: em.const(value, scalar)

    mode = _MODES[reduce]
    if not include_self:
        x = _scatter_values(cx, x, dim, indices, number(_neutral(mode, cx.dtype)), "assign")
    scattered = _scatter_values(cx, x, dim, indices, source.at, mode)
    if reduce != "mean":
        return scattered
    counts = cx.lazy(cx.shape, cx.dtype, number(int(include_self)), layout=cx.layouts[0])
    counts = _scatter_values(cx, counts, dim, indices, number(1), "add")
    divide = "div" if cx.dtype.is_floating_point else "floordiv"
    return cx.pointwise(
        lambda total, n: apply(divide, total, maximum(n, 1)),
        scattered, counts,
    )


def _neutral(mode: str, dtype: torch.dtype) -> Scalar:
    """What changes nothing when it is combined by `mode`."""
    if mode in ("add", "mul"):
        return int(mode == "mul")
    if dtype.is_floating_point:
        return float("-inf" if mode == "maximum" else "inf")
    limits = torch.iinfo(dtype)
    return limits.min if mode == "maximum" else limits.max


@lowering(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(
    cx: LoweringContext, x: Value, indices: list[Value | None], values: Value,
    accumulate: bool = False,
) -> Value:
    present = [v for v in indices if v is not None]
    _check(cx, x, *present)
    if not accumulate or not present:
        raise NotLowered("replaced elements")
    positions = Positions.of(indices, x.shape, check=cx.target is aten.index_put.default)
    shape = positions.result_shape
    skip = len(shape) - len(values.shape)

    def formula(em: Emitter, index: Index) -> Node:
        own = zip(values.shape, index[skip:], strict=True)
        return values.at(em, [0 if n == 1 else i for n, i in own])

    return _combine_at(cx, x, shape, positions.at, formula, "add")


@lowering(aten.embedding_dense_backward.default)
def embedding_dense_backward(
    cx: LoweringContext, grad: Value, indices: Value, rows: IntExpr, padding: object,
    scale_by_frequency: bool,
) -> Value:
    """The gradients of an embedding's rows, summed up; none for the row of the padding."""
    zeros = cx.lazy(cx.shape, cx.dtype, lambda em, index: em.const(0, grad.scalar))
    _check(cx, zeros)
    if scale_by_frequency or not isinstance(padding, int):
        raise NotLowered("counts of the indices")
    rank = len(indices.shape)

    def places(em: Emitter, index: Index) -> Index:
        row = em.indirect(indices.at(em, index[:rank]), cx.shape[0], wrap=False, check=True)
        return [row, *index[rank:]]

    def formula(em: Emitter, index: Index) -> Node:
        value = grad.at(em, index)
        if padding < 0:
            return value
        row = em.cast(indices.at(em, index[:rank]), "i64")
        padded = em.op("eq", row, em.const(padding, "i64"))
        return em.op("where", padded, em.const(0, grad.scalar), value)

    return _combine_at(cx, zeros, grad.shape, places, formula, "add")
