"""Results with the strides that the graph promises: memory with gaps, expanded dimensions.

A backward graph reads what its forward graph saved by the strides of the metadata.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import weft
from weft.codegen.lowering.extern import laid_out


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
