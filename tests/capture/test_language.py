"""Python's language through capture: every program inlined, and with a break at each `stop()`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import weft
from tests.bytecode import programs
from tests.capture import language
from tests.capture.harness import compare, run, same

_STOPPED = weft.disable(language.stop)
_BOOM = weft.disable(language.boom)
_NAMES = [f"{function.__name__}-{n}" for n, (function, _) in enumerate(language.CASES)]


@pytest.mark.parametrize("breaking", [False, True], ids=["inlined", "broken"])
@pytest.mark.parametrize("case", language.CASES, ids=_NAMES)
def test_program(
    case: tuple[Callable[..., Any], tuple[Any, ...]], breaking: bool, monkeypatch: Any
) -> None:
    function, args = case
    if breaking:
        monkeypatch.setattr(language, "stop", _STOPPED)
        monkeypatch.setattr(language, "boom", _BOOM)
    expected = [run(function, args, {}) for _ in range(2)]
    compiled = weft.compile(function, backend="eager")
    for outcome in expected:
        compare(outcome, run(compiled, args, {}))


@pytest.mark.parametrize("breaking", [False, True], ids=["inlined", "broken"])
@pytest.mark.parametrize("case", programs.PROGRAMS, ids=lambda case: case[0].__qualname__)
@pytest.mark.filterwarnings("ignore::weft.errors.RecompileLimitWarning")
def test_statement(case: programs.Program, breaking: bool, monkeypatch: Any) -> None:
    """The programs of the byte code tests: all their effects, in order."""
    function, args, kwargs = case
    if breaking:
        monkeypatch.setattr(programs, "log", weft.disable(programs.log))
    programs.LOG.clear()
    expected = run(function, args, kwargs), list(programs.LOG)
    compiled = weft.compile(function, backend="eager")
    for _ in range(2):
        programs.LOG.clear()
        compare(expected[0], run(compiled, args, kwargs))
        assert same(expected[1], list(programs.LOG)), (expected[1], programs.LOG)
