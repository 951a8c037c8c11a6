"""Metadata of pooled images, and of their gradients, by formula.

Place in the pipeline: rules of `shape_rules.infer`. PyTorch's meta kernels ask whether a window
ends at the border, up to 2.11 even without `ceil_mode`: a variant for each remainder::

    F.max_pool2d(x, 3, 2, 1)   # sizes (s0, s1, (s2-1)//2 + 1, (s3-1)//2 + 1), row-major
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import torch

from weft._torch import FakeTensor
from weft.shapes.algebra.layout import row_major
from weft.shapes.algebra.relation import eq, ge
from weft.shapes.fakes.shape_rules import (
    RULES,
    Result,
    Sizes,
    all_same,
    guarded,
    require,
    sizes_of,
    strides_of,
    windows,
)

aten = torch.ops.aten

_Numbers = Sequence[int]


_KERNELS: Final = ()
"""Steps as long as the kernel."""
_NO_PADDING: Final = (0,)
_ONES: Final = (1,)


def _maxima(
    rank: int, x: Any, kernel: _Numbers, steps: _Numbers = _KERNELS,
    paddings: _Numbers = _NO_PADDING, dilations: _Numbers = _ONES, /,
) -> list[Result]:
    """The maxima and their places."""
    sizes = _pooled(rank, x, (kernel, steps, paddings, dilations))
    return [_row_major(x, sizes), _row_major(x, sizes, torch.int64)]


def _maxima_gradient(
    rank: int, gradient: object, x: object, kernel: _Numbers, steps: _Numbers, paddings: _Numbers,
    dilations: _Numbers, ceil_mode: bool, places: object, /,
) -> list[Result]:
    require(not ceil_mode)
    return _gradient(rank, gradient, x, (kernel, steps, paddings, dilations))


def _averages(
    rank: int, x: Any, kernel: _Numbers, steps: _Numbers = _KERNELS,
    paddings: _Numbers = _NO_PADDING, ceil_mode: bool = False, counts_padding: object = True,
    divisor: int | None = None, /,
) -> list[Result]:
    require(not ceil_mode and divisor != 0)
    return [_row_major(x, _pooled(rank, x, (kernel, steps, paddings, _ONES)))]


def _averages_gradient(
    rank: int, gradient: object, x: object, kernel: _Numbers, steps: _Numbers, paddings: _Numbers,
    ceil_mode: bool, counts_padding: object, divisor: object, /,
) -> list[Result]:
    require(not ceil_mode)
    return _gradient(rank, gradient, x, (kernel, steps, paddings, _ONES))


def _pooled(rank: int, x: Any, window: Sequence[_Numbers]) -> Sizes:
    """The sizes of row-major images after a window ran over them."""
    kernel, steps, paddings, dilations = window
    settings = (kernel, steps or [1], paddings, dilations)
    require(all(len(numbers) in (1, rank) for numbers in settings))
    require(all(type(n) is int for numbers in settings for n in numbers))
    require(all(n >= 1 for n in (*kernel, *steps, *dilations)))
    require(all(0 <= 2 * paddings[d % len(paddings)] <= kernel[d % len(kernel)]
                for d in range(rank)))
    sizes = sizes_of(x)
    require(len(sizes) in (rank + 1, rank + 2) and all_same(strides_of(x), row_major(sizes)))
    pixels = windows(sizes[-rank:], tuple(kernel), (steps or kernel, paddings, dilations))
    require(all(guarded(ge(n, 1)) for n in (*sizes, *pixels)))
    return (*sizes[:-rank], *pixels)


def _gradient(rank: int, gradient: Any, x: Any, window: Sequence[_Numbers]) -> list[Result]:
    """A gradient laid out as the images."""
    expected = _pooled(rank, x, window)
    sizes = sizes_of(gradient)
    require(len(sizes) == len(expected) and gradient.dtype is x.dtype)
    require(all(guarded(eq(n, m)) for n, m in zip(sizes, expected, strict=True)))
    return [_row_major(x, sizes_of(x))]


def _row_major(x: FakeTensor, sizes: Sizes, dtype: torch.dtype | None = None) -> Result:
    return Result(sizes, row_major(sizes), dtype or x.dtype, x.fake_device)


for _rank in (2, 3):
    RULES[getattr(aten, f"avg_pool{_rank}d").default] = partial(_averages, _rank)
    RULES[getattr(aten, f"avg_pool{_rank}d_backward").default] = partial(_averages_gradient, _rank)
    _name = f"max_pool{_rank}d_with_indices"
    RULES[getattr(aten, _name).default] = partial(_maxima, _rank)
    RULES[getattr(aten, f"{_name}_backward").default] = partial(_maxima_gradient, _rank)
