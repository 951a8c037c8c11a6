"""The bias's gradient of a convolution as a sum of its own, as on GPUs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

import weft
from weft.aot.tracing import record_special


@pytest.fixture(autouse=True)
def _apart(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(record_special, "BIAS_APART_ON", {"cpu"})
    yield
    weft.reset()


@pytest.mark.parametrize("trained", ["weight bias input", "bias", "bias input", "weight"])
@pytest.mark.parametrize("layer", [nn.Conv2d(3, 4, 3, 2), nn.ConvTranspose1d(3, 4, 2, groups=1)])
def test_gradients_are_eagers(layer: nn.Module, trained: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 3, *(9,) * (layer.weight.dim() - 2))
    for name, parameter in [*layer.named_parameters(), ("input", x)]:
        parameter.requires_grad_(name in trained)
    leaves = [t for t in (*layer.parameters(), x) if t.requires_grad]
    found = torch.autograd.grad(weft.compile(layer)(x).square().sum(), leaves)
    wanted = torch.autograd.grad(layer(x).square().sum(), leaves)
    torch.testing.assert_close(found, wanted)
