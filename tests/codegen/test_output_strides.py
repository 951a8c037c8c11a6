"""Results with the strides that the graph promises: memory with gaps, expanded dimensions.

A backward graph reads what its forward graph saved by the strides of the metadata.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

import weft
from weft.runtime.strided_views import laid_out


def test_saved_value_in_memory_with_gaps() -> None:
    """Writing to a row of a matrix saves a row with the matrix's strides (gaps between rows)."""

    def solve(x: torch.Tensor) -> torch.Tensor:
        a = -x
        for i in range(1, 4):
            row, above = a[..., i, :i].clone(), a[..., :i, :i].clone()
            a[..., i, :i] = row + (row.unsqueeze(-1) * above).sum(-2)
        return a + 1

    torch.manual_seed(0)
    x = torch.randn(2, 4, 4, requires_grad=True)
    weight = torch.randn(2, 4, 4)
    (wanted,) = torch.autograd.grad((solve(x) * weight).sum(), x)
    compiled = weft.compile(solve, backend="inductor", fullgraph=True)
    (found,) = torch.autograd.grad((compiled(x) * weight).sum(), x)
    torch.testing.assert_close(found, wanted)


def test_copy_with_gaps_or_expanded_dimensions() -> None:
    x = torch.arange(6.0).view(2, 1, 3)
    for source, strides in ((x, [9, 3, 2]), (x.expand(2, 4, 3), [5, 0, 1])):
        made = laid_out(source, strides)
        assert list(made.stride()) == strides
        assert torch.equal(made, source)


F = torch.nn.functional


@pytest.mark.parametrize("factor", [2, 2.4], ids=str)
@pytest.mark.parametrize(
    "function",
    [
        lambda x, factor: F.batch_norm(x, None, None, training=True) * factor,
        lambda x, factor: F.interpolate(x, scale_factor=factor, mode="nearest"),
        lambda x, factor: F.interpolate(x, scale_factor=factor, mode="nearest-exact"),
    ],
    ids=["batch_norm", "nearest", "nearest-exact"],
)
def test_operators_that_know_few_layouts(
    function: Callable[..., torch.Tensor], factor: float
) -> None:
    """Their forms in Python kept the layout of a transposed input, and of two rows enlarged
    2.4 times took others than the kernels.
    """
    for x in (torch.randn(4, 3, 2).permute(2, 1, 0), torch.randn(2, 3, 2, 4)):
        wanted = function(x, factor)
        found = weft.compile(function, dynamic=False)(x, factor)
        torch.testing.assert_close(found, wanted)
        assert found.stride() == wanted.stride()


@pytest.mark.parametrize("shape", [(2, 3, 7), (1, 2, 4, 7), (1, 1, 3, 4, 5)], ids=len)
def test_nearest_rows_of_sizes_and_scales_that_disagree(shape: tuple[int, ...]) -> None:
    """A dimension of an image that is kept or doubled goes by its size, others by the scale."""
    def resized(x: torch.Tensor) -> list[torch.Tensor]:
        scales = [F.interpolate(x, scale_factor=s, mode="nearest") for s in (1.2, 2.01, 0.7, 3.0)]
        return [*scales, F.interpolate(x, size=[2 * n - 1 for n in shape[2:]], mode="nearest")]

    x = torch.arange(1.0 * math.prod(shape)).view(shape)
    for found, wanted in zip(weft.compile(resized, dynamic=False)(x), resized(x), strict=True):
        assert torch.equal(found, wanted)


IMAGE = torch.randn(2, 4, 6, 6).contiguous(memory_format=torch.channels_last)
ROWS = torch.randn(5, 3, 4).permute(1, 2, 0)
REPEATED = torch.randn(1, 5, 4).expand(3, 5, 4)


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (lambda x: F.channel_shuffle(x, 2), IMAGE),
        (lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), IMAGE),
        (lambda x: torch.fft.rfft(x, dim=1), ROWS),
        (lambda x: torch.fft.fftn(x, dim=(0, 1)), ROWS),
        (lambda x: torch.slice_scatter(x, torch.zeros(3, 5, 2), 2, 0, 2), REPEATED),
        (lambda x: torch.diagonal_scatter(x, torch.zeros(3, 4), 0, 1, 2), REPEATED),
    ],
    ids=["channel_shuffle", "max_unpool2d", "rfft", "fftn", "slice_scatter", "diagonal_scatter"],
)
def test_layouts_that_meta_kernels_and_formulas_lose(
    function: Callable[..., torch.Tensor], x: torch.Tensor
) -> None:
    """Some of them (expanded tensors written to, with PyTorch 2.11) cost the values, too."""
    wanted, found = function(x), weft.compile(function)(x)
    torch.testing.assert_close(found, wanted)
    assert found.stride() == wanted.stride()


def test_nan_stays_in_gradients_of_formulas_with_bounds() -> None:
    x = torch.tensor([torch.nan, 0.1, 3.0])
    for function in (lambda x: F.smooth_l1_loss(x, 2 * x), lambda x: x.logit(0.2).sum()):
        found, wanted = x.clone().requires_grad_(), x.clone().requires_grad_()
        weft.compile(function)(found).backward()
        function(wanted).backward()
        torch.testing.assert_close(found.grad, wanted.grad, equal_nan=True)


def test_gradients_of_sums_repeat_their_elements() -> None:
    """They were computed in full and copied into memory that repeats: four times eager's time."""
    x = torch.randn(3, 5, 4, requires_grad=True)
    weights, calls = torch.randn(3, 4), weft.stats()["extern_calls"]
    (found,) = torch.autograd.grad(weft.compile(lambda x: x.sum(1) * 2)(x), x, weights)
    (wanted,) = torch.autograd.grad(x.sum(1) * 2, x, weights)
    torch.testing.assert_close(found, wanted, check_stride=True)
    assert found.stride() == (4, 0, 1)
    assert weft.stats()["extern_calls"] == calls


def test_strides_of_dimensions_of_size_one_are_those_of_eager() -> None:
    """A view of a product had strides (1, 1)."""
    def rows(x, weight):
        product = torch.tensordot(x, weight, 1)
        return product, (product + 1).view(1, 4), product.sum(1, keepdim=True).T

    given = torch.randn(3), torch.randn(3, 1, 4)
    found = weft.compile(rows, fullgraph=True)(*given)
    assert [t.stride() for t in found] == [t.stride() for t in rows(*given)]


def test_a_number_is_an_operand_of_other_shape() -> None:
    """`x * 2` of a column that was turned had row-major strides, as `x.sin()` has."""
    def turned(x):
        column = (x + 1).view(1, 3, 1).mT
        return column * 2, column > 0, column**2.5, column.sin(), column * column

    x = torch.randn(3)
    found = weft.compile(turned, fullgraph=True)(x)
    assert [t.stride() for t in found] == [t.stride() for t in turned(x)]


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0)])
def test_no_element_is_copied_where_a_gradient_has_none(shape: tuple[int, ...]) -> None:
    """The gradient of a sum repeats one element, which was read and stored past empty memory."""
    x = torch.randn(shape, requires_grad=True)
    for program in (lambda x: torch.einsum("i->", x.flatten()), lambda x: x.prod(-1).sum()):
        (found,) = torch.autograd.grad(weft.compile(program)(x), x)
        (wanted,) = torch.autograd.grad(program(x), x)
        torch.testing.assert_close(found, wanted)
