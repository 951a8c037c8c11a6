"""`create_graph=True` where eager does it: behind eager layers, through overwritten buffers; and
tangents whose numbers are not in memory."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

import weft

WIDTH = 64
"""Larger than what is kept for gradients of gradients in any case."""


class Written(nn.Module):
    """Reads a buffer and writes to it, in any order."""

    def __init__(self, order: str) -> None:
        super().__init__()
        self.register_buffer("seen", torch.ones(WIDTH))
        self.weight = nn.Parameter(torch.full((WIDTH,), 2.0))
        self.order = order

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.order == "write, read":
            self.seen.add_(x.detach().mean(0))
        seen = self.seen if self.order == "write, read" else self.seen.clone()
        y = (x * self.weight * seen).sin()
        if self.order == "copy":
            self.seen.copy_(x.detach().mean(0))
        if self.order == "both":
            self.seen.mul_(y.detach().mean(0))
        return y


MODELS: dict[str, Callable[[], nn.Module]] = {
    "batch norm": lambda: nn.BatchNorm1d(WIDTH),
    "batch norm, no weights": lambda: nn.BatchNorm1d(WIDTH, affine=False),
    "batch norm, all batches": lambda: nn.BatchNorm1d(WIDTH, momentum=None),
    "batch norm, eval": lambda: nn.BatchNorm1d(WIDTH).eval(),
    "layer norm": lambda: nn.LayerNorm(WIDTH),
    "group norm": lambda: nn.GroupNorm(4, WIDTH),
    "relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid, "gelu": nn.GELU,
    "softmax": lambda: nn.Softmax(-1), "log softmax": lambda: nn.LogSoftmax(-1),
    "dropout": nn.Dropout,
    "linear": lambda: nn.Linear(WIDTH, WIDTH),
    "several": lambda: nn.Sequential(
        nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.LeakyReLU(0.2)),
    "spectral norm": lambda: parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)),
    "weight norm": lambda: parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)),
    **{order: lambda order=order: Written(order)
       for order in ("write, read", "copy", "both")},
}
LOSSES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "square": lambda y: y.square().sum(),
    "abs": lambda y: y.abs().sum(),
    "inner": lambda y: y.mul(2).tanh().sum() + y.exp().sum(),
}


def _penalty(model: nn.Module, call: Callable[[torch.Tensor], torch.Tensor], loss: str
             ) -> list[torch.Tensor | None]:
    """All gradients of a gradient penalty, in front of which an eager layer stands."""
    torch.manual_seed(0)
    first = nn.Linear(WIDTH, WIDTH)
    x = torch.randn(WIDTH, WIDTH, requires_grad=True)
    value = LOSSES[loss](call(first(x)))
    gradient, = torch.autograd.grad(value, x, create_graph=True)
    del value
    ((gradient.norm(2, dim=1) - 1) ** 2).mean().backward()
    return [gradient, x.grad, *(p.grad for p in (*first.parameters(), *model.parameters())),
            *model.buffers()]


@pytest.mark.parametrize("name", MODELS)
def test_gradient_penalty_behind_an_eager_layer(name: str) -> None:
    torch.manual_seed(1)
    model = MODELS[name]()
    loss = list(LOSSES)[list(MODELS).index(name) % len(LOSSES)]
    eager, twin = copy.deepcopy(model), copy.deepcopy(model)
    expected = _penalty(eager, eager, loss)
    actual = _penalty(twin, weft.compile(twin, backend="aot_eager"), loss)
    for a, e in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, e, rtol=1e-3, atol=1e-3)


LAZY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "conjugated": lambda y: (y.conj() * WEIGHTS).sum().abs(),
    "negated": lambda y: (y.conj().imag * WEIGHTS.real).sum(),
    "zero": lambda y: y.sgn().real.sum(),
    "zero and more": lambda y: y.sgn().real.sum() + y.real.sum(),
}
WEIGHTS = torch.view_as_complex(torch.linspace(-1, 1, 8000).reshape(40, 100, 2))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("lazy", LAZY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_tangents_whose_numbers_are_not_in_memory(lazy: str, dtype: torch.dtype, backend: str
                                                  ) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * x

    gradients = []
    for call in (f, weft.compile(f, backend=backend)):
        x = WEIGHTS.to(dtype) if dtype.is_complex else WEIGHTS.real.clone()
        x = x.clone().requires_grad_()
        y = call(x)
        LAZY[lazy](y if dtype.is_complex else torch.complex(y, y)).backward()
        gradients.append(x.grad)
    torch.testing.assert_close(gradients[1], gradients[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("tangent", ["conjugated", "negated", "zero"])
def test_inputs_and_tangents_that_a_program_makes(tangent: str) -> None:
    lazy = {"conjugated": WEIGHTS.conj(), "negated": WEIGHTS.conj().imag,
            "zero": torch._efficientzerotensor((40, 100))}[tangent]

    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 2 + x.sin()

    weft.reset()
    compiled = weft.compile(f)
    for _ in range(2):
        torch.testing.assert_close(compiled(lazy), f(lazy))
    x = torch.ones(40, 100, dtype=lazy.dtype, requires_grad=True)
    compiled(x).backward(lazy)
    expected = torch.ones(40, 100, dtype=lazy.dtype, requires_grad=True)
    f(expected).backward(lazy)
    torch.testing.assert_close(x.grad, expected.grad)
    assert weft.stats()["recompiles"] <= 1
