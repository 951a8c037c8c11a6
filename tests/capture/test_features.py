"""Every feature of the language and its library in a small program (`features/`), against eager.

Each program is called five times with changing tensors and numbers; results, errors, printed output
and the state of `random` are compared. All but those in `BREAKS` are one graph for each variant.
"""

from __future__ import annotations

import contextlib
import io
import random
import types
import warnings
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch

import weft
from tests.capture.features import PROGRAMS, containers, library, objects

BREAKS = {
    "bytes_", "builtin_functions",  # bytearray
    "ctx_redirect",  # StringIO
    "exception_groups",
    "functools_methods",  # from 3.13 on: singledispatchmethod keeps methods in a weak dictionary
    "formatting",  # string.Template: re.sub with a function
    "generators_",  # one is left in a try block
    "operators",  # an operator that raises
    "inspect_signature",  # from 3.12 on: get_annotations evaluates strings
    "print_objects", "printing", "warn",
    "rand_instance", "rand_module", "rand_nonseeded",
    "typing_features",  # TypeVar and ForwardRef look at their callers' frames
}
"""Programs that graph breaks may cut."""

Outcome = tuple[Any, BaseException | None, str, float]


def fresh() -> None:
    """What the programs keep between calls is as it was."""
    objects.__dict__.pop("COUNT", None)
    library.__dict__.pop("COUNT", None)
    containers.FT.calls = 0
    containers.lru.cache_clear()


def run(function: Callable[..., Any], args: tuple[Any, ...]) -> Outcome:
    random.seed(3)
    out = io.StringIO()
    result, error = None, None
    with contextlib.redirect_stdout(out):
        try:
            result = function(*args)
        except Exception as caught:
            error = caught
    return result, error, out.getvalue(), random.random()


def calls() -> list[tuple[Any, ...]]:
    x = torch.arange(6.0).reshape(2, 3)
    return [(x, 1), (x, 1), (x * 2, 2), (x, 3), (torch.ones(2, 3), 4)]


def state(obj: Any) -> dict[str, Any]:
    """The attributes of an object, those in slots too."""
    found = dict(getattr(obj, "__dict__", {}))
    for base in type(obj).__mro__:
        for name in vars(base).get("__slots__", ()):
            if not name.startswith("__") and hasattr(obj, name):
                found[name] = getattr(obj, name)
    return found


def same(a: Any, b: Any) -> bool:
    """Whether two results look the same; their classes may be other ones of the same name."""
    if type(a) is not type(b):
        return type(a).__qualname__ == type(b).__qualname__ and same(state(a), state(b))
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, (list, tuple, deque)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(map(str, a)) == list(map(str, b)) and all(
            map(same, a.values(), b.values()))
    if isinstance(a, (types.FunctionType, type)):
        return a.__qualname__ == b.__qualname__
    if type(a).__eq__ is object.__eq__ or type(a).__module__.startswith("tests."):
        return same(state(a), state(b))
    return bool(a == b) or a != a


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.filterwarnings("ignore::weft.errors.RecompileLimitWarning")
def test_program(program: Callable[..., Any]) -> None:
    fresh()
    expected = [run(program, args) for args in calls()]
    fresh()
    weft.reset()
    compiled = weft.compile(program, backend="eager")
    for wanted, args in zip(expected, calls(), strict=True):
        found = run(compiled, args)
        assert type(wanted[1]) is type(found[1]) and str(wanted[1]) == str(found[1]), found[1]
        assert same(wanted[0], found[0]), (wanted[0], found[0])
        assert wanted[2:] == found[2:]
    stats = weft.stats()
    assert program.__name__ in BREAKS or (stats["graph_breaks"] == 0 and stats["graphs"]), stats


def test_warnings_are_given() -> None:
    def f(x: torch.Tensor) -> Any:
        warnings.warn("careful", UserWarning, stacklevel=1)
        return x + 1

    compiled = weft.compile(f, backend="eager")
    for _ in range(2):
        with pytest.warns(UserWarning, match="careful"):
            compiled(torch.ones(2))
