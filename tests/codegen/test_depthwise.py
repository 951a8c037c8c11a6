"""Convolutions against eager, and depthwise ones against the interpreter of the loop IR.

WEFT_CONVOLUTIONS=2000 draws more of them.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.codegen.compiling import check, compiled

CASES = int(os.environ.get("WEFT_CONVOLUTIONS", "14"))
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9, torch.bfloat16: 3e-2, torch.float16: 4e-3}


@dataclass(frozen=True)
class Convolution:
    """A drawn call: operands, options, and what is around it."""

    seed: int
    draw: random.Random

    def operands(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, dict[str, Any]]:
        draw, rank = self.draw, self.draw.choice((1, 2, 2, 2, 3))
        channels = draw.choice((2, 3, 5, 8, 16, 17, 24, 32, 40))
        groups = draw.choice((channels, channels, channels, 1, channels // 2 or 1))
        groups = groups if channels % groups == 0 else 1
        per_group = draw.choice((1, 1, 1, 2))
        kernel = [draw.choice((1, 2, 3, 3, 5, 7)) for _ in range(rank)]
        options = {
            "stride": [draw.choice((1, 1, 2, 3)) for _ in range(rank)],
            "padding": [draw.choice((0, k // 2, k - 1, k)) for k in kernel],
            "dilation": [draw.choice((1, 1, 2)) for _ in range(rank)],
            "groups": groups,
        }
        least = [d * (k - 1) + 1 for k, d in zip(kernel, options["dilation"], strict=True)]
        sizes = [n + draw.choice((0, 1, 3, 8, 16)) for n in least]
        dtype = draw.choice((torch.float32,) * 4 + (torch.float64, torch.bfloat16, torch.float16))
        x = self._image(draw.choice((0, 1, 2, 3)), channels, sizes).to(dtype)
        weight = torch.randn(groups * per_group, channels // groups, *kernel).to(dtype)
        bias = torch.randn(len(weight)).to(dtype) if draw.random() < 0.6 else None
        return x, weight, bias, options

    def _image(self, batch: int, channels: int, sizes: list[int]) -> torch.Tensor:
        kind = self.draw.choice(("row-major", "channels last", "slice", "permuted"))
        if kind == "slice":
            whole = torch.randn(batch, channels + 2, *(n + 3 for n in sizes))
            inner = (slice(1, n + 1) for n in sizes)
            return whole[(slice(None), slice(1, channels + 1), *inner)]
        if kind == "channels last":
            return torch.randn(batch, *sizes, channels).movedim(-1, 1)
        if kind == "permuted":
            return torch.randn(*sizes, max(batch, 2), channels).movedim((-2, -1), (0, 1))
        return torch.randn(batch, channels, *sizes)


def _function(rank: int, options: dict[str, Any], before: bool, after: str) -> Any:
    convolve = (F.conv1d, F.conv2d, F.conv3d)[rank - 1]

    def function(x: torch.Tensor, weight: torch.Tensor, *bias: torch.Tensor) -> Any:
        if before:
            x = F.hardtanh(x * 1.5, 0, 6)
        y = convolve(x, weight, *bias, **options)
        if after == "residual":
            return torch.relu(y + y.mean()) + 1, y
        return F.silu(y) if after == "activation" else y

    return function


@pytest.mark.parametrize("seed", range(CASES))
def test_drawn_convolutions_equal_eager(seed: int) -> None:
    torch.manual_seed(seed)
    case = Convolution(seed, random.Random(seed))
    x, weight, bias, options = case.operands()
    function = _function(
        x.dim() - 2, options, case.draw.random() < 0.5,
        case.draw.choice(("", "activation", "residual")))
    operands = [x, weight] if bias is None else [x, weight, bias]
    tolerance = TOLERANCE[x.dtype]
    try:
        function(*operands)
    except RuntimeError as error:
        pytest.skip(f"eager refuses it: {error}")
    check(function, *operands, rtol=tolerance, atol=10 * tolerance)
    if x.numel() < 4000 and weight.numel() < 500:
        check(function, *operands, oracle=True, rtol=tolerance, atol=10 * tolerance)


@pytest.mark.parametrize("kernel", [3, 7])
def test_depthwise_convolutions_are_one_kernel_with_what_is_around_them(kernel: int) -> None:
    x = torch.randn(2, 20, 12, 16).contiguous(memory_format=torch.channels_last)
    weight, bias = torch.randn(20, 1, kernel, kernel), torch.randn(20)

    def function(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.clamp(F.conv2d(x, weight, bias, padding=kernel // 2, groups=20), 0, 6)

    artifact = check(function, x, weight, bias, rtol=1e-4, atol=1e-4)
    assert not artifact.extern_ops
    assert len(artifact.kernels) == 2  # the weights' layout, and all of it


def test_infinite_and_nan_elements_spread_as_in_eager() -> None:
    x, weight = torch.randn(1, 4, 9, 9), torch.randn(4, 1, 3, 3)
    x[0, 0, 4, 4], x[0, 1, 0, 0], x[0, 2, 8, 8] = float("inf"), float("nan"), -float("inf")
    check(lambda x, w: F.conv2d(x, w, padding=1, groups=4), x, weight, rtol=1e-4, atol=1e-4)


def test_neighbours_are_computed_together_where_their_number_allows_it() -> None:
    weight = torch.randn(8, 1, 3, 3)
    for width in (12, 7, 1):
        x = torch.randn(2, 8, 5, width).contiguous(memory_format=torch.channels_last)
        check(lambda x, w: F.conv2d(x, w, padding=1, groups=8), x, weight, rtol=1e-4, atol=1e-4)
    _, artifact = compiled(
        lambda x, w: F.conv2d(x, w, padding=1, groups=8),
        torch.randn(2, 8, 5, 12).contiguous(memory_format=torch.channels_last), weight)
    assert any(str(kernel).count("] = v") == 4 for kernel in artifact.kernels)
