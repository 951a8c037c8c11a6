"""The backward written for one graph: ordinary runs take it, every other one the general way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft
from weft.aot.training import autograd_function


@pytest.fixture
def general_runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that grows with each backward that takes the general way."""
    found: list[int] = []
    original = autograd_function._backward

    def counted(*args: Any) -> Any:
        found.append(1)
        return original(*args)

    monkeypatch.setattr(autograd_function, "_backward", counted)
    return found


def _model(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x * w).tanh() * w.exp()


def _leaves() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(4, 5, requires_grad=True), torch.randn(5, requires_grad=True)


def _plain(y: torch.Tensor, leaves: tuple[torch.Tensor, ...]) -> list[Any]:
    y.backward(torch.ones_like(y))
    return [t.grad for t in leaves]


def _transposed_tangent(y: torch.Tensor, leaves: tuple[torch.Tensor, ...]) -> list[Any]:
    y.backward(torch.linspace(-1, 1, 20).view(5, 4).t())
    return [t.grad for t in leaves]


def _twice(y: torch.Tensor, leaves: tuple[torch.Tensor, ...]) -> list[Any]:
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    return [t.grad for t in leaves]


def _create_graph(y: torch.Tensor, leaves: tuple[torch.Tensor, ...]) -> list[Any]:
    (first,) = torch.autograd.grad(y.sum(), leaves[0], create_graph=True)
    first.square().sum().backward()
    return [t.grad for t in leaves]


def _plain_after_create_graph(y: torch.Tensor, leaves: tuple[torch.Tensor, ...]) -> list[Any]:
    torch.autograd.grad(y.sum(), leaves, create_graph=True)
    return _plain(y, leaves)


def _some(y: torch.Tensor, leaves: tuple[torch.Tensor, ...]) -> list[Any]:
    return list(torch.autograd.grad(y.sum(), leaves[1]))


def _batched(y: torch.Tensor, leaves: tuple[torch.Tensor, ...]) -> list[Any]:
    tangents = torch.eye(20).view(20, 4, 5)
    return list(torch.autograd.grad(y, leaves, tangents, is_grads_batched=True))


def _under_autocast(y: torch.Tensor, leaves: tuple[torch.Tensor, ...]) -> list[Any]:
    with torch.autocast("cpu"):
        return _plain(y, leaves)


ORDINARY = (_plain, _transposed_tangent, _twice)
OTHERS = (_create_graph, _plain_after_create_graph, _some, _batched, _under_autocast)


@pytest.mark.parametrize("run", [*ORDINARY, *OTHERS])
def test_every_run_has_eagers_gradients(
    run: Callable[..., list[Any]], general_runs: list[int]
) -> None:
    compiled = weft.compile(_model)
    expected_leaves, leaves = _leaves(), _leaves()
    expected = run(_model(*expected_leaves), expected_leaves)
    torch.testing.assert_close(run(compiled(*leaves), leaves), expected)
    assert bool(general_runs) == (run in OTHERS)


def test_absent_tangent_takes_the_general_way(general_runs: list[int]) -> None:
    def two(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = (x * w).tanh()
        return y, (y * w).log()

    x, w = _leaves()
    torch.autograd.backward(weft.compile(two)(x, w)[0].sum())
    other_x, other_w = _leaves()
    two(other_x, other_w)[0].sum().backward()
    torch.testing.assert_close([x.grad, w.grad], [other_x.grad, other_w.grad])
    assert general_runs


def test_gradients_of_no_leaf_are_ordinary(general_runs: list[int]) -> None:
    leaf, w = _leaves()
    compiled = weft.compile(lambda x: (x * 2).exp())
    compiled(leaf.sin()).sum().backward()
    other, _ = _leaves()
    (other.sin() * 2).exp().sum().backward()
    torch.testing.assert_close(leaf.grad, other.grad)
    assert not general_runs


def test_written_inputs_are_noticed_in_an_ordinary_run() -> None:
    x, w = _leaves()
    scale = torch.ones(5)
    y = weft.compile(lambda x, w, s: x * w * s)(x, w, scale)
    scale.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
