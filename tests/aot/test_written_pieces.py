"""Tensors that a loop writes piece by piece (`aot/rewrites/written_pieces.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft
from weft.diagnostics import events


def columns(x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    for k in range(x.shape[1]):
        y[:, k] = x[:, k] * k + x[:, k - 1].sin()
    return y * 2


def some_columns(x: torch.Tensor) -> torch.Tensor:
    y = x * 3
    for k in (5, 1, 7, -1, 2):
        y[:, k] = x[:, k] + 1
    return y


def written_again(x: torch.Tensor) -> torch.Tensor:
    """The last write counts; of an earlier one a piece is left."""
    y = torch.zeros_like(x)
    y[:, 1:7] = x[:, :6]
    for k in (3, 3, 4, 0):
        y[:, k] = x[:, k] + k
    y[:, 4:6] = x[:, 6:]
    return y.cos()


def recurrent(x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    h = torch.zeros_like(x[:, 0])
    for t in range(x.shape[1]):
        h = torch.tanh(x[:, t] + h)
        out[:, t] = h
    return out


def read_again(x: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    for k in range(1, x.shape[1]):
        y[:, k] += y[:, k - 1] * 0.5
    return y.relu()


def other_dimensions(x: torch.Tensor) -> torch.Tensor:
    y = x.t().contiguous().t().clone()  # column-major
    for k in range(6):
        y[k] = x[k] * k
        y[:, k] = x[:, k].cos()
    return y


def in_place(x: torch.Tensor) -> torch.Tensor:
    y = x * 1
    x = x.detach()
    for k in range(x.shape[1]):
        x[:, k] = k
    return x.sum() + y


PROGRAMS = (columns, some_columns, written_again, recurrent, read_again, other_dimensions, in_place)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
def test_results_are_eagers(program: Callable[..., Any], train: bool, dynamic: bool) -> None:
    compiled = weft.compile(program, dynamic=dynamic)
    for rows in (6, 7):
        mine = torch.randn(rows, 8, requires_grad=train)
        theirs = mine.detach().clone().requires_grad_(train)
        found, expected = compiled(mine), program(theirs)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(mine, theirs)
        assert found.stride() == expected.stride()
        if train:
            found.square().sum().backward()
            expected.square().sum().backward()
            torch.testing.assert_close(mine.grad, theirs.grad)


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_loop_of_writes_is_one_concatenation(dynamic: bool) -> None:
    """The loop fixes the symbolic size; it stayed a symbol in the ATen graph, where such sizes
    were not known to be numbers: an element was found by a test for each step."""
    with events.collect() as seen:
        weft.compile(recurrent, backend="aot_eager", dynamic=dynamic)(torch.randn(3, 9))
    [graph] = [e.gm.graph for e in seen if e.kind == "aot"]
    targets = [node.target for node in graph.nodes]
    assert torch.ops.aten.stack.default in targets
    assert torch.ops.aten.select_scatter.default not in targets
