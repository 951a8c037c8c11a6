"""Gradients of cumulative products, which eager computes in two ways."""

from __future__ import annotations

import pytest
import torch

import weft


@pytest.mark.parametrize("dim", [0, -1])
@pytest.mark.parametrize("zeros", [0, 1, 3])
def test_gradients_of_cumulative_products_had_four_scans(dim: int, zeros: int) -> None:
    def function(x):
        return (x * 2).cumprod(dim).sin()

    weft.reset()
    x = torch.randn(6, 7)
    x.view(-1)[: 8 * zeros : 8] = 0
    eager, compiled = x.clone().requires_grad_(), x.clone().requires_grad_()
    function(eager).sum().backward()
    weft.compile(function)(compiled).sum().backward()
    torch.testing.assert_close(compiled.grad, eager.grad)
    assert weft.stats()["extern_calls"] == 2
