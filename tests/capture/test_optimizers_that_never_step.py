"""Capture makes an optimizer's state ahead; where the program fails before its step, it is gone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import weft
from tests.capture.harness import same


@pytest.mark.parametrize(("kind", "backend"), [
    ("Adam", "aot_eager"), ("Adam", "eager"), ("RMSprop", "eager"), ("Rprop", "eager")])
def test_an_error_before_the_first_step_leaves_no_state(kind: str, backend: str) -> None:
    """`optimizer.state` held zeros for a step that eager had not begun."""
    def step(x: torch.Tensor, k: torch.Tensor, p: torch.Tensor, optimizer: Any) -> torch.Tensor:
        y = x[k]
        (y * p).sum().backward()
        optimizer.step()
        return y + p

    weft.reset()
    compiled = weft.compile(step, backend=backend)
    sides: list[list[Any]] = []
    for function in (step, compiled):
        p = torch.nn.Parameter(torch.ones(3))
        optimizer = getattr(torch.optim, kind)([p], lr=0.1)
        sides.append([])
        for k in (7, 1, 8, 2):
            try:
                result: Any = function(torch.arange(3.0), torch.tensor(k), p, optimizer)
            except IndexError as error:
                result = str(error)
            sides[-1].append((result, p.clone(), [dict(s) for s in optimizer.state.values()]))
            assert bool(optimizer.state) == (k < 3 or len(sides[-1]) > 1)
    assert same(*sides)
