"""Process-wide state that changes inside a compiled function, or between its calls: as in eager."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft
from tests.capture.process_state import SETTINGS, Setting, shown

X = torch.tensor([[1e-3, 2000.0], [1e-39, 3.0]])
Program = Callable[[torch.Tensor, Setting], tuple[Any, ...]]


def _sets(x: torch.Tensor, setting: Setting) -> tuple[Any, ...]:
    before = shown(x)
    setting.write(setting.other)
    return (*before, *shown(x), setting.read())


def _sets_for_a_while(x: torch.Tensor, setting: Setting) -> tuple[Any, ...]:
    setting.write(setting.other)
    inside = shown(x)
    setting.write(setting.usual)
    return (*inside, *shown(x), setting.read())


def _reads(x: torch.Tensor, setting: Setting) -> tuple[Any, ...]:
    return (*shown(x), setting.read())


def _plain(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        data = None if result.device.type == "meta" else result.tolist()
        return result.dtype, result.device, result.requires_grad, repr(data)
    return repr(result)


def _outcomes(function: Program, setting: Setting, states: tuple[Any, ...]) -> list[Any]:
    outcomes: list[Any] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for state in states:
            setting.write(state)
            try:
                outcomes.append([*map(_plain, function(X, setting))])
            except RuntimeError as error:  # of settings that contradict each other
                outcomes.append(str(error)[:80])
            finally:
                outcomes.append(repr(setting.read()))
                setting.write(setting.usual)
    return outcomes


PROGRAMS = (_sets, _sets_for_a_while, _reads)
SEEN = ("print", "numpy", "flush", "threads", "default dtype", "deterministic")
"""The beginnings of the names of settings that are tried with all programs."""
CASES = [(name, program) for at, name in enumerate(SETTINGS)
         for which, program in enumerate(PROGRAMS) if name.startswith(SEEN)
         or at % 3 == which or os.environ.get("WEFT_ALL_STATES")]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "program"), CASES)
def test_process_wide_state_is_as_in_eager(
        name: str, program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weft.config, "strict", True)
    setting = SETTINGS[name]
    first = setting.other if program is _sets else setting.usual
    states = (first, setting.usual, setting.other, setting.usual)
    weft.reset()
    try:
        setting.write(setting.other)
        setting.write(setting.usual)
    except RuntimeError as error:  # torch's own test library forbids some, for instance
        pytest.skip(str(error))
    compiled = weft.compile(program, backend="eager")
    assert _outcomes(compiled, setting, states) == _outcomes(program, setting, states)
    assert weft.stats()["fallbacks"] == 0


def test_print_options_that_are_written_directly(monkeypatch: pytest.MonkeyPatch) -> None:
    options = torch._tensor_str.PRINT_OPTS
    monkeypatch.setattr(options, "precision", 4)

    def f(x: torch.Tensor) -> tuple[str, str]:
        options.precision = 2
        texts = str(x * 1.23456), str(torch.ones(2) * 1.23456)
        options.precision = 4
        return texts

    assert weft.compile(f, backend="eager")(X) == f(X)
