"""A branch on a drawn or a read number is taken as often as in eager, whatever the first call did.

Each generated program is compiled for one of its numbers after the other and then called with each
other one: what capture assumed of the number is broken in all ways. Compared: results, errors,
arguments, gradients, and the states of all generators. `WEFT_TEST_BRANCHES=all` runs every program
on every backend.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft
from tests.capture.drawn_programs import (
    DRAWS,
    READS,
    RNG,
    USES,
    generator_states,
    program,
    seed,
    seeds_by_value,
)
from tests.capture.harness import same
from weft.config import config

_ALL = os.environ.get("WEFT_TEST_BRANCHES") == "all"
_BACKENDS = ("eager", "aot_eager", "inductor")


def _chosen(ways: dict[str, str], share: int) -> list[tuple[str, str, str]]:
    """All combinations, or so many of them: each way, use and backend about equally often."""
    combinations = list(itertools.product(ways, USES, _BACKENDS))
    if _ALL:
        return combinations
    order = random.Random(share)
    order.shuffle(combinations)
    return combinations[:share]


def _outcome(function: Callable[..., Any], number: int, start: int, trains: bool) -> Any:
    """What a call gives and changes."""
    x = (torch.arange(3.0) + 1)
    data = torch.tensor([number, 0, 0])
    if trains:
        x.requires_grad_()
    seed(start)
    try:
        result = function(x.clone() if trains else x, data)
    except Exception as error:
        result = (type(error), str(error))
    gradient = None
    if isinstance(result, torch.Tensor) and result.requires_grad:
        gradient, = torch.autograd.grad(result.sum(), x, allow_unused=True)
    return [result, x.detach(), gradient, generator_states()]


def _compare(way: str, use: str, backend: str, starts: dict[int, int], trains: bool,
             dynamic: bool | None) -> list[str]:
    wrong = []
    for first in starts:
        eager, function = program(way, use), program(way, use)
        weft.reset()
        compiled = weft.compile(function, backend=backend, dynamic=dynamic)
        for number in (first, *starts):
            expected = _outcome(eager, number, starts[number], trains)
            found = _outcome(compiled, number, starts[number], trains)
            if not same(expected, found):
                wrong.append(f"compiled for {first}, called for {number}")
    return wrong


@pytest.mark.parametrize(("draw", "use", "backend"), _chosen(DRAWS, 9))
def test_branches_on_a_drawn_number(draw: str, use: str, backend: str) -> None:
    trains, dynamic = len(use) % 2 == 0, True if len(draw) % 3 == 0 else None
    with config.patch(fallback_random=True):
        assert not _compare(draw, use, backend, seeds_by_value(draw), trains, dynamic)


@pytest.mark.parametrize(("read", "use", "backend"), _chosen(READS, 7))
def test_branches_on_a_number_of_a_tensor(read: str, use: str, backend: str) -> None:
    trains, dynamic = len(use) % 2 == 0, True if len(read) % 3 == 0 else None
    with config.patch(fallback_random=True):
        assert not _compare(read, use, backend, dict.fromkeys(range(4), 0), trains, dynamic)


def test_a_drawn_number_of_numpy_keeps_the_type_that_the_program_gave_it() -> None:
    def types(x: torch.Tensor) -> Any:
        drawn = RNG.integers(0, 4)
        return x * 2, drawn, int(drawn), drawn * 2, int(drawn) + 1, float(drawn)

    weft.reset()
    compiled = weft.compile(types, backend="eager", fullgraph=True)
    for number in range(3):
        seed(number)
        expected = types(torch.ones(1))
        seed(number)
        assert same(expected, compiled(torch.ones(1)))
