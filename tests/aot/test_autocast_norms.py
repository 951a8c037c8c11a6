"""Autocast on a CPU: norms in half precision with parameters in float32; regions within regions."""

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


REGIONS: dict[str, Callable[..., torch.Tensor]] = {
    "mm": lambda x: x @ x.mT,
    "linear": lambda x: nn.functional.linear(x, x, x[:, 0]),
    "baddbmm": lambda x: torch.baddbmm(x[None], x[None], x[None]),
    "conv": lambda x: nn.functional.conv1d(x[None], x[:, :, None]),
}


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("name", REGIONS)
def test_a_region_without_autocast_within_autocast(name: str, backend: str) -> None:
    """The compiled graph's operators were cast once more: other types, and memory overrun."""

    def region(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return REGIONS[name](x)

    def seen(call: Callable[..., torch.Tensor]) -> list[torch.Tensor | None]:
        x = torch.linspace(-2, 2, 16).view(4, 4).requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            y = call(x)
        y.sin().sum().backward()
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            return [y.detach(), x.grad, call(x)]

    torch.testing.assert_close(seen(weft.compile(region, backend=backend)), seen(region))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("tracked", [True, False])
def test_batch_norm_of_half_types_is_fused(
    dtype: torch.dtype, affine: bool, tracked: bool
) -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(8, affine=affine, track_running_stats=tracked).to(dtype)
    eager, x = copy.deepcopy(norm), torch.randn(4, 8, 6, 6).to(dtype)
    weft.reset()
    compiled = weft.compile(lambda x: norm(x).relu(), fullgraph=True)
    given = [x.clone().requires_grad_() for _ in range(2)]
    results = [compiled(given[0]), eager(given[1]).relu()]
    for result in results:
        (result.float() * torch.linspace(-1, 1, x.numel()).view(x.shape)).sum().backward()
    assert weft.stats()["extern_calls"] == 0
    pairs = [tuple(results), (given[0].grad, given[1].grad)]
    pairs += zip(norm.buffers(), eager.buffers(), strict=True)
    pairs += [(p.grad, q.grad) for p, q in zip(norm.parameters(), eager.parameters(), strict=True)]
    for found, wanted in pairs:
        assert found.dtype == wanted.dtype
        torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-2)
