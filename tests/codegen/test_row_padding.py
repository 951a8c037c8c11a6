"""Rows that feed half-precision products get room at their ends (on CPUs, where the rule is told to
take any size, the results are compared)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import weft
from weft.aot import standard_passes  # noqa: F401  (registers them)
from weft.passes import framework, pad_rows
from weft.shapes.algebra.views import Shape
from weft.shapes.graph_facts import aten_facts


@pytest.fixture
def padded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Shape]]:
    """The strides that were given room."""
    weft.reset()
    found: list[Shape] = []

    def seen(gm: torch.fx.GraphModule) -> bool:
        noted = pad_rows.pad_rows(gm)
        found.extend(strides for n in gm.graph.nodes if (strides := aten_facts(n).strides))
        return noted

    monkeypatch.setattr(pad_rows, "_is_large", lambda node: True)
    standard = framework._registered["pad_rows"]
    monkeypatch.setitem(framework._registered, "pad_rows", replace(standard, run=seen))
    with weft.config.patch(strict=True):
        yield found


def test_gradients_of_an_odd_number_of_scores(padded: list[Shape]) -> None:
    labels = torch.randint(0, 51, (64,))

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(F.linear(x, w).float().view(-1, 51), labels)

    inputs = [torch.randn(4, 16, 32, requires_grad=True), torch.randn(51, 32, requires_grad=True)]
    expected = torch.autograd.grad(f(*inputs), inputs)
    got = torch.autograd.grad(weft.compile(f)(*inputs), inputs)
    assert (16 * 56, 56, 1) in padded or (56, 1) in padded
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_rows_of_one_element_are_no_rows(padded: list[Shape]) -> None:
    """The kernel of a 1 x 1 convolution was spread over eight times its memory."""
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return x.relu() @ w.view(16, 8).t()

    x, w = torch.randn(64, 8), torch.randn(16, 8, 1, 1)
    torch.testing.assert_close(weft.compile(f)(x, w), f(x, w))
    assert padded == []


def test_inputs_are_copied_and_results_keep_their_strides(padded: list[Shape]) -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x + 1
        return (y @ w).relu(), x.t() @ y.exp(), y

    x, w = torch.randn(64, 131) / 4, torch.randn(131, 133)
    got, expected = weft.compile(f)(x, w), f(x, w)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    assert [t.stride() for t in got] == [t.stride() for t in expected]
    assert padded == [(136, 1)] * 3  # w, x and y.exp(), but not y
