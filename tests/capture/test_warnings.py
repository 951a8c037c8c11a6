"""Warnings of captured code: given once a call, for the right line, without a graph break."""

from __future__ import annotations

import contextlib
import io
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import weft

X = torch.ones(3)
Given = list[tuple[str, str, str, int]]


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Iterator[Given]:
    """What is shown; pytest records in a list, which would break the graphs."""
    weft.reset()
    found: Given = []

    def show(message: Any) -> None:
        found.append((str(message.message), message.category.__name__, message.filename,
                      message.lineno))

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "_showwarnmsg_impl", show)
        yield found
    weft.reset()


def helper(x: torch.Tensor, level: int) -> torch.Tensor:
    warnings.warn(f"level {level}", DeprecationWarning, stacklevel=level)
    return x * 2


def warns(x: torch.Tensor, log: list[str]) -> torch.Tensor:
    log.append("before")
    y = helper(x, 1) + helper(x, stacklevel())
    log.append("after")
    warnings.warn("last")
    return y.cos()


def stacklevel() -> int:
    return 2


def program_of_warnings(given: Given, f: Callable[..., Any], *args: Any) -> Given:
    given.clear()
    f(*args)
    return list(given)


def test_warnings_wait_for_the_end_of_one_graph(given: Given) -> None:
    wanted = program_of_warnings(given, warns, X, [])
    compiled = weft.compile(warns, backend="eager")
    for _ in range(3):
        log: list[str] = []
        assert program_of_warnings(given, compiled, X, log) == wanted
        assert log == ["before", "after"]
    assert weft.stats()["graph_breaks"] == 0 and weft.stats()["graphs"] == 1


def test_the_default_filter_shows_a_line_once(given: Given) -> None:
    warnings.simplefilter("default")
    globals().pop("__warningregistry__", None)
    compiled = weft.compile(warns, backend="eager")
    assert [len(program_of_warnings(given, compiled, X, [])) for _ in range(3)] == [3, 0, 0]


def test_functions_of_torch_that_warn_stay_in_the_graph(given: Given) -> None:
    image, grid = torch.randn(1, 2, 4, 4), torch.rand(1, 3, 3, 2)

    def f(image: torch.Tensor, grid: torch.Tensor) -> torch.Tensor:
        return F.grid_sample(image, grid) + 1

    wanted = program_of_warnings(given, f, image, grid)
    assert program_of_warnings(given, weft.compile(f, fullgraph=True), image, grid) == wanted != []


def test_errors_of_filters_are_raised_where_eager_raises_them(given: Given) -> None:
    def f(x: torch.Tensor, log: list[str]) -> torch.Tensor:
        try:
            y = helper(x, 1)
        except DeprecationWarning:
            log.append("caught")
            y = x - 1
        warns(x, log)
        return y

    compiled = weft.compile(f, backend="eager")
    for action, category in (("error", Warning), ("always", Warning), ("error", UserWarning)):
        warnings.simplefilter(action, category)  # type: ignore[arg-type]
        logs: list[list[str]] = [[], []]
        seen = []
        for function, log in zip((f, compiled), logs, strict=True):
            try:
                seen.append(function(X, log).tolist())
            except Warning as error:
                seen.append(repr(error))
        assert seen[0] == seen[1] and logs[0] == logs[1], action


def test_recorded_warnings_are_in_the_list(given: Given) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, int]:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            y = helper(x, 1)
            n = len(found)
        return y, n

    compiled = weft.compile(f, backend="eager")
    assert [compiled(X)[1] for _ in range(2)] == [1, 1]


def test_filters_that_the_program_sets_for_a_while_do_not_break_the_graph(given: Given) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = helper(x, 1)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "level", DeprecationWarning)
            y = helper(y, 2)
        before = warnings.filters
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.warn("hidden")
            y = y * len(warnings.filters)
        assert warnings.filters is before
        return helper(y, 2) + 1

    wanted = program_of_warnings(given, f, X)
    compiled = weft.compile(f, backend="eager", fullgraph=True)
    for _ in range(2):
        assert program_of_warnings(given, compiled, X) == wanted and len(wanted) == 2
        assert torch.equal(compiled(X), f(X))


def test_warnings_that_the_programs_filters_show_are_given_under_them(given: Given) -> None:
    def f(x: torch.Tensor, action: str) -> list[Any]:
        with warnings.catch_warnings():
            warnings.simplefilter(action, UserWarning)  # type: ignore[arg-type]
            try:
                warnings.warn("now")
            except UserWarning as error:
                return [x * 3, str(error)]
        return [x * 2]

    compiled = weft.compile(f, backend="eager")
    for action in ("error", "always", "ignore", "error"):
        seen = []
        for function in (f, compiled):
            found = program_of_warnings(given, lambda g=function: seen.append(g(X, action)))
            seen.append([str(found)])
        assert str(seen[:2]) == str(seen[2:]), action


def test_operators_warn_under_the_filters_that_the_program_sets(given: Given) -> None:
    def f(x: torch.Tensor, hidden: bool) -> torch.Tensor:
        if not hidden:
            return torch.range(0, 2) + x
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            y = torch.range(0, 2)
        return y + x

    compiled = weft.compile(f, backend="eager")
    for _ in range(2):
        assert program_of_warnings(given, compiled, X, True) == []
    assert program_of_warnings(given, compiled, X, False) != []
    assert weft.stats()["graph_breaks"] == 0


def test_warnings_for_a_stderr_that_the_program_has_set(
    given: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They came after it was the usual one again."""
    def f(x: torch.Tensor) -> tuple[torch.Tensor, str]:
        out = io.StringIO()
        with contextlib.redirect_stderr(out):
            warnings.warn("for the text", stacklevel=1)
        return x + 1, out.getvalue()

    monkeypatch.setattr(warnings, "_showwarnmsg_impl",
                        lambda message: print(message.message, file=sys.stderr))
    assert [g(torch.ones(2))[1] for g in (f, weft.compile(f, backend="eager"))] == [
        "for the text\n"] * 2


@pytest.mark.parametrize("category", [UserWarning, DeprecationWarning, FutureWarning])
@pytest.mark.parametrize("action", ["always", "ignore", "error", "default", "once"])
def test_list_that_records_warnings_inside(
        given: Given, action: Any, category: type[Warning]) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, list[tuple[str, str, int]]]:
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter(action, category)
            y = x + 1
            warnings.warn(f"first of {x.dim()}", category)
            y = helper(y, 1)
        shown = [(str(w.message), w.category.__name__, w.lineno) for w in found]
        return y * len(found), shown

    def outcome(function: Callable[..., Any]) -> Any:
        try:
            result, shown = function(X)
        except Warning as error:
            return repr(error)
        return result.tolist(), shown

    compiled = weft.compile(f, backend="eager")
    assert outcome(compiled) == outcome(f) == outcome(compiled)
    if action == "always" and category is DeprecationWarning:
        assert weft.stats()["graph_breaks"] == 0
