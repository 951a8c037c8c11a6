"""Windows (pooling), and scans as GPUs have them, whose values do not depend on the device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import weft
from weft.codegen.lowering import scans


@pytest.fixture(autouse=True)
def everywhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(scans, "DEVICES", frozenset({"cpu", "cuda"}))
    weft.reset()
    torch.manual_seed(0)
    with weft.config.patch(strict=True):
        yield
    weft.reset()


def check(fn: Callable[..., Any], *args: torch.Tensor, library_calls: int | None = 0) -> None:
    found, expected = weft.compile(fn)(*args), fn(*args)
    torch.testing.assert_close(found, expected, check_stride=True, equal_nan=True)
    assert library_calls is None or weft.stats()["extern_calls"] == library_calls


@pytest.mark.parametrize(
    "pool",
    [
        lambda x: F.avg_pool2d(x, 3, 1, 1),
        lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
        lambda x: F.avg_pool2d(x, (2, 3), divisor_override=5),
        lambda x: F.max_pool2d(x, 3, 2, 1),
        lambda x: F.max_pool2d(x, (1, 4), return_indices=True),
        lambda x: F.max_pool2d(x.relu(), 2, 1, 1, return_indices=True),
        lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
        lambda x: F.max_pool2d(x, 3, 1, 1, dilation=2, ceil_mode=True, return_indices=True),
        lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True) + x.mean(),
        lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
        lambda x: F.max_pool3d(x, 2, 1, return_indices=True),
        lambda x: F.avg_pool3d(x, (2, 3, 1), 2, (1, 1, 0)),
        lambda x: F.max_pool2d(x, 7, 1, 3, return_indices=True),
        lambda x: F.avg_pool2d(x, 6, 1, 1, count_include_pad=False),
        lambda x: F.adaptive_avg_pool2d(x, (4, 5)) * 2,
        lambda x: F.adaptive_max_pool2d(x, (2, 4), return_indices=True),
        lambda x: F.adaptive_max_pool3d(x, 2, return_indices=True),
        lambda x: F.adaptive_max_pool2d(x, (20, 5), return_indices=True),
    ],
)
def test_windows(pool: Callable[..., Any]) -> None:
    x = torch.randn(2, 3, 9, 8)
    x[0, 0, 2, 3] = float("nan")
    x[0, 1] = float("-inf")
    x[1, 0, 4:6, 4:6] = float("nan")
    check(pool, x)


def test_averages_over_windows_of_several_sizes_were_slower_than_eager() -> None:
    check(lambda x: F.adaptive_avg_pool2d(x, (4, 5)), torch.randn(2, 3, 9, 8), library_calls=1)


@pytest.mark.parametrize(
    "pool",
    [
        lambda x: F.max_pool2d(x, 2) * F.avg_pool2d(x, 2),
        lambda x: F.max_pool2d(x, 3, 2, 1) * F.avg_pool2d(x, 3, 2, 1),
        lambda x: F.max_pool2d(x, 3, 1) * F.avg_pool2d(x, (3, 3), 1, divisor_override=4),
        lambda x: F.max_pool2d(x, (2, 1), (3, 2)) * F.avg_pool2d(x, (2, 1), (3, 2)),
        lambda x: F.max_pool2d(x, 3, 2, 1, dilation=(1, 2), ceil_mode=True),
        lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
        lambda x: F.max_pool3d(x, 2) * F.avg_pool3d(x, 2),
        lambda x: F.max_pool2d(x, 6, 4) * F.avg_pool2d(x, 6, 4),
        lambda x: F.adaptive_avg_pool2d(x, (4, 5)) * 2,
        lambda x: F.adaptive_avg_pool2d(x, (3, 2)) * F.adaptive_max_pool2d(x, (3, 2)),
        lambda x: F.interpolate(x, (20, 11), mode="area") * 2,
    ],
)
def test_gradients_of_windows(pool: Callable[..., Any]) -> None:
    x = torch.randn(2, 3, 9, 8, requires_grad=True)
    found, expected = weft.compile(pool)(x), pool(x)
    torch.testing.assert_close(found, expected)
    weights = torch.randn_like(found)
    (made,) = torch.autograd.grad(found, x, weights)
    (wanted,) = torch.autograd.grad(expected, x, weights)
    torch.testing.assert_close(made, wanted, check_stride=True)
    assert weft.stats()["extern_calls"] == 0


@pytest.mark.parametrize("length", [37, 30_001, 1_000_001])
def test_windows_at_positions_of_any_size(length: int) -> None:
    """Vectors of positions divide in float, in double, and lane by lane."""
    x = torch.arange(float(length)).view(1, 1, -1).requires_grad_()
    found, expected = (f(lambda x: F.adaptive_avg_pool1d(x, length // 3 - 1))(x)
                       for f in (weft.compile, lambda f: f))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad(found, x, found.detach()), torch.autograd.grad(expected, x, found))


def test_windows_of_channels_last_images() -> None:
    x = torch.randn(2, 4, 6, 6).to(memory_format=torch.channels_last)
    check(lambda x: F.max_pool2d(x, 2) + 1, x)


def test_gradients_of_elements_in_many_windows_are_library_calls() -> None:
    x = torch.randn(2, 3, 12, 12, requires_grad=True)
    weft.compile(lambda x: F.avg_pool2d(x, 6, 1))(x).sum().backward()
    assert weft.stats()["extern_calls"] == 1


@pytest.mark.parametrize("dim", [0, 1, -2])
def test_scans_of_columns(dim: int) -> None:
    x = torch.randn(5, 7, 6)
    check(lambda x: x.cumsum(dim), x, library_calls=None)
    weft.reset()
    check(lambda x: (x * 2).cummax(dim), x, library_calls=None)
    weft.reset()
    check(lambda x: x.int().cumsum(dim), x, library_calls=None)


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_borders_that_repeat_the_image(mode: str) -> None:
    def f(x: torch.Tensor, row: torch.Tensor, cube: torch.Tensor) -> torch.Tensor:
        padded = F.pad(x, (2, 1, 0, 3), mode=mode) * 2
        return padded.sum() + F.pad(row.sin(), (2, 3), mode=mode).cumsum(-1).sum() * (
            F.pad(cube, (1, 0, 0, 2, 1, 1), mode=mode).cos().sum())

    inputs = [torch.randn(*shape, requires_grad=True) for shape in (
        (2, 3, 6, 27), (2, 3, 9), (1, 2, 3, 4, 25))]
    found, expected = weft.compile(f)(*inputs), f(*inputs)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(
        torch.autograd.grad(found, inputs), torch.autograd.grad(expected, inputs))


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
def test_borders_of_channels_last_images(mode: str) -> None:
    """The meta kernels promised rows."""
    x = torch.randn(2, 3, 6, 7).to(memory_format=torch.channels_last)
    check(lambda x: F.pad(x, (2, 1, 1, 3), mode=mode) + 1, x)


@pytest.mark.parametrize("scale", [2, 3.0, 1.5, 0.3])
def test_nearest_upsampling(scale: float) -> None:
    """Only the forward by whole factors had a kernel."""
    for shape in ((2, 3, 10), (2, 3, 6, 7), (1, 2, 4, 4, 5)):
        x = torch.randn(*shape, requires_grad=True)
        found, expected = (f(lambda x: F.interpolate(x, scale_factor=scale))(x)
                           for f in (weft.compile, lambda f: f))
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
        weights = torch.randn_like(found)
        torch.testing.assert_close(torch.autograd.grad(found, x, weights),
                                   torch.autograd.grad(expected, x, weights))


def test_positions_in_images_of_any_size() -> None:
    pool = weft.compile(lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), dynamic=True)
    for size in (8, 11):
        x = torch.randn(2, 3, size, size + 1)
        torch.testing.assert_close(pool(x), F.max_pool2d(x, 3, 2, 1, return_indices=True))


def test_a_number_for_masked_elements_looks_for_no_positions() -> None:
    """`x[mask] = number` was ATen's call, which copies and finds the positions first."""

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        y[x > 1] = 0
        y[x[:, 0] > 0] = 2
        y[x.isnan()] = x.nansum()
        return y

    x = torch.tensor([[0.5, 2.0, torch.nan], [-1.0, 3.0, 1.0]])
    weft.reset()
    found, given = weft.compile(f), [x.clone().requires_grad_() for _ in range(2)]
    torch.testing.assert_close(found(x), f(x))
    assert weft.stats()["extern_calls"] == 0
    for call, value in zip((found, f), given, strict=True):
        call(value).sum().backward()
    assert weft.stats()["uncompiled_graphs"] == 0
    torch.testing.assert_close(given[0].grad, given[1].grad)
