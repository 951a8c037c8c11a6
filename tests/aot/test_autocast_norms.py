"""Training under autocast on a CPU: inputs of norms in half precision, parameters in float32."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import weft

aten = torch.ops.aten


def training(
    model: nn.Module, shape: tuple[int, ...], wrap: Callable[..., object]
) -> list[torch.Tensor]:
    model = copy.deepcopy(model)
    x = torch.linspace(-2, 2, torch.Size(shape).numel()).view(shape).sin()

    def loss_of(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            out = model(x).float()
        return (out * torch.linspace(-1, 1, out.numel()).view(out.shape)).sum()

    wrap(loss_of)(x).backward()
    return [p.grad for p in model.parameters() if p.grad is not None] + list(model.buffers())


CONV = ((4, 3, 8, 8), lambda norm: nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.ReLU()))
LINEAR = ((4, 16), lambda norm: nn.Sequential(nn.Linear(16, 8), norm, nn.GELU()))
NORMS = {
    "layer": (LINEAR, nn.LayerNorm(8)),
    "rms": (LINEAR, nn.RMSNorm(8)),
    "group": (CONV, nn.GroupNorm(2, 8)),
    "instance": (CONV, nn.InstanceNorm2d(8, affine=True)),
    "batch": (CONV, nn.BatchNorm2d(8)),
    "batch, no parameters": (CONV, nn.BatchNorm2d(8, affine=False)),
    "batch, evaluated": (CONV, nn.BatchNorm2d(8).eval()),
}


@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")  # eager's own
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("name", NORMS)
def test_gradients_and_statistics_equal_eager(name: str, backend: str) -> None:
    torch.manual_seed(0)
    (shape, make), norm = NORMS[name]
    model = make(norm)
    expected = training(model, shape, lambda f: f)
    given = training(model, shape, lambda f: weft.compile(f, backend=backend, fullgraph=True))
    assert len(given) == len(expected)
    for got, want in zip(given, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=0.03, atol=0.03)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, w: torch.native_layer_norm(x, [8], w, w, 1e-5),
        lambda x, w: torch.native_group_norm(x, w, w, 4, 8, 1, 2, 1e-5),
        lambda x, w: torch.native_batch_norm(x, w, w, w.clone(), w.clone(), True, 0.1, 1e-5),
    ],
    ids=["layer", "group", "batch"],
)
@pytest.mark.parametrize("parameter_type", [torch.float32, torch.bfloat16])
def test_types_of_statistics(call: Callable[..., object], parameter_type: torch.dtype) -> None:
    x, w = torch.randn(4, 8).bfloat16(), torch.ones(8, dtype=parameter_type)
    expected = call(x, w)
    given = weft.compile(call, fullgraph=True)(x, w)
    assert [t.dtype for t in given] == [t.dtype for t in expected]
    torch.testing.assert_close(given, expected, rtol=0.02, atol=0.02)
