"""Windows that slide over images of any rank: pooling, fused with what comes before and after.

Place in the pipeline: part of `lowering/`. ATen's kernels are separate calls, write positions of
maxima that only a backward reads, and on CPUs take many times as long (row-major images are not
vectorised). A small window is unrolled into a few loads at each point::

    max_pool1d(x, 3, 1, 1)[i]  =  max(x[i - 1] if i >= 1 else -inf, x[i], x[i + 1] if ... else -inf)

On CPUs the elements of a large window are reduced in loops; elsewhere ATen is called.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias, final

import torch

from weft.codegen.ir.dtypes import DType, to_torch
from weft.codegen.ir.loop_ir import Node
from weft.codegen.lowering.indexing import whole_factors
from weft.codegen.lowering.registry import (
    LoweringContext,
    NotLowered,
    in_channels_last,
    lowering,
)
from weft.codegen.values import Computed, Emitter, Value, strided_index
from weft.shapes.algebra.expr import IntExpr
from weft.shapes.algebra.layout import channels_last, row_major
from weft.shapes.algebra.views import Index, Shape, flatten_index

aten = torch.ops.aten

LARGEST_WRITTEN_OUT: Final = 25
"""The most elements of a window that is written out instead of looped over."""
MOST_COMPARED: Final = 9
"""On CPUs, the most windows for which an element is compared with the largest. ATen goes the other
way: it adds once for each window."""

Place: TypeAlias = tuple[IntExpr, IntExpr]
"""A position along a dimension, and the dimension's size."""


@lowering(aten.avg_pool2d.default, aten.avg_pool3d.default)
def average_pool(
    cx: LoweringContext, x: Value, kernel: object, stride: object = None, padding: object = 0,
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None,
) -> Value:
    windows = _windows(cx, x, kernel, stride, padding, 1, ceil_mode)
    return _averages(cx, x, windows, divisor_override, count_include_pad)


@lowering(aten._adaptive_avg_pool2d.default, aten._adaptive_avg_pool3d.default)
def adaptive_average_pool(cx: LoweringContext, x: Value, output: object) -> Value:
    uneven = any(
        isinstance(n, int) and isinstance(m, int) and n % m
        for n, m in zip(x.shape[2:], cx.shape[2:], strict=False))
    if uneven and cx.is_lone(x) and not in_channels_last(x):
        raise NotLowered("windows of several sizes, gathered from planes")
    return _averages(cx, x, _adaptive_windows(cx, x, cx.shape), None, True)


def _averages(
    cx: LoweringContext, x: Value, windows: Windows, divisor: int | None, with_padding: bool
) -> Value:
    fixed = divisor or windows.fixed_count(with_padding)
    total = _total(cx, x, windows)

    def formula(em: Emitter, index: Index) -> Node:
        value = total(em, index)
        if fixed:
            return em.op("div", value, em.const(fixed, value.dtype))
        return em.op("div", value, windows.count(em, index, value.dtype, with_padding))

    return windows.value(cx, formula, 0)


def _total(
    cx: LoweringContext, x: Value, windows: Windows
) -> Callable[[Emitter, Index], Node]:
    """The formula of windows' sums."""

    def formula(em: Emitter, index: Index) -> Node:
        return em.fold("add", (value for _, value, _ in windows.elements(em, x, index, 0)))

    cx.share(x)
    if windows.is_small:
        return formula
    return windows.collapsed(
        cx, "sum", x.scalar, lambda em, index, taps: windows.element(em, x, index, taps, 0)[0]
    ).at


@lowering(
    aten.upsample_nearest1d_backward.default, aten.upsample_nearest2d_backward.default,
    aten.upsample_nearest3d_backward.default,
)
def upsample_nearest_backward(
    cx: LoweringContext, gradient: Value, size: object, source: object, *scales: Any
) -> Value:
    """Each element adds the gradients of its copies."""
    factors = tuple(whole_factors(cx.shape[2:], gradient.shape[2:], scales))
    if not factors:
        raise NotLowered("upsampling by a fraction, whose windows differ")
    once, none = (1,) * len(factors), (0,) * len(factors)
    windows = Windows(tuple(gradient.shape[2:]), factors, factors, none, once, False)
    return windows.value(cx, _total(cx, gradient, windows), 0)


@lowering(aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default)
def max_pool(
    cx: LoweringContext, x: Value, kernel: object, stride: object = None, padding: object = 0,
    dilation: object = 1, ceil_mode: bool = False,
) -> list[Value]:
    return _largest(cx, x, _windows(cx, x, kernel, stride, padding, dilation, ceil_mode))


@lowering(aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default)
def adaptive_max_pool(cx: LoweringContext, x: Value, output: object) -> list[Value]:
    return _largest(cx, x, _adaptive_windows(cx, x, cx.shapes[0]))


def _largest(cx: LoweringContext, x: Value, windows: Windows) -> list[Value]:
    """The largest elements, and their positions."""
    cx.share(x)
    if not windows.is_small:
        best = windows.collapsed(
            cx, "max", x.scalar,
            lambda em, index, taps: windows.element(em, x, index, taps, -math.inf)[0],
        )
        place = _place_in_loops(cx, x, windows, best)
        result = cx.lazy(cx.shape, cx.dtype, best.at, 0, 1, cx.layouts[0])
        return [result, windows.value(cx, place, 1)]

    def largest(em: Emitter, index: Index) -> Node:
        elements = windows.elements(em, x, index, -math.inf)
        return em.fold("maximum", (value for _, value, _ in elements))

    return [windows.value(cx, largest, 0), windows.value(cx, _place(x, windows), 1)]


def _place(x: Value, windows: Windows) -> Any:
    """The position of the largest element in the image, row by row; of several NaNs the last one,
    as in ATen."""
    small = windows.offset_type

    def formula(em: Emitter, index: Index) -> Node:
        best = place = any_inside = None
        for taps, value, inside in windows.elements(em, x, index, -math.inf):
            here = em.number(windows.offset(taps), small)
            if best is None or place is None:
                best, place, any_inside = value, here, inside
                continue
            wins = em.op("or_", em.op("gt", value, best), em.op("isnan", value))
            if any_inside is not None:  # where all are -inf: the first one inside
                first = em.op("not_", any_inside)
                if inside is not None:
                    first, inside = em.op("and_", inside, first), em.op("or_", any_inside, inside)
                wins, any_inside = em.op("or_", wins, first), inside
            best, place = em.op("where", wins, value, best), em.op("where", wins, here, place)
        assert place is not None
        return em.op("add", em.index(windows.start(index)), em.cast(place, "i64"))

    return formula


def _place_in_loops(cx: LoweringContext, x: Value, windows: Windows, best: Value) -> object:
    """As `_place`, given the largest element: the first one that equals it, or the last NaN (the
    smallest of negated positions)."""
    small = windows.offset_type

    def candidate(em: Emitter, index: Index, taps: Index) -> Node:
        value, inside = windows.element(em, x, index, taps, -math.inf)
        largest, here = best.at(em, index), em.number(windows.offset(taps), small)
        hit = em.op("or_", em.op("eq", value, largest), em.op("isnan", value))
        if inside is not None:
            hit = em.op("and_", hit, inside)
        at = em.op("where", em.op("isnan", largest), em.op("neg", here), here)
        return em.op("where", hit, at, em.const(2 ** (31 if small == "i32" else 63) - 1, small))

    place = windows.collapsed(cx, "min", small, candidate)

    def formula(em: Emitter, index: Index) -> Node:
        offset = em.cast(em.op("abs", place.at(em, index)), "i64")
        return em.op("add", em.index(windows.start(index)), offset)

    return formula


@lowering(aten.avg_pool2d_backward.default, aten.avg_pool3d_backward.default)
def average_pool_backward(
    cx: LoweringContext, gradient: Value, x: Value, kernel: object, stride: object, padding: object,
    ceil_mode: bool, count_include_pad: bool, divisor_override: int | None,
) -> Value:
    windows = _windows(cx, x, kernel, stride, padding, 1, ceil_mode)
    return _average_gradient(cx, gradient, x, windows, divisor_override, count_include_pad)


@lowering(aten._adaptive_avg_pool2d_backward.default)
def adaptive_average_pool_backward(cx: LoweringContext, gradient: Value, x: Value) -> Value:
    windows = _adaptive_windows(cx, x, gradient.shape)
    return _average_gradient(cx, gradient, x, windows, None, True)


def _average_gradient(
    cx: LoweringContext, gradient: Value, x: Value, windows: Windows, divisor: int | None,
    with_padding: bool,
) -> Value:
    fixed = divisor or windows.fixed_count(with_padding)
    shares = cx.share(gradient)
    if not fixed:

        def share(em: Emitter, index: Index) -> Node:
            value = gradient.at(em, index)
            count = windows.count(em, index, value.dtype, with_padding)
            return em.op("div", value, count)

        shares = cx.lazy(gradient.shape, to_torch(x.scalar), share, 4, 1)
        shares.realize()

    def formula(em: Emitter, index: Index) -> Node:
        covering = windows.covering(em, index, gradient.shape)
        total = em.fold("add", (shares.at_or(em, at, inside, 0) for inside, at in covering))
        return em.op("div", total, em.const(fixed, total.dtype)) if fixed else total

    return windows.gradient(cx, formula)


@lowering(
    aten.max_pool2d_with_indices_backward.default, aten.max_pool3d_with_indices_backward.default
)
def max_pool_backward(
    cx: LoweringContext, gradient: Value, x: Value, kernel: object, stride: object, padding: object,
    dilation: object, ceil_mode: bool, indices: Value,
) -> Value:
    windows = _windows(cx, x, kernel, stride, padding, dilation, ceil_mode)
    return _largest_gradient(cx, gradient, windows, indices)


@lowering(aten.adaptive_max_pool2d_backward.default, aten.adaptive_max_pool3d_backward.default)
def adaptive_max_pool_backward(
    cx: LoweringContext, gradient: Value, x: Value, indices: Value
) -> Value:
    windows = _adaptive_windows(cx, x, gradient.shape)
    if windows.shared:
        raise NotLowered("windows that share elements, which ATen asks one by one")
    return _largest_gradient(cx, gradient, windows, indices)


def _largest_gradient(
    cx: LoweringContext, gradient: Value, windows: Windows, indices: Value
) -> Value:
    """Each element adds the gradients of the windows in which it was the largest."""

    def share(em: Emitter, here: Node, inside: Node | None, at: Index) -> Node:
        value = gradient.at_or(em, at, inside, 0)
        chosen = em.op("eq", indices.at_or(em, at, inside, 0), here)
        if inside is not None:
            chosen = em.op("and_", chosen, inside)
        return em.op("where", chosen, value, em.const(0, value.dtype))

    def formula(em: Emitter, index: Index) -> Node:
        here = em.index(flatten_index(index[-windows.rank :], windows.sizes))
        covering = windows.covering(em, index, gradient.shape)
        return em.fold("add", (share(em, here, inside, at) for inside, at in covering))

    cx.share(gradient)
    cx.share(indices)
    return windows.gradient(cx, formula, MOST_COMPARED if cx.device.type == "cpu" else None)


@final
@dataclass(frozen=True)
class Windows:
    """Windows over the last dimensions of images, which have these `sizes`.

    Window `n` has the elements n * stride - padding + tap * dilation, for taps below `kernel`.
    `cut`: some windows are cut off at the far end, beyond the padding. Adaptive windows begin and
    end where `shared` windows divide the image evenly; `kernel` is then the longest of them.
    """

    sizes: Shape
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    cut: bool
    shared: tuple[int, ...] = ()

    @property
    def rank(self) -> int:
        return len(self.kernel)

    @property
    def is_small(self) -> bool:
        return math.prod(self.kernel) <= LARGEST_WRITTEN_OUT

    def position(self, d: int, window: IntExpr, tap: IntExpr) -> IntExpr:
        if self.shared:
            return window * self.sizes[d] // self.shared[d] + tap
        return window * self.stride[d] - self.padding[d] + tap * self.dilation[d]

    def end(self, d: int, window: IntExpr) -> IntExpr:
        """The first position that is certainly outside."""
        if self.shared:
            return ((window + 1) * self.sizes[d] + self.shared[d] - 1) // self.shared[d]
        return self.sizes[d]

    def element(
        self, em: Emitter, x: Value, index: Index, taps: Index, outside: float
    ) -> tuple[Node, Node | None]:
        """One element of the window at `index`, and whether it is inside the image (None:
        certainly)."""
        front, own = index[: -self.rank], enumerate(index[-self.rank :])
        at = [self.position(d, window, taps[d]) for d, window in own]
        inside = em.within(
            (at[d], self.end(d, index[d - self.rank]))
            for d in range(self.rank) if self.padding[d] or self.cut
        )
        return x.at_or(em, [*front, *at], inside, outside), inside

    def elements(
        self, em: Emitter, x: Value, index: Index, outside: float
    ) -> Iterator[tuple[Index, Node, Node | None]]:
        """Each element of the window at `index`, row by row: its taps, value, and whether it is
        inside."""
        for taps in itertools.product(*map(range, self.kernel)):
            yield taps, *self.element(em, x, index, taps, outside)

    def fixed_count(self, with_padding: bool) -> int:
        """The divisor of averages, if all windows have the same number of elements; else 0."""
        varies = self.cut or (any(self.padding) and not with_padding)
        return 0 if varies else math.prod(self.kernel)

    def count(self, em: Emitter, index: Index, dtype: DType, with_padding: bool) -> Node:
        """The number of elements of the window at `index` inside the image, or with its padding."""
        total = em.const(1, dtype)
        for d, window in enumerate(index[-self.rank :]):
            if self.shared:
                length = em.index(self.end(d, window) - self.position(d, window, 0))
                total = em.op("mul", total, em.cast(length, dtype))
                continue
            margin = self.padding[d] if with_padding else 0
            places = (self.position(d, window, tap) + margin for tap in range(self.kernel[d]))
            tests = [em.within([(place, self.sizes[d] + 2 * margin)]) for place in places]
            count = em.const(tests.count(None), dtype)
            for test in tests:
                if test is not None:
                    count = em.op("add", count, em.cast(test, dtype))
            total = em.op("mul", total, count)
        return total

    # -- positions in an image -----------------------------------------------------------------

    def start(self, index: Index) -> IntExpr:
        """The position of the window's first element, row by row (it may be outside)."""
        own = enumerate(index[-self.rank :])
        return flatten_index([self.position(d, window, 0) for d, window in own], self.sizes)

    def offset(self, taps: Index) -> IntExpr:
        """An element's distance from the first one."""
        steps = [tap * gap for tap, gap in zip(taps, self.dilation, strict=True)]
        return flatten_index(steps, self.sizes)

    @property
    def offset_type(self) -> DType:
        return "i32" if all(isinstance(n, int) for n in self.sizes) else "i64"

    # -- gradients -----------------------------------------------------------------------------

    def covering(
        self, em: Emitter, index: Index, results: Shape
    ) -> Iterator[tuple[Node | None, Index]]:
        """The windows that contain the element at `index`: whether each exists, and which it is."""
        front, own = index[: -self.rank], enumerate(index[-self.rank :])
        counts = results[-self.rank :]
        for each in itertools.product(*(self._covering(d, i, counts[d]) for d, i in own)):
            yield em.within(itertools.chain(*each)), [*front, *(places[0][0] for places in each)]

    def _covering(self, d: int, position: IntExpr, count: IntExpr) -> Iterator[list[Place]]:
        """As `covering`, along one dimension: first window and count, then other candidates to
        check."""
        if self.shared:
            first = position * self.shared[d] // self.sizes[d]
            yield [(first, count)]
            for window in (first + k for k in range(1, self._most_shares(d))):
                start = self.position(d, window, 0)
                yield [(window, count), (position - start, self.sizes[d])]
            return
        kernel, stride, gap = self.kernel[d], self.stride[d], self.dilation[d]
        at = position + self.padding[d]
        if gap > 1:
            for tap in range(kernel):
                start = at - tap * gap
                yield [(start // stride, count), (start % stride, 1)]
            return
        for back in range(-(-kernel // stride)):
            yield [(at // stride - back, count), (at % stride + back * stride, kernel)]

    def _most_shares(self, d: int) -> int:
        """The most windows that share an element along one dimension."""
        size, count = self.sizes[d], self.shared[d]
        assert isinstance(size, int)
        return max(((i + 1) * count - 1) // size - i * count // size for i in range(size)) + 1

    def gradient(self, cx: LoweringContext, formula: object, most: int | None = None) -> Value:
        """A gradient with respect to the image, whose elements are in at most that many windows.

        On CPUs it has its own kernel if windows advance in steps: it is then unrolled by pieces
        (`kernels.py`), which a reduction is not.
        """
        each = zip(self.kernel, self.stride, self.dilation, strict=True)
        covering = math.prod(k if gap > 1 else -(-k // s) for k, s, gap in each)
        if self.shared:
            covering = math.prod(map(self._most_shares, range(self.rank)))
        if covering > (most or LARGEST_WRITTEN_OUT):
            raise NotLowered("elements of too many windows")
        step, length = self.stride[-1], self.sizes[-1]
        in_pieces = cx.device.type == "cpu" and step > 1 and covering * step > 2
        if in_pieces and length % step != 0:
            raise NotLowered("rows that are not made of whole steps, whose parts would be gathered")
        gradient = cx.lazy(cx.shape, cx.dtype, formula, 6 * covering, 2 * covering, cx.layouts[0])
        if in_pieces:
            definition = gradient.realize().buffer.definition
            assert isinstance(definition, Computed)
            definition.alone = True
        return gradient

    # -- results -------------------------------------------------------------------------------

    def value(self, cx: LoweringContext, formula: object, result: int) -> Value:
        area = math.prod(self.kernel) if self.is_small else 1
        pooled = cx.lazy(cx.shapes[result], cx.dtypes[result], formula, 4 * area, area,
                         cx.layouts[result])
        if self.shared and self.is_small and result == 0:
            # else a reader in another shape (cat of flattened ones) would divide at each tap
            pooled.realize()
        return pooled

    def collapsed(
        self, cx: LoweringContext, kind: str, dtype: DType,
        formula: Callable[[Emitter, Index, Index], Node],
    ) -> Value:
        """Loops over the elements of each window: a reduction of a formula of points and taps."""
        shape, points = cx.shape, len(cx.shape)
        strides = cx.layouts[0] or row_major(shape)
        buffer = cx.graph.new_buffer(to_torch(dtype), shape, strides, cx.device)

        def element(em: Emitter, index: Index) -> Node:
            return formula(em, index[:points], index[points:])

        def store(em: Emitter, index: Index) -> IntExpr:
            return strided_index(index[:points], strides)

        flags = (*(False,) * points, *(True,) * self.rank)
        reduced: Value = cx.graph.define(
            Computed(buffer, (*shape, *self.kernel), element, store, kind, flags,
                     origins=cx.origins)
        )
        return reduced


def _adaptive_windows(cx: LoweringContext, x: Value, results: Shape) -> Windows:
    """Windows that divide the image as evenly as possible among the results; some may share
    rows."""
    rank = 3 if "pool3d" in str(cx.target) else 2
    pairs = [(n, s) for n, s in zip(x.shape[-rank:], results[-rank:], strict=True)
             if isinstance(n, int) and isinstance(s, int)]
    if len(pairs) < rank:
        raise NotLowered("windows of unknown size")
    if all(n % s == 0 for n, s in pairs):
        return _windows(cx, x, [n // s for n, s in pairs], None, 0, 1, False)
    longest = [max(-(-(i + 1) * n // s) - i * n // s for i in range(s)) for n, s in pairs]
    windows = _windows(cx, x, longest, 1, 0, 1, True)
    return replace(windows, shared=tuple(s for _, s in pairs))


def _windows(
    cx: LoweringContext, x: Value, kernel: object, stride: object, padding: object,
    dilation: object,
    ceil_mode: bool,
) -> Windows:
    rank = 3 if "pool3d" in str(cx.target) else 2
    lengths = _numbers(kernel, rank)
    windows = Windows(
        tuple(x.shape[-rank:]), lengths, _numbers(stride, rank) if stride else lengths,
        _numbers(padding, rank), _numbers(dilation, rank), ceil_mode,
    )
    if not x.dtype.is_floating_point or not (windows.is_small or cx.device.type == "cpu"):
        raise NotLowered("a call of ATen's pooling")
    if rank == 2 and cx.graph.channels_last and in_channels_last(x):
        cx.layouts[:] = [channels_last(shape) for shape in cx.shapes]  # as ATen has it
    return windows


def _numbers(value: Any, rank: int) -> tuple[int, ...]:
    numbers: Sequence[Any] = [value] if isinstance(value, int) else list(value)
    if not all(isinstance(n, int) for n in numbers):
        raise NotLowered("a window of unknown size")
    return tuple(numbers) if len(numbers) == rank else (numbers[0],) * rank
