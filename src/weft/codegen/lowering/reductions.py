"""Reductions: sum, mean, extrema, any/all, arg-extrema, norms (variances: `variance.py`).

Place in the pipeline: part of `lowering/`. A reduction is always a buffer of its own with a
`Computed` definition whose domain is the *input's* shape, with flags for the reduced dimensions;
scheduling then fuses it with whatever shares that domain.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, Final

import torch

from weft.codegen.ir.dtypes import FLOAT_TYPES, compute_type, from_torch
from weft.codegen.ir.loop_ir import Node
from weft.codegen.lowering.registry import (
    Body,
    LoweringContext,
    NotLowered,
    cost_of,
    lowering,
)
from weft.codegen.lowering.terms import (
    Term,
    apply,
    exp,
    isinf,
    log,
    sqrt,
    square,
    where,
)
from weft.codegen.lowering.views import normalize_dim, reshaped
from weft.codegen.values import Computed, Emitter, Formula, Lazy, Value
from weft.shapes.algebra.expr import IntExpr
from weft.shapes.algebra.layout import row_major
from weft.shapes.algebra.views import Index, Shape

aten = torch.ops.aten

_MOST_DIMENSIONS: Final = 64
WRITTEN_OUT: Final = 8
"""The most elements of a reduction that is unrolled."""
WRITTEN_OUT_AGAIN: Final = 4
"""The same if the result keeps the dimensions: it is then recomputed at each of the elements."""
_COMBINE: Final = {
    "sum": "add", "prod": "mul", "max": "maximum", "min": "minimum", "any": "or_", "all": "and_",
}


def reduced_dims(dims: Any, rank: int) -> tuple[int, ...]:
    """Normalised, sorted dimension numbers; None or () means all."""
    if dims is None:
        return tuple(range(rank))
    if isinstance(dims, int):
        dims = [dims]
    chosen = {normalize_dim(d, rank) for d in dims}
    return tuple(sorted(chosen)) if chosen else tuple(range(rank))


def reduced_shape(shape: Shape, dims: Sequence[int], keepdim: bool) -> Shape:
    """The result's shape."""
    if keepdim:
        return tuple(1 if d in dims else n for d, n in enumerate(shape))
    return tuple(n for d, n in enumerate(shape) if d not in dims)


def reduce_value(
    cx: LoweringContext,
    kind: str,
    x: Value,
    dims: Sequence[int],
    keepdim: bool,
    *,
    dtype: torch.dtype | None = None,
    compute: torch.dtype | None = None,
    prepare: Body | None = None,
    finish: Body | None = None,
) -> Value:
    """Collapse `dims` of `x` (converted to `compute`, then `prepare`d); the result, `finish`ed, has
    `dtype`."""
    if not x.shape:
        x = reshaped(x, (1,))
        dims, keepdim = (0,), False
    dtype = dtype or cx.dtype
    scalar = compute_type(from_torch(compute or dtype))
    if any(n == 0 for n in x.shape):
        raise NotLowered("reduction over nothing")
    if len(x.shape) > _MOST_DIMENSIONS:
        raise NotLowered("more dimensions than ATen reduces, which raises")

    def formula(em: Emitter, index: Index) -> Node:
        node = em.cast(x.at(em, index), scalar)
        return node if prepare is None else prepare(Term(em, node)).node

    shape = reduced_shape(x.shape, dims, keepdim)
    places = _few_places(kind, x, dims, keepdim)
    if places is None:
        return _reduction_loop(cx, kind, x, dims, shape, dtype, formula, finish)

    def combined(em: Emitter, index: Index) -> Node:
        nodes = [formula(em, _operand_index(index, dims, place, keepdim)) for place in places]
        if kind in _COMBINE:
            total = em.fold(_COMBINE[kind], nodes)
            if kind == "sum" and total.dtype in FLOAT_TYPES:  # which begins with 0: -0 has no sum
                total = em.op("add", total, em.const(0.0, total.dtype))
        else:
            total = _first_extreme(em, "gt" if kind == "argmax" else "lt", nodes)
        result = total if finish is None else finish(Term(em, total)).node
        return em.cast(result, compute_type(from_torch(dtype)))

    cost, reads = cost_of(x)
    return cx.lazy(shape, dtype, combined, len(places) * (cost + 1), len(places) * reads)


def _first_extreme(em: Emitter, wins: str, nodes: Sequence[Node]) -> Node:
    """The position of the first node that no other wins against; NaN wins against numbers."""
    best, place = nodes[0], em.const(0, "i32")
    for position, node in enumerate(nodes[1:], 1):
        better = em.op(wins, node, best)
        if node.dtype in FLOAT_TYPES:
            new = em.op("and_", em.op("isnan", node), em.op("not_", em.op("isnan", best)))
            better = em.op("or_", better, new)
        best = em.op("where", better, node, best)
        place = em.op("where", better, em.const(position, "i32"), place)
    return place


def _reduction_loop(
    cx: LoweringContext, kind: str, x: Value, dims: Sequence[int], shape: Shape,
    dtype: torch.dtype, formula: Formula, finish: Body | None,
) -> Value:
    """A buffer defined by a loop over the reduced dimensions of `x`."""
    buffer = cx.graph.new_buffer(dtype, shape, row_major(shape), cx.device)
    kept = [d for d in range(len(x.shape)) if d not in dims]

    def store(em: Emitter, index: Index) -> IntExpr:
        flat: IntExpr = 0
        for d in kept:
            flat = flat * x.shape[d] + index[d]
        return flat

    flags = tuple(d in dims for d in range(len(x.shape)))
    last = None if finish is None else lambda em, node: finish(Term(em, node)).node
    reduced: Value = cx.graph.define(
        Computed(buffer, x.shape, formula, store, kind, flags, last, origins=cx.origins)
    )
    return reduced


def _few_places(
    kind: str, x: Value, dims: Sequence[int], keepdim: bool
) -> list[tuple[int, ...]] | None:
    """The elements of a reduction that is unrolled, because it is small: operators at each point
    fuse with anything. None if a loop is better, as it shares the kernel that computes its
    elements."""
    buffer = x.buffer()
    if buffer is not None and isinstance(buffer.definition, Computed):
        return None
    extents = [n for d in dims if isinstance(n := x.shape[d], int)]
    most = WRITTEN_OUT if not keepdim else WRITTEN_OUT_AGAIN if isinstance(x.impl, Lazy) else 0
    if len(extents) < len(dims) or math.prod(extents) > most:
        return None
    return list(itertools.product(*map(range, extents)))


def _operand_index(
    index: Index, dims: Sequence[int], place: Sequence[int], keepdim: bool
) -> list[IntExpr]:
    """The operand's index of one element of a reduction."""
    at = list(index)
    for d, position in zip(dims, place, strict=True):
        at[d : d + keepdim] = [position]
    return at


def _simple(kind: str, compute_bool: bool = False) -> Any:
    def lower(
        cx: LoweringContext, x: Value, dims: object = None, keepdim: bool = False, **_: object
    ) -> Value:
        axes = reduced_dims(dims, len(x.shape))
        compute = torch.bool if compute_bool else None
        return reduce_value(cx, kind, x, axes, keepdim, compute=compute)

    return lower


for _kind, _operators in {
    "max": (aten.amax.default, aten.max.default),
    "min": (aten.amin.default, aten.min.default),
    "sum": (aten.sum.default, aten.sum.dim_IntList),
}.items():
    lowering(*_operators)(_simple(_kind))
lowering(aten.any.default, aten.any.dim, aten.any.dims)(_simple("any", compute_bool=True))
lowering(aten.all.default, aten.all.dim, aten.all.dims)(_simple("all", compute_bool=True))


@lowering(aten.prod.default, aten.prod.dim_int)
def prod(
    cx: LoweringContext, x: Value, dim: object = None, keepdim: bool = False, **_: object
) -> Value:
    return reduce_value(cx, "prod", x, reduced_dims(dim, len(x.shape)), keepdim)


@lowering(aten.mean.default, aten.mean.dim)
def mean(
    cx: LoweringContext, x: Value, dims: object = None, keepdim: bool = False, **_: object
) -> Value:
    return mean_value(cx, x, reduced_dims(dims, len(x.shape)), keepdim)


def mean_value(
    cx: LoweringContext,
    x: Value,
    dims: Sequence[int],
    keepdim: bool,
    dtype: torch.dtype | None = None,
) -> Value:
    """The mean over `dims`."""
    count = count_of(x, dims)
    return reduce_value(cx, "sum", x, dims, keepdim, dtype=dtype, finish=divide_by(count))


def count_of(x: Value, dims: Sequence[int]) -> IntExpr:
    """The number of elements that are collapsed into one."""
    return math.prod([x.shape[d] for d in dims]) if x.shape else 1


def divide_by(count: IntExpr) -> Body:
    """Division by a number of elements."""

    if isinstance(count, int) and _is_power_of_two(count):
        inverse = 1 / count
        return lambda total: total * inverse
    return lambda total: total / count


def _is_power_of_two(count: int) -> bool:
    return count > 0 and count & (count - 1) == 0


@lowering(aten.argmax.default, aten.argmin.default)
def arg_extremum(
    cx: LoweringContext, x: Value, dim: int | None = None, keepdim: bool = False
) -> Value:
    kind = "argmax" if cx.target is aten.argmax.default else "argmin"
    axes = reduced_dims(dim, len(x.shape))
    return reduce_value(cx, kind, x, axes, keepdim, dtype=torch.int64, compute=x.dtype)


@lowering(aten.max.dim, aten.min.dim)
def extremum_with_index(
    cx: LoweringContext, x: Value, dim: int, keepdim: bool = False
) -> list[Value]:
    kind = "max" if cx.target is aten.max.dim else "min"
    axes = reduced_dims(dim, len(x.shape))
    cx.share(x)
    value = reduce_value(cx, kind, x, axes, keepdim, dtype=x.dtype)
    index = reduce_value(cx, f"arg{kind}", x, axes, keepdim, dtype=torch.int64, compute=x.dtype)
    return [value, index]


@lowering(aten.logsumexp.default)
def logsumexp(cx: LoweringContext, x: Value, dims: object, keepdim: bool = False) -> Value:
    if not x.dtype.is_floating_point:
        raise NotLowered("logsumexp of integers")
    axes = reduced_dims(dims, len(x.shape))
    cx.share(x)
    top = reduce_value(cx, "max", x, axes, True, dtype=x.dtype)
    finite = cx.pointwise(
        lambda m: where(isinf(m), 0, m), top, dtype=x.dtype, shape=top.shape
    )
    shifted = cx.pointwise(
        lambda u, m: exp(u - m), x, finite, dtype=x.dtype, shape=x.shape
    )
    total = reduce_value(cx, "sum", shifted, axes, True, dtype=x.dtype, finish=log)
    result = cx.pointwise(lambda s, m: s + m, total, finite, shape=total.shape)
    return reshaped(result, cx.shape)


@lowering(aten.linalg_vector_norm.default)
def vector_norm(
    cx: LoweringContext, x: Value, order: float = 2, dims: object = None, keepdim: bool = False, *,
    dtype: torch.dtype | None = None,
) -> Value:
    if not x.dtype.is_floating_point or not isinstance(order, int | float):
        raise NotLowered(f"norm of order {order}")
    kind, prepare, finish = _NORMS[order] if order in _NORMS else _power_norm(order)
    axes = reduced_dims(dims, len(x.shape))
    return reduce_value(cx, kind, x, axes, keepdim, prepare=prepare, finish=finish)


Norm = tuple[str, Body, Body | None]
"""A reduction, what is done to the elements before, and to the result behind it."""


def _power_norm(order: float) -> Norm:
    """A root of a sum of powers."""

    def power(u: Term) -> Term:
        size = abs(u)
        return size * size * size if order == 3 else apply("pow", size, order)

    return "sum", power, lambda s: apply("pow", s, 1 / order)


_NORMS: dict[float, Norm] = {
    0: ("sum", lambda u: u.differs(0).cast(u.dtype), None),
    1: ("sum", abs, None),
    2: ("sum", square, sqrt),
    math.inf: ("max", abs, None),
    -math.inf: ("min", abs, None),
}
