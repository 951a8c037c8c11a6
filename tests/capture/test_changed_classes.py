"""Classes that change between two calls: each change of what a lookup gives must be seen."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft
from tests.capture.changed_classes import PROGRAMS, Change, World, changes

SAMPLES = int(os.environ.get("WEFT_CLASS_CHANGES", "3"))
"""How many changes are tried with each program; 0: all."""


def _outcome(function: Callable[..., Any], world: World, x: torch.Tensor) -> object:
    try:
        result = function(x, world)
    except Exception as error:
        return type(error), str(error).partition(" at 0x")[0]
    return type(result), result.tolist() if isinstance(result, torch.Tensor) else result


def _after(change: Change, compile: bool, use: Callable[[Any], Any]) -> list[object]:
    def program(x: torch.Tensor, world: Any) -> torch.Tensor:
        return x + use(world)

    world, x = World(), torch.arange(2.0)
    function = weft.compile(program, backend="eager") if compile else program
    outcomes = [_outcome(function, world, x)]
    try:
        change(world)
    except (TypeError, AttributeError) as error:
        return [*outcomes, str(error)]
    return [*outcomes, _outcome(function, world, x), _outcome(function, world, x)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_changed_class_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weft.config, "strict", True)
    use, names = PROGRAMS[name]
    cases = list(changes(names))
    if SAMPLES:
        cases = random.Random(name).sample(cases, SAMPLES)
    wrong = [text for text, change in cases
             if _after(change, True, use) != _after(change, False, use)]
    assert not wrong
