"""What code finds that looks at its callers: the program's frames, also where those are replaced.
"""

from __future__ import annotations

import cProfile
import inspect
import math
import pstats
import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft

pytestmark = pytest.mark.usefixtures("fresh")

X = torch.ones(3)
Look = Callable[[], Any]


def names_and_lines() -> list[tuple[str, int]]:
    return [(f.function, f.lineno) for f in inspect.stack()[1:7]]


@weft.disable
def extracted() -> list[tuple[str | int | None, ...]]:
    return [(f.name, f.lineno, f.line) for f in traceback.extract_stack() if f.filename == __file__]


def modules() -> list[str]:
    return [sys._getframe(n).f_globals["__name__"] for n in range(1, 6)]


def warned() -> Any:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for level in range(2, 7):
            warnings.warn("looked", stacklevel=level)
    return [(w.filename, w.lineno) for w in told]


def inner(x: torch.Tensor, look: Look) -> tuple[torch.Tensor, list[Any]]:
    x = x + 1
    first = look()
    x = x * 2
    return x, [first,
               look()]


def middle(x: torch.Tensor, look: Look) -> tuple[torch.Tensor, list[Any]]:
    y, seen = inner(x.cos(), look)
    for _ in range(2):
        y, more = inner(y,
                        look)
        seen += more
    return y, seen


class Outer:
    def method(self, x: torch.Tensor, look: Look) -> tuple[torch.Tensor, list[Any]]:
        y, seen = middle(x.sin(), look)
        seen.append(look())
        return middle(y, look)[0], seen


@pytest.mark.parametrize("look", [names_and_lines, extracted, modules, warned])
def test_callers_are_the_programs_at_each_break(look: Look) -> None:
    expected, found = (
        function(X, look) for function in (
            Outer().method, weft.compile(Outer().method, backend="eager")))
    torch.testing.assert_close(found[0], expected[0])
    assert found[1] == expected[1]


def test_a_profile_names_the_functions_of_the_program() -> None:
    compiled = weft.compile(Outer().method, backend="eager")
    compiled(X, names_and_lines)
    with cProfile.Profile() as profile:
        compiled(X, names_and_lines)
    found: Any = pstats.Stats(profile)
    assert {"method", "middle", "inner"} <= {
        name for file, _, name in found.stats if file == __file__}
    assert all(name != "replacement" for _, _, name in found.stats)


def test_names_of_builtins_that_the_module_uses_for_something_else() -> None:
    """The replacement has the module's globals, where `list` may be anything."""
    names: dict[str, Any] = {"print_": lambda *args: None, "math": math}
    exec("def f(x, items):\n"
         "    it = iter(items)\n    a = next(it)\n    print_(a)\n"
         "    return x * a, list, it, {'a': {1: 2}}, slice_(1)\n"
         "list = next = tuple = 'mine'\nslice_ = slice", names)
    names["next"] = next
    compiled = weft.compile(names["f"], backend="eager")
    found = compiled(X, [2, 3])
    assert found[1] == "mine" and [*found[2]] == [3] and found[4] == slice(1)
