"""Tensors made from nothing: constants, ranges, triangles.

Place in the pipeline: part of `lowering/`.
"""

from __future__ import annotations

from typing import Any

import torch

from weft.codegen.ir.dtypes import compute_type, from_torch
from weft.codegen.ir.loop_ir import Node
from weft.codegen.lowering.registry import (
    NUMBER_OPERATORS,
    LoweringContext,
    NotLowered,
    cost_of,
    lowering,
    number_value,
)
from weft.codegen.lowering.terms import unchanged
from weft.codegen.values import Emitter, Value
from weft.shapes.algebra.expr import Expr, IntExpr
from weft.shapes.algebra.views import Index

aten = torch.ops.aten


def constant(cx: LoweringContext, number: object) -> Value:
    """A tensor full of one number."""
    scalar = compute_type(from_torch(cx.dtype))
    if isinstance(number, Expr):
        return cx.lazy(cx.shape, cx.dtype, lambda em, index: em.number(number, scalar))
    number = number_value(cx, number)
    if isinstance(number, Value):
        return cx.pointwise(unchanged, number, cost=0)
    if not isinstance(number, (int, float, bool)):
        raise NotLowered(f"constant {number!r}")
    return cx.lazy(
        cx.shape, cx.dtype, lambda em, index: em.const(number, scalar), 0, 0, cx.layouts[0]
    )


@lowering(aten.full.default, aten.full_like.default, aten.new_full.default)
def full(cx: LoweringContext, first: object, second: object, *rest: object, **_: object) -> Value:
    return constant(cx, rest[0] if rest else second)


@lowering(aten.fill.Scalar, aten.fill.Tensor)
def fill(cx: LoweringContext, x: Value, number: object) -> Value:
    return constant(cx, number)


@lowering(aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default)
def zeros(cx: LoweringContext, *_: object, **__: object) -> Value:
    return constant(cx, 0)


@lowering(aten.ones.default, aten.ones_like.default, aten.new_ones.default)
def ones(cx: LoweringContext, *_: object, **__: object) -> Value:
    return constant(cx, 1)


@lowering(aten.scalar_tensor.default)
def scalar_tensor(cx: LoweringContext, number: object, **_: object) -> Value:
    return constant(cx, number)


NUMBER_OPERATORS.update((
    aten.full.default, aten.full_like.default, aten.new_full.default, aten.fill.Scalar,
    aten.scalar_tensor.default))


@lowering(aten.arange.default, aten.arange.start, aten.arange.start_step)
def arange(cx: LoweringContext, *bounds: object, **_: object) -> Value:
    start, step = (0, 1) if len(bounds) == 1 else (bounds[0], bounds[2] if len(bounds) > 2 else 1)
    return iota(cx, start, step)


@lowering(torch.ops.prims.iota.default)
def prims_iota(
    cx: LoweringContext, length: object, *, start: object, step: object, **_: object
) -> Value:
    return iota(cx, start, step)


def iota(cx: LoweringContext, start: Any, step: Any) -> Value:
    """start + i * step in the node's type (floats: computed in that type, as eager's accumulates
    in double).
    """
    scalar = compute_type(from_torch(cx.dtype))

    def formula(em: Emitter, index: Index) -> Node:
        if not isinstance(start, float) and not isinstance(step, float):
            return em.cast(em.index(index[0] * step + start), scalar)
        position = em.cast(em.index(index[0]), "f64")
        scaled = em.op("mul", position, em.number(step, "f64"))
        return em.cast(em.op("add", scaled, em.number(start, "f64")), scalar)

    return cx.lazy(cx.shape, cx.dtype, formula, 1)


@lowering(aten.eye.default, aten.eye.m)
def eye(cx: LoweringContext, *_: object, **__: object) -> Value:
    scalar = compute_type(from_torch(cx.dtype))

    def formula(em: Emitter, index: Index) -> Node:
        return em.cast(em.op("eq", em.index(index[0]), em.index(index[1])), scalar)

    return cx.lazy(cx.shape, cx.dtype, formula, 2)


def _triangle(name: str) -> Any:
    def lower(cx: LoweringContext, x: Value, diagonal: int = 0) -> Value:
        def formula(em: Emitter, index: Index) -> Node:
            node = x.at(em, index)
            gap: IntExpr = index[-1] - index[-2]
            inside = em.op(name, em.index(gap), em.number(diagonal, "i64"))
            return em.op("where", inside, node, em.const(0, node.dtype))

        cost, reads = cost_of(x)
        return cx.lazy(cx.shape, cx.dtype, formula, cost + 2, reads, cx.layouts[0])

    return lower


lowering(aten.tril.default)(_triangle("le"))
lowering(aten.triu.default)(_triangle("ge"))
