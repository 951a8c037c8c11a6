"""Softmax and norms as compositions of reductions and pointwise formulas.

Place in the pipeline: part of `lowering/`, for operators that `aot` did not decompose. Scheduling
fuses the parts into one kernel again, since they share the domain.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from weft.codegen.ir.dtypes import compute_dtype
from weft.codegen.lowering.reductions import mean_value, reduce_value
from weft.codegen.lowering.registry import (
    NUMBER_OPERATORS,
    LoweringContext,
    NotLowered,
    is_channels_last,
    lowering,
)
from weft.codegen.lowering.terms import Term, exp, log, rsqrt, square, unchanged
from weft.codegen.lowering.variance import variance
from weft.codegen.lowering.views import normalize_dim, reshaped
from weft.codegen.values import Value
from weft.shapes.algebra.views import Shape

aten = torch.ops.aten


def _shift(cx: LoweringContext, x: Value, dim: int) -> tuple[Value, tuple[int, ...], torch.dtype]:
    """x minus its maximum along `dim`."""
    axes = (normalize_dim(dim, len(x.shape)),) if x.shape else ()
    if not axes:
        raise NotLowered("softmax of a scalar")
    wide = compute_dtype(cx.dtype)
    cx.share(x)
    top = reduce_value(cx, "max", x, axes, True, dtype=wide)
    return cx.pointwise(lambda u, m: u - m, x, top, dtype=wide, shape=x.shape), axes, wide


@lowering(aten._softmax.default, aten.softmax.int)
def softmax(cx: LoweringContext, x: Value, dim: int, *_: object, **__: object) -> Value:
    shifted, axes, wide = _shift(cx, x, dim)
    powers = cx.pointwise(exp, shifted, dtype=wide, shape=x.shape)
    total = reduce_value(cx, "sum", powers, axes, True, dtype=wide)
    return cx.pointwise(lambda u, s: u / s, powers, total, compute=wide)


@lowering(aten._log_softmax.default, aten.log_softmax.int)
def log_softmax(cx: LoweringContext, x: Value, dim: int, *_: object, **__: object) -> Value:
    shifted, axes, wide = _shift(cx, x, dim)
    total = reduce_value(cx, "sum", shifted, axes, True, dtype=wide, prepare=exp, finish=log)
    return cx.pointwise(lambda u, s: u - s, shifted, total, compute=wide)


@lowering(aten._softmax_backward_data.default)
def softmax_backward(cx: LoweringContext, grad: Value, y: Value, dim: int, dtype: object) -> Value:
    axes = (normalize_dim(dim, len(y.shape)),)
    wide = compute_dtype(y.dtype)
    product = cx.pointwise(lambda g, u: g * u, grad, y, dtype=wide)
    total = reduce_value(cx, "sum", product, axes, True, dtype=wide)
    return cx.pointwise(lambda p, u, s: p - u * s, product, y, total, compute=wide)


@lowering(aten._log_softmax_backward_data.default)
def log_softmax_backward(
    cx: LoweringContext, grad: Value, y: Value, dim: int, dtype: object
) -> Value:
    axes = (normalize_dim(dim, len(y.shape)),)
    wide = compute_dtype(y.dtype)
    cx.share(grad)
    total = reduce_value(cx, "sum", grad, axes, True, dtype=wide)
    return cx.pointwise(lambda g, u, s: g - exp(u) * s, grad, y, total, compute=wide)


def _normalize(
    cx: LoweringContext, x: Value, axes: Sequence[int], eps: float, wide: torch.dtype
) -> tuple[Value, Value, Value]:
    """((x - mean) * rstd, mean, rstd), statistics with kept dimensions."""
    spread, average = variance(cx, x, axes, 0.0, True, False, wide)
    inverse = _inverse_deviation(cx, spread, eps, wide)
    scaled = cx.pointwise(
        lambda u, m, r: (u - m) * r, x, average, inverse, dtype=wide, shape=x.shape
    )
    return scaled, average, inverse


def _inverse_deviation(cx: LoweringContext, spread: Value, eps: float, wide: torch.dtype) -> Value:
    return cx.pointwise(lambda v, e: rsqrt(v + e), spread, eps,
                        dtype=wide, shape=spread.shape)


def _affine(
    cx: LoweringContext, x: Value, weight: Value | None, bias: Value | None, wide: torch.dtype
) -> Value:
    """x * weight + bias in `wide`, rounded to the node's type."""
    if weight is not None:
        x = cx.pointwise(lambda u, w: u * w, x, weight, dtype=wide, shape=x.shape)
    if bias is not None:
        x = cx.pointwise(lambda u, v: u + v, x, bias, dtype=wide, shape=x.shape)
    return x


def _like(cx: LoweringContext, position: int, x: Value) -> Value:
    """A statistic in the shape and type of the node's result number `position`."""
    shape, dtype = cx.shapes[position], cx.dtypes[position]
    shaped = reshaped(x, shape)
    return cx.pointwise(unchanged, shaped, shape=shape, dtype=dtype, cost=0)


@lowering(aten.native_layer_norm.default)
def layer_norm(
    cx: LoweringContext, x: Value, normalized: Sequence[object], weight: Value | None,
    bias: Value | None,
    eps: float
) -> list[Value]:
    if any(p is not None and p.shape != tuple(normalized) for p in (weight, bias)):
        raise NotLowered("ATen refuses it, or knows the sizes to be equal")
    axes = tuple(range(len(x.shape) - len(normalized), len(x.shape)))
    wide = compute_dtype(x.dtype)
    scaled, average, inverse = _normalize(cx, x, axes, eps, wide)
    shaped = _affine(cx, scaled, weight, bias, wide)
    result = cx.pointwise(unchanged, shaped, compute=wide, cost=0)
    return [result, _like(cx, 1, average), _like(cx, 2, inverse)]


@lowering(aten.native_group_norm.default)
def group_norm(
    cx: LoweringContext, x: Value, weight: Value | None, bias: Value | None, n: Any, c: Any, hw:
    Any, groups: int, eps: float,
) -> list[Value]:
    wide = compute_dtype(x.dtype)
    if cx.device.type == "cpu" and is_channels_last(x.shape, cx.layouts[0]):
        return _group_norm_of_channels(cx, x, weight, bias, groups, eps)
    grouped: Shape = (n, groups, c // groups, hw)
    view = reshaped(x, grouped)
    scaled, average, inverse = _normalize(cx, view, (2, 3), eps, wide)
    columns: Shape = (1, groups, c // groups, 1)
    shaped = [
        v if v is None else reshaped(v, columns) for v in (weight, bias)
    ]
    affine = _affine(cx, scaled, shaped[0], shaped[1], wide)
    back = reshaped(affine, x.shape)
    result = cx.pointwise(unchanged, back, compute=wide, cost=0)
    return [result, _like(cx, 1, average), _like(cx, 2, inverse)]


def _group_norm_of_channels(
    cx: LoweringContext, x: Value, weight: Value | None, bias: Value | None, groups: int, eps: float
) -> list[Value]:
    """Group norm for channels-last memory: statistics of each channel, then of groups of them, and
    a factor and a term for each channel. (The few channels of a group would not fill a vector.)"""
    wide, (n, c) = compute_dtype(x.dtype), x.shape[:2]
    cx.share(x)
    spreads, averages = variance(cx, x, (2, 3), 0.0, True, False, wide)
    grouped: Shape = (n, groups, c // groups)
    parts = [reshaped(v, grouped) for v in (spreads, averages)]
    mean = mean_value(cx, parts[1], (2,), True, wide)

    def deviation(v: Term, u: Term, m: Term) -> Term:
        return v + square(u - m)

    spread = cx.pointwise(deviation, *parts, mean, dtype=wide, shape=grouped)
    inverse = _inverse_deviation(cx, mean_value(cx, spread, (2,), True, wide), eps, wide)
    columns: Shape = (1, groups, c // groups)
    gain, lift = (v and reshaped(v, columns) for v in (weight, bias))
    factor = _affine(cx, cx.pointwise(unchanged, inverse, dtype=wide, shape=grouped), gain,
                     None, wide)
    factor.realize()
    term = _affine(cx, cx.pointwise(lambda m, f: -(m * f), mean, factor,
                                    dtype=wide, shape=grouped), None, lift, wide)
    term.realize()
    each: Shape = (n, c, 1, 1)
    result = cx.pointwise(
        lambda u, f, t: u * f + t,
        x, *(reshaped(v, each) for v in (factor, term)), compute=wide,
    )
    return [result, _like(cx, 1, mean), _like(cx, 2, inverse)]


@lowering(aten._native_batch_norm_legit_no_training.default)
def batch_norm_inference(
    cx: LoweringContext, x: Value, weight: Value | None, bias: Value | None, mean: Value, var:
    Value, momentum: float, eps: float,
) -> list[Value]:
    wide = compute_dtype(x.dtype)
    columns: Shape = (1, x.shape[1], *((1,) * (len(x.shape) - 2)))
    operands = [
        v if v is None else reshaped(v, columns)
        for v in (weight, bias, mean, var)
    ]

    def body(u: Term, m: Term, v: Term, e: Term) -> Term:
        return (u - m) * rsqrt(v + e)

    assert operands[2] is not None and operands[3] is not None
    if cx.device.type == "cpu":
        return [_by_tables(cx, x, operands, eps, wide), *_inference_statistics(cx, mean, var, eps)]
    scaled = cx.pointwise(body, x, operands[2], operands[3], eps, dtype=wide, shape=x.shape, cost=4)
    affine = _affine(cx, scaled, operands[0], operands[1], wide)
    result = cx.pointwise(unchanged, affine, compute=wide, cost=0)
    return [result, *_inference_statistics(cx, mean, var, eps)]


def _by_tables(
    cx: LoweringContext, x: Value, operands: Sequence[Value | None], eps: float, wide: torch.dtype
) -> Value:
    """x * factor + term, each a number a channel, as in ATen: what they are made of would be loaded
    for each element, or lanes be pixels to share it, whose channels lie apart."""
    weight, bias, mean, var = operands
    assert mean is not None and var is not None
    factor = _inverse_deviation(cx, var, eps, wide)
    if weight is not None:
        factor = cx.pointwise(lambda r, w: r * w, factor, weight, dtype=wide, shape=var.shape)
    factor.realize()
    if bias is None:
        term = cx.pointwise(lambda m, f: -(m * f), mean, factor, dtype=wide, shape=var.shape)
    else:
        term = cx.pointwise(lambda m, f, b: b - m * f, mean, factor, bias,
                            dtype=wide, shape=var.shape)
    term.realize()
    return cx.pointwise(lambda u, f, t: u * f + t, x, factor, term, compute=wide, cost=2)


def _inference_statistics(cx: LoweringContext, mean: Value, var: Value, eps: float) -> list[Value]:
    """The statistics that were used, as GPU kernels return them; those of CPUs are empty."""
    inverse = _inverse_deviation(cx, var, eps, compute_dtype(var.dtype))
    statistics = zip((mean, inverse), cx.shapes[1:], cx.dtypes[1:], strict=True)
    return [cx.pointwise(unchanged, value, shape=shape, dtype=dtype, cost=0)
            if value.shape == shape else cx.lazy(shape, dtype, lambda em, _: em.const(0, "f32"))
            for value, shape, dtype in statistics]


NUMBER_OPERATORS.update((
    aten.native_layer_norm.default, aten.native_group_norm.default,
    aten._native_batch_norm_legit_no_training.default))


@lowering(aten.native_dropout.default)
def native_dropout(
    cx: LoweringContext, x: Value, p: float, train: bool | None = None
) -> list[Value]:
    if train or train is None:
        raise NotLowered("random mask: drawn by ATen")
    ones = cx.lazy(x.shape, torch.bool, lambda em, index: em.const(True, "bool"))
    return [cx.copy(x), ones]
