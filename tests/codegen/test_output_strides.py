"""Results with the strides that the graph promises: memory with gaps, expanded dimensions.

A backward graph reads what its forward graph saved by the strides of the metadata.
"""

from __future__ import annotations

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
