"""Metadata of pooled images, and of their gradients, by formula.

Place in the pipeline: rules of `shape_rules.infer`. PyTorch's meta kernels ask whether a window
ends at the border, up to 2.11 even without `ceil_mode`: a variant for each remainder::

    F.max_pool2d(x, 3, 2, 1)   # sizes (s0, s1, (s2-1)//2 + 1, (s3-1)//2 + 1), row-major
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

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


def _maxima(rank: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Result]:
    """`(x, kernel, steps, paddings, dilations)`: the maxima and their places."""
    require(2 <= len(args) <= 5 and not kwargs)
    sizes = _pooled(rank, args[0], _window(args[1:]))
    return [_row_major(args[0], sizes), _row_major(args[0], sizes, torch.int64)]


def _maxima_gradient(rank: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Result]:
    """`(gradient, x, kernel, steps, paddings, dilations, ceil_mode, places)`."""
    require(len(args) == 8 and not kwargs and not args[6])
    return _gradient(rank, args, args[2:6])


def _averages(rank: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Result]:
    """`(x, kernel, steps, paddings, ceil_mode, ...)`."""
    require(2 <= len(args) and not kwargs and not any(args[4:5]) and 0 not in args[6:7])
    return [_row_major(args[0], _pooled(rank, args[0], _window(args[1:4])))]


def _averages_gradient(rank: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Result]:
    """`(gradient, x, kernel, steps, paddings, ceil_mode, ...)`."""
    require(len(args) == 8 and not kwargs and not args[5])
    return _gradient(rank, args, (*args[2:5], [1]))


def _window(numbers: Sequence[_Numbers]) -> list[_Numbers]:
    """The kernel's sizes, and with defaults the steps, paddings and dilations."""
    defaults: list[_Numbers] = [[], [0], [1]]
    return [*numbers, *defaults[len(numbers) - 1:]]


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


def _gradient(rank: int, args: Sequence[Any], window: Sequence[_Numbers]) -> list[Result]:
    """`(gradient, x, ...)`: a gradient laid out as the images."""
    expected = _pooled(rank, args[1], window)
    sizes = sizes_of(args[0])
    require(len(sizes) == len(expected) and args[0].dtype is args[1].dtype)
    require(all(guarded(eq(n, m)) for n, m in zip(sizes, expected, strict=True)))
    return [_row_major(args[1], sizes_of(args[1]))]


def _row_major(x: FakeTensor, sizes: Sizes, dtype: torch.dtype | None = None) -> Result:
    return Result(sizes, row_major(sizes), dtype or x.dtype, x.fake_device)


for _rank in (2, 3):
    RULES[getattr(aten, f"avg_pool{_rank}d").default] = partial(_averages, _rank)
    RULES[getattr(aten, f"avg_pool{_rank}d_backward").default] = partial(_averages_gradient, _rank)
    _name = f"max_pool{_rank}d_with_indices"
    RULES[getattr(aten, _name).default] = partial(_maxima, _rank)
    RULES[getattr(aten, f"{_name}_backward").default] = partial(_maxima_gradient, _rank)
