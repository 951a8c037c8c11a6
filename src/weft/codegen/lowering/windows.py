"""Pooling over small windows: a few loads at each point, fused with what comes before and after.

Place in the pipeline: part of `lowering/`. ATen's kernels are calls of their own, for maxima write
positions that only a backward reads, and on CPUs take many times as long (row-major images are not
vectorised). For large windows ATen is called.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, Final

import torch

from weft.codegen.dtypes import DType
from weft.codegen.loop_ir import Node
from weft.codegen.lowering.convolution import channels_last_strides
from weft.codegen.lowering.registry import (
    LoweringContext,
    NotLowered,
    in_channels_last,
    lowering,
)
from weft.codegen.values import Emitter, Index, Shape, Value
from weft.shapes.expr import IntExpr

aten = torch.ops.aten

LARGEST_WINDOW: Final = 25
"""Elements; beyond that each element would be read too often."""

Pair = tuple[int, int]


@lowering(aten.avg_pool2d.default)
def average_pool(
    cx: LoweringContext, x: Value, kernel: Any, stride: Any = None, padding: Any = 0,
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
) -> Value:
    window = _Window(cx, x, kernel, stride, padding, 1, ceil_mode)
    counts = any(window.padding) and not count_include_pad and divisor_override is None
    fixed = divisor_override or math.prod(window.kernel)

    def formula(em: Emitter, index: Index) -> Node:
        total = count = None
        for value, inside in window.elements(em, index, 0):
            total = value if total is None else em.op("add", total, value)
            if counts:
                one = em.const(1, value.dtype) if inside is None else em.cast(inside, value.dtype)
                count = one if count is None else em.op("add", count, one)
        assert total is not None
        if count is None:
            return em.op("div", total, em.const(fixed, total.dtype))
        return em.op("div", total, count)

    return window.value(cx, formula, 0)


@lowering(aten.max_pool2d_with_indices.default)
def max_pool(
    cx: LoweringContext, x: Value, kernel: Any, stride: Any = None, padding: Any = 0,
    dilation: Any = 1, ceil_mode: bool = False,
) -> list[Value]:
    window = _Window(cx, x, kernel, stride, padding, dilation, ceil_mode)

    def largest(em: Emitter, index: Index) -> Node:
        best = None
        for value, _ in window.elements(em, index, -math.inf):
            best = value if best is None else em.op("maximum", best, value)
        assert best is not None
        return best

    def position(em: Emitter, index: Index) -> Node:
        """In the image, row by row; of several NaNs the last one, as ATen has it."""
        best = place = found = None
        width = x.shape[-1]
        small: DType = "i32" if isinstance(width, int) else "i64"
        places = itertools.product(*map(range, window.kernel))
        for (value, inside), (y, z) in zip(
            window.elements(em, index, -math.inf), places, strict=True
        ):
            offset = y * width + z
            here = em.const(offset, small) if isinstance(offset, int) else em.index(offset)
            if best is None or place is None:
                best, place, found = value, here, inside
                continue
            wins = em.op("or_", em.op("gt", value, best), em.op("isnan", value))
            if found is not None:  # where all are -inf: the first one inside
                first = em.op("not_", found)
                if inside is not None:
                    first, inside = em.op("and_", inside, first), em.op("or_", found, inside)
                wins, found = em.op("or_", wins, first), inside
            best, place = em.op("where", wins, value, best), em.op("where", wins, here, place)
        assert place is not None
        (row, column), (up, left) = index[-2:], window.padding
        start = (row * window.stride[0] - up) * width + column * window.stride[1] - left
        return em.op("add", em.index(start), em.cast(place, "i64"))

    return [window.value(cx, largest, 0), window.value(cx, position, 1)]


@lowering(aten.avg_pool2d_backward.default)
def average_pool_backward(
    cx: LoweringContext, gradient: Value, x: Value, kernel: Any, stride: Any, padding: Any,
    ceil_mode: bool, count_include_pad: bool, divisor_override: int | None,
) -> Value:
    window = _Window(cx, x, kernel, stride, padding, 1, ceil_mode)
    if any(window.padding) and not count_include_pad and divisor_override is None:
        raise NotLowered("windows of different weights")
    divisor = divisor_override or math.prod(window.kernel)

    def formula(em: Emitter, index: Index) -> Node:
        total = None
        for inside, at in window.covering(em, index, gradient.shape[-2:]):
            value = gradient.at_or(em, at, inside, 0)
            total = value if total is None else em.op("add", total, value)
        assert total is not None
        return em.op("div", total, em.const(divisor, total.dtype))

    cx.share(gradient)
    return window.gradient(cx, formula)


@lowering(aten.max_pool2d_with_indices_backward.default)
def max_pool_backward(
    cx: LoweringContext, gradient: Value, x: Value, kernel: Any, stride: Any, padding: Any,
    dilation: Any, ceil_mode: bool, indices: Value,
) -> Value:
    """Each element asks the windows that it lies in whether it was the largest."""
    window = _Window(cx, x, kernel, stride, padding, dilation, ceil_mode)
    width = x.shape[-1]

    def formula(em: Emitter, index: Index) -> Node:
        here = em.index(index[-2] * width + index[-1])
        total = None
        for inside, at in window.covering(em, index, gradient.shape[-2:]):
            value = gradient.at_or(em, at, inside, 0)
            chosen = em.op("eq", indices.at_or(em, at, inside, 0), here)
            if inside is not None:
                chosen = em.op("and_", chosen, inside)
            value = em.op("where", chosen, value, em.const(0, value.dtype))
            total = value if total is None else em.op("add", total, value)
        assert total is not None
        return total

    cx.share(gradient)
    cx.share(indices)
    return window.gradient(cx, formula)


class _Window:
    """The elements of a two-dimensional window at each point of the result."""

    def __init__(
        self, cx: LoweringContext, x: Value, kernel: Any, stride: Any, padding: Any, dilation: Any,
        ceil_mode: bool,
    ) -> None:
        images = cx.graph.channels_last and in_channels_last(x)
        if images:  # ATen keeps the memory format of its input
            cx.layouts[:] = [channels_last_strides(shape) for shape in cx.shapes]
        self.kernel, self.padding = _pair(kernel), _pair(padding)
        self.stride = _pair(stride) if stride else self.kernel
        plain = _pair(dilation) == (1, 1) and not ceil_mode and x.dtype.is_floating_point
        if not plain or math.prod(self.kernel) > LARGEST_WINDOW:
            raise NotLowered("a call of ATen's pooling")
        self.x = cx.share(x)

    def elements(
        self, em: Emitter, index: Index, outside: float
    ) -> Iterator[tuple[Node, Node | None]]:
        """Each element of the window at `index`, row by row, and whether it lies inside the image
        (None: surely).
        """
        *front, row, column = index
        padded = [d for d, n in enumerate(self.padding) if n]  # elsewhere windows lie inside
        for y, z in itertools.product(*map(range, self.kernel)):
            at = (row * self.stride[0] - self.padding[0] + y,
                  column * self.stride[1] - self.padding[1] + z)
            inside = em.within((at[d], self.x.shape[d - 2]) for d in padded)
            yield self.x.at_or(em, [*front, *at], inside, outside), inside

    def covering(
        self, em: Emitter, index: Index, results: Shape
    ) -> Iterator[tuple[Node | None, Index]]:
        """The windows that the element at `index` lies in: whether each exists, and which it is."""
        *front, row, column = index
        known = zip((row, column), self.kernel, self.stride, self.padding, results, strict=True)
        for down, across in itertools.product(*itertools.starmap(_covering, known)):
            yield em.within([*down, *across]), [*front, down[0][0], across[0][0]]

    def gradient(self, cx: LoweringContext, formula: Any) -> Value:
        """A gradient with respect to the image."""
        windows = math.prod(-(-k // s) for k, s in zip(self.kernel, self.stride, strict=True))
        return cx.lazy(cx.shape, cx.dtype, formula, 6 * windows, 2 * windows, cx.layouts[0])

    def value(self, cx: LoweringContext, formula: Any, result: int) -> Value:
        area = math.prod(self.kernel)
        return cx.lazy(cx.shapes[result], cx.dtypes[result], formula, 4 * area, area,
                       cx.layouts[result])


def _covering(
    position: IntExpr, kernel: int, stride: int, padding: int, count: IntExpr
) -> Iterator[tuple[tuple[IntExpr, IntExpr], tuple[IntExpr, IntExpr]]]:
    """Of the `count` windows along one dimension, n*stride - padding + [0, kernel), those that an
    element may lie in: n and `count`, and the position within the window and `kernel`.
    """
    last, first = (position + padding) // stride, (position + padding) % stride
    for back in range(-(-kernel // stride)):
        yield (last - back, count), (first + back * stride, kernel)


def _pair(value: Any) -> Pair:
    numbers = [value] if isinstance(value, int) else list(value)
    if not all(isinstance(n, int) for n in numbers):
        raise NotLowered("a window of unknown size")
    return (numbers[0], numbers[-1])
