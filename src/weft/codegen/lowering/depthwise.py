"""Depthwise convolutions as formulas, fused with what comes before and after them.

Place in the pipeline: part of `lowering/`, asked by `convolution.py`. A channel of the result
depends on one channel of the image alone, so the work is that of pooling: a few products for each
element, any stride, dilation, padding and rank, in whatever layout the image has::

    conv1d(x, w, padding=1, groups=c)[c, i]  =  fma(x[c, i - 1] if i >= 1 else 0, w[c, 0], …)

Libraries reorder images and weights at each call, and pass over memory again for the activation.
On channels-last memory lanes are channels; a few neighbouring columns are computed together
(`Computed.together`), which read most elements and all weights of each other.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from weft.codegen.ir.dtypes import FLOAT_TYPES, to_torch
from weft.codegen.ir.loop_ir import Node
from weft.codegen.lowering.registry import LoweringContext
from weft.codegen.lowering.views import reshaped
from weft.codegen.lowering.windows import Windows
from weft.codegen.values import Computed, Emitter, Value, strided_index
from weft.shapes.algebra.expr import IntExpr
from weft.shapes.algebra.layout import row_major
from weft.shapes.algebra.views import Index, Shape

Numbers = Sequence[int]


def is_depthwise(x: Value, weight: Value, transposed: bool, groups: int) -> bool:
    """Whether it is a convolution on a CPU with a channel of the result for each of the image."""
    floats = x.device.type == "cpu" and x.scalar in FLOAT_TYPES and x.dtype == weight.dtype
    sizes = all(isinstance(n, int) for n in (*weight.shape, x.shape[1], groups))
    if not (floats and sizes) or transposed:
        return False
    return weight.shape[:2] == (groups, 1) and x.shape[1] == groups > 1


def depthwise(
    cx: LoweringContext, x: Value, weight: Value, bias: Value | None,
    stride: Numbers, padding: Numbers, dilation: Numbers,
) -> Value:
    """The result, with the layout of the context."""
    kernel = tuple(int(n) for n in weight.shape[2:])  # type: ignore[arg-type]
    windows = Windows(
        tuple(x.shape[2:]), kernel, tuple(stride), tuple(padding), tuple(dilation), False)
    cx.share(x)
    layout = cx.layouts[0] or row_major(cx.shape)
    by_channels = layout[1] == 1
    weights = _by_taps(cx, weight) if by_channels else weight

    split = 0 if windows.is_small else len(kernel) - 1
    looped, together = kernel[:split], len(cx.shape) - 1 if by_channels else None

    def products(em: Emitter, index: Index) -> Node:
        """The products that are written out, with those of the loops' taps given."""
        own, outer = index[: len(cx.shape)], index[len(cx.shape) :]
        total = None if looped or bias is None else bias.at(em, [own[1]])
        for inner in itertools.product(*map(range, kernel[split:])):
            taps = (*outer, *inner)
            value, _ = windows.element(em, x, own, taps, 0)
            factors = value, weights.at(em, [own[1], 0, *taps])
            total = em.op("mul", *factors) if total is None else em.op("fma", *factors, total)
        assert total is not None
        return total

    def store(em: Emitter, index: Index) -> IntExpr:
        return strided_index(index[: len(cx.shape)], layout)

    dtype = cx.dtype if bias is None or not looped else to_torch(x.scalar)
    buffer = cx.graph.new_buffer(dtype, cx.shape, layout, cx.device)
    flags = (*(False,) * len(cx.shape), *(True,) * len(looped)) if looped else ()
    result: Value = cx.graph.define(Computed(
        buffer, (*cx.shape, *looped), products, store, "sum" if looped else None, flags,
        origins=cx.origins, together=together))
    if bias is None or not looped:
        return result
    column: Shape = (*bias.shape, *(1,) * len(kernel))
    return cx.pointwise(lambda a, b: a + b, result, reshaped(bias, column))


def _by_taps(cx: LoweringContext, weight: Value) -> Value:
    """The weights with neighbouring channels side by side, in memory."""
    channels, _, *kernel = weight.shape
    strides: list[IntExpr] = [channels * n for n in row_major(tuple(kernel))]
    layout: Shape = (1, channels, *strides)
    table = cx.lazy(weight.shape, weight.dtype, weight.at, 0, 1, layout)
    table.realize()
    return table
