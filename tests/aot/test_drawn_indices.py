"""Drawn numbers as indices and sizes, also where an index can only be one number: an input that the
graph knows to be 0 still binds its symbol, which the check names."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft

pytestmark = pytest.mark.usefixtures("fresh")


def written(x: torch.Tensor, n: int) -> torch.Tensor:
    mask = torch.zeros(n)
    mask[random.randrange(n)] = 1.0
    return x * mask[:, None]


def twice(x: torch.Tensor, n: int) -> torch.Tensor:
    i = random.randrange(n)
    y = x.clone()
    y[i] = 0
    y[n - 1 - i] += 1
    return y


def kept_if_all(x: torch.Tensor, n: int) -> torch.Tensor:
    """As models drop layers: at least one stays."""
    dropped = torch.zeros(n).uniform_(0.0, 1.0) < 0.99
    if all(dropped):
        dropped[random.randrange(n)] = False
    return x + dropped[:, None]


def sized(x: torch.Tensor, n: int) -> torch.Tensor:
    i = random.randrange(n)
    return torch.ones(i + 1, 3) + x[: i + 1]


def checked(x: torch.Tensor, n: int) -> torch.Tensor:
    i = random.randrange(n)
    torch._check(i < x.shape[0])
    return x.narrow(0, i, 1) * i


def item(x: torch.Tensor, n: int) -> torch.Tensor:
    return x[int(torch.randint(0, n, ()).item())] + x.sum()


def of_all_rows(x: torch.Tensor, n: int) -> torch.Tensor:
    return x[random.randrange(x.shape[0] - n + 1)]


def parts(x: torch.Tensor, n: int) -> tuple[torch.Tensor, ...]:
    i = random.randrange(n)
    return x.roll(i, 0), x.split([i, x.shape[0] - i])[1], torch.stack([x, x])[:, i]


PROGRAMS = (written, twice, kept_if_all, sized, checked, item, of_all_rows, parts)
CALLS = 4


def results(
    program: Callable[..., Any], n: int, seed: int
) -> tuple[list[torch.Tensor], float]:
    random.seed(seed)
    torch.manual_seed(seed)
    x = torch.randn(n if seed < CALLS - 1 else n + 1, 3, requires_grad=True)
    try:
        out = program(x, n)
    except RuntimeError as error:
        return [torch.tensor(len(type(error).__name__))], random.random()
    outputs = out if isinstance(out, tuple) else (out,)
    sum(o.sum() for o in outputs).backward()
    assert x.grad is not None
    return [*(o.detach() for o in outputs), x.grad], random.random()


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("program", PROGRAMS)
def test_drawn_index(program: Callable[..., Any], n: int, dynamic: bool | None) -> None:
    compiled = weft.compile(program, backend="aot_eager", dynamic=dynamic)
    for seed in range(CALLS):
        expected, drawn = results(program, n, seed)
        got, drawn_now = results(compiled, n, seed)
        torch.testing.assert_close(got, expected)
        assert drawn == drawn_now


@pytest.mark.parametrize("program", [written, kept_if_all])
def test_on_the_default_backend(program: Callable[..., Any]) -> None:
    compiled = weft.compile(program)
    for seed in range(CALLS - 1):
        torch.testing.assert_close(results(compiled, 1, seed), results(program, 1, seed))
