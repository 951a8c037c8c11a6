"""Variances and standard deviations.

Place in the pipeline: part of `lowering/`; norms use `variance` too. Two passes over each row, the
mean and then the squared differences, are as accurate as eager's single one, and free if a row
stays in registers or in a cache. On a GPU, few long rows (the statistics of a batch norm) do not,
and many programs compute them: a first kernel, which reads the row from memory once, computes the
mean and the sum of squares of each piece of a row, and a second kernel combines the pieces::

    mean = average of the pieces' means          squares = sum of the pieces' squares
                                                         + length * sum of (piece's mean - mean)^2

(Chan, Golub, LeVeque: Updating Formulae and a Pairwise Algorithm for Computing Sample Variances,
1979; pieces of equal length.)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import torch

from weft.codegen.ir.dtypes import compute_dtype
from weft.codegen.lowering.reductions import (
    count_of,
    divide_by,
    mean_value,
    reduce_value,
    reduced_dims,
    reduced_shape,
)
from weft.codegen.lowering.registry import Body, LoweringContext, lowering
from weft.codegen.lowering.terms import Term, fma, maximum, sqrt, square, unchanged
from weft.codegen.lowering.views import reshaped
from weft.codegen.occupancy import OUTER_REDUCTION_COLUMNS, wanted_pieces
from weft.codegen.values import Strided, Value
from weft.shapes.algebra.expr import Expr, IntExpr
from weft.shapes.algebra.layout import row_major
from weft.shapes.algebra.views import Permute, Shape

aten = torch.ops.aten

CUT_ON = frozenset({"cuda", "xpu"})
"""Types of devices on which long rows are cut into pieces."""



def variance(
    cx: LoweringContext, x: Value, dims: Sequence[int], correction: float, keepdim: bool,
    root: bool, dtype: torch.dtype,
) -> tuple[Value, Value]:
    """(variance or its square root, mean with kept dimensions)."""
    cx.share(x)
    finish = _from_squares(count_of(x, dims), correction, root)
    pieces = _pieces(x, dims) if cx.device.type in CUT_ON else None
    if pieces is not None:
        return _combine_pieces(cx, x, dims, pieces, keepdim, dtype, finish)
    average = mean_value(cx, x, dims, True, compute_dtype(dtype))
    return _squares(cx, x, average, dims, keepdim, dtype, finish), average


def _squares(
    cx: LoweringContext, x: Value, average: Value, dims: Sequence[int], keepdim: bool,
    dtype: torch.dtype, finish: Body | None = None,
) -> Value:
    """The sum of the squared differences from the average along `dims`."""
    wide = compute_dtype(dtype)
    centred = cx.pointwise(lambda u, m: u - m, x, average, dtype=wide, shape=x.shape)
    return reduce_value(
        cx, "sum", centred, dims, keepdim, dtype=dtype, compute=wide,
        prepare=square, finish=finish,
    )


def _from_squares(count: IntExpr, correction: float, root: bool) -> Body:
    """The variance, or its square root, from a sum of squared differences."""

    def finish(total: Term) -> Term:
        result = total / _count_less(count, correction, total)
        return sqrt(result) if root else result

    return finish


def _count_less(count: IntExpr, correction: float | Expr, like: Term) -> Term:
    if isinstance(count, int) and not isinstance(correction, Expr):
        return like.number(max(count - correction, 0))
    return maximum(like.number(count) - correction, 0)


# -- pieces of long rows ---------------------------------------------------------------------------


@final
@dataclass(frozen=True, slots=True)
class _Pieces:
    """A view of the operand as pieces: its `shape`, then its dimensions in `order`, of which the
    first `outer` count the pieces and the last `inner` run along a piece."""

    shape: Shape
    order: tuple[int, ...]
    outer: int
    inner: int


def _pieces(x: Value, dims: Sequence[int]) -> _Pieces | None:
    """How to cut rows so that enough programs have work; None if they have enough without."""
    sizes = [n for n in x.shape if isinstance(n, int)]
    if len(sizes) < len(x.shape) or not dims:
        return None
    row = math.prod(sizes[d] for d in dims)
    results = math.prod(sizes) // max(1, row)
    columns = OUTER_REDUCTION_COLUMNS if _lie_side_by_side(x, dims) else 1
    wanted = wanted_pieces(results, columns, row)
    if wanted < 2:
        return None
    *whole, last = _leading(sizes, dims, wanted)
    before = math.prod(sizes[d] for d in whole)
    count = _nearest_divisor(sizes[last], wanted / before)
    if count * before < 2 or not 1 / 4 < count * before / wanted < 4:
        return None
    shape = (*sizes[:last], count, sizes[last] // count, *sizes[last + 1 :])
    outer, inner = (*whole, last), tuple(d + 1 for d in dims if d >= last)
    kept = (d for d in range(len(shape)) if d not in outer and d not in inner)
    return _Pieces(shape, (*outer, *kept, *inner), len(outer), len(inner))


def _leading(sizes: Sequence[int], dims: Sequence[int], wanted: int) -> Sequence[int]:
    """The first dimensions of `dims`, which except the last make no more pieces than wanted."""
    for n in range(1, len(dims)):
        if math.prod(sizes[d] for d in dims[:n]) > wanted:
            return dims[:n]
    return dims


def _nearest_divisor(size: int, wanted: float) -> int:
    """The divisor nearest to `wanted`, rather larger than smaller."""
    divisors = [n for n in range(1, size + 1) if size % n == 0]
    return min(divisors, key=lambda n: max(n / wanted, 2 * wanted / n))


def _lie_side_by_side(x: Value, dims: Sequence[int]) -> bool:
    """Whether neighbours in memory belong to different rows."""
    layout = x.impl.strides if isinstance(x.impl, Strided) else x.layout
    strides = row_major(x.shape) if layout is None else layout
    return any(strides[d] == 1 and x.shape[d] != 1 for d in range(len(strides)) if d not in dims)


def _combine_pieces(
    cx: LoweringContext, x: Value, dims: Sequence[int], pieces: _Pieces, keepdim: bool,
    dtype: torch.dtype, finish: Body,
) -> tuple[Value, Value]:
    """Variance and mean (with kept dimensions) from those of the pieces."""
    wide = compute_dtype(dtype)
    cut = reshaped(x, pieces.shape)
    cut = cut.view(tuple(pieces.shape[d] for d in pieces.order), Permute(pieces.order))
    rank = len(pieces.order)
    along, across = range(rank - pieces.inner, rank), range(pieces.outer)
    length = count_of(cut, along)
    kept = mean_value(cx, cut, along, True, wide)
    squares = _squares(cx, cut, kept, along, False, wide)
    means = reshaped(kept, squares.shape)
    average = reduce_value(
        cx, "sum", means, across, True, dtype=wide, finish=divide_by(count_of(means, across))
    )

    def body(s: Term, m: Term, a: Term) -> Term:
        between = m - a
        return fma(between * length, between, s)

    joint = cx.pointwise(body, squares, means, average, dtype=wide, shape=means.shape)
    spread = reduce_value(
        cx, "sum", joint, across, True, dtype=dtype, compute=wide, finish=finish
    )
    shape = reduced_shape(x.shape, dims, keepdim)
    return reshaped(spread, shape), reshaped(average, reduced_shape(x.shape, dims, True))


# -- operators -------------------------------------------------------------------------------------


@lowering(
    aten.var.correction,
    aten.std.correction,
    aten.var.dim,
    aten.std.dim,
    aten.var.default,
    aten.std.default,
)
def var(
    cx: LoweringContext, x: Value, dims: object = None, unbiased: Any = None,
    keepdim: bool = False, *,
    correction: float | None = None,
) -> Value:
    if isinstance(dims, bool):  # the .default overloads: (x, unbiased)
        dims, unbiased = None, dims
    amount = _correction(unbiased, correction)
    root = cx.target in (aten.std.correction, aten.std.dim, aten.std.default)
    axes = reduced_dims(dims, len(x.shape))
    return variance(cx, x, axes, amount, keepdim, root, cx.dtype)[0]


def _correction(unbiased: bool | None, correction: float | None) -> float:
    if unbiased is not None:
        return 1.0 if unbiased else 0.0
    return 1.0 if correction is None else correction


@lowering(aten.var_mean.correction, aten.std_mean.correction)
def var_mean(
    cx: LoweringContext, x: Value, dims: object = None, *, correction: float | None = None,
    keepdim: bool = False,
) -> list[Value]:
    axes = reduced_dims(dims, len(x.shape))
    root = cx.target is aten.std_mean.correction
    spread, average = variance(cx, x, axes, _correction(None, correction), keepdim, root, cx.dtype)
    shape = reduced_shape(x.shape, axes, keepdim)
    shaped = average if keepdim else reshaped(average, shape)
    return [spread, cx.pointwise(unchanged, shaped, shape=shape, cost=0)]
