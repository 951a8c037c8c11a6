"""Convolutions whose weights are packed once: eager's results and strides, also after writes."""

from __future__ import annotations

import gc

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import weft
from weft.runtime.kept_forms import bytes_kept
from weft.runtime.onednn import onednn_convolution
from weft.runtime.watched_storages import can_watch

pytestmark = pytest.mark.skipif(
    not can_watch() or onednn_convolution() is None, reason="weights are not packed here")


def _check(compiled: nn.Module, model: nn.Module, x: torch.Tensor) -> None:
    with torch.no_grad():
        wanted, result = model(x), compiled(x)
    torch.testing.assert_close(result, wanted, rtol=1e-3, atol=1e-3)
    assert result.stride() == wanted.stride()


@pytest.mark.parametrize("options", [
    {}, {"stride": 2, "padding": 1}, {"dilation": 2, "bias": False},
    {"groups": 4, "padding": (0, 2)}])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_weights_are_packed_again_after_writes(options, layout) -> None:
    gc.collect()
    before = bytes_kept()
    layers = nn.Conv2d(36, 52, 3, **options), nn.ReLU(), nn.Conv2d(52, 36, 1)
    model = nn.Sequential(*layers).eval().to(memory_format=layout)
    compiled, x = weft.compile(model), torch.randn(2, 36, 40, 40).to(memory_format=layout)
    for _ in range(3):
        _check(compiled, model, x)
    assert bytes_kept() > before
    with torch.no_grad():
        model[0].weight.mul_(2)
    _check(compiled, model, x)
    model[2].weight.data.add_(1)
    _check(compiled, model, x)
    model.load_state_dict({k: 0.1 * torch.randn_like(v) for k, v in model.state_dict().items()})
    _check(compiled, model, x)


def test_a_weight_that_something_else_reads_is_not_packed() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(32, 32, 3, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return F.conv2d(F.conv2d(x, self.weight).relu(), self.weight) + self.weight.sum()

    model = Tied()
    compiled, x = weft.compile(model), torch.randn(1, 32, 40, 40)
    for _ in range(2):
        _check(compiled, model, x)


def test_training_after_inference_takes_the_parameters_themselves() -> None:
    model = nn.Sequential(nn.Conv2d(32, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3))
    compiled, x = weft.compile(model), torch.randn(1, 32, 40, 40)
    _check(compiled, model, x)
    compiled(x).sum().backward()
    got = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(x).sum().backward()
    for gradient, parameter in zip(got, model.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-3, atol=1e-2)
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.01 * p.grad
    _check(compiled, model, x)
