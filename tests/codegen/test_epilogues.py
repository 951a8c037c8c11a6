"""Activations applied by the matrix product itself."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.codegen.compiling import check
from weft.codegen.lowering import onednn


@pytest.fixture(autouse=True)
def use_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine where oneDNN is faster."""
    monkeypatch.setattr(onednn, "onednn_is_faster", lambda shape: True)


ARGUMENTS = torch.randn(4, 32, 128), torch.randn(256, 128), torch.randn(256)


@pytest.mark.parametrize(
    "activation",
    [F.gelu, lambda x: F.gelu(x, approximate="tanh"), F.silu, torch.sigmoid, torch.tanh],
)
def test_an_activation_after_a_linear_layer_needs_no_kernel(activation) -> None:
    def layer(x, w, b):
        return activation(F.linear(x, w, b))

    artifact = check(layer, *ARGUMENTS, rtol=1e-4, atol=1e-4)
    assert not artifact.kernels
    assert "_linear_pointwise" in artifact.source or "linear" in artifact.source


@pytest.mark.parametrize(
    "activation", [F.relu, F.relu6, F.gelu, F.silu, F.hardswish, torch.sigmoid, torch.tanh])
def test_what_is_not_a_number_stays_that(activation) -> None:
    x = ARGUMENTS[0].clone()
    x[1, 2], x[2, 3] = float("nan"), float("inf")
    check(lambda x, w: activation(F.linear(x, w)), x, ARGUMENTS[1], rtol=1e-4, atol=1e-4)


def test_the_product_is_kept_where_something_else_reads_it() -> None:
    def layer(x, w, b):
        y = F.linear(x, w, b)
        return F.gelu(y) + y

    artifact = check(layer, *ARGUMENTS, rtol=1e-4, atol=1e-4)
    assert len(artifact.kernels) == 1


def test_a_returned_product_is_kept() -> None:
    def layer(x, w, b):
        y = F.linear(x, w, b)
        return F.relu(y), y

    check(layer, *ARGUMENTS, rtol=1e-4, atol=1e-4)


def test_an_activation_of_a_part_is_a_kernel() -> None:
    def layer(x, w, b):
        return F.silu(F.linear(x, w, b)[..., :100])

    assert len(check(layer, *ARGUMENTS, rtol=1e-4, atol=1e-4).kernels) == 1
