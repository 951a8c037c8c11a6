"""`check`: run a function eagerly and compiled on the same calls and compare all that shows.

Compared: results (values, types, tensors), exceptions, printed output, and what happened to
arguments that were changed. The number of graphs and breaks can be stated::

    check(lambda x: x + 1, (torch.ones(2),), graphs=1, breaks=0)
"""

from __future__ import annotations

import collections
import contextlib
import copy
import io
import sys
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from typing import Any

import numpy as np
import torch

import weft


@dataclass
class Outcome:
    """What one call did."""

    result: Any
    error: BaseException | None
    printed: str
    args: Any


def run(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Outcome:
    """Calls the function on copies of the arguments."""
    args, kwargs = copy.deepcopy((args, kwargs))
    torch.manual_seed(0)
    out = io.StringIO()
    result, error = None, None
    before = _thread_state()
    with contextlib.redirect_stdout(out):
        try:
            result = function(*args, **kwargs)
        except Exception as caught:
            error = caught
    assert _thread_state() == before
    return Outcome(result, error, out.getvalue(), (args, kwargs))


def _thread_state() -> tuple[Any, ...]:
    """What a call must leave as it was."""
    torch.autocast_increment_nesting()
    nesting = torch.autocast_decrement_nesting()
    return (sys.exc_info()[1], torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), nesting,
            torch.get_default_dtype(), sys.getrecursionlimit())


def same(a: Any, b: Any) -> bool:
    """Whether two results look the same to a program."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        return (a.dtype == b.dtype and a.shape == b.shape and a.requires_grad == b.requires_grad
                and torch.allclose(a.detach(), b.detach(), equal_nan=True))
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, (list, tuple, collections.deque)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if callable(a) and not is_dataclass(a):
        return True
    if hasattr(a, "__dict__") and (type(a).__eq__ is object.__eq__ or is_dataclass(a)):
        return same(vars(a), vars(b))
    return bool(a == b) or a != a


def check(
    function: Callable[..., Any], *calls: tuple[Any, ...], graphs: int | None = None,
    breaks: int | None = 0, kwargs: dict[str, Any] | None = None, repeat: int = 2,
    make: Callable[[], Callable[..., Any]] | None = None,
) -> Any:
    """Compares compiled with eager on each call, `repeat` times; gives the compiled function.

    `make` gives a fresh function with fresh state for each side, when the function keeps state.
    """
    assert all(type(args) is tuple for args in calls)  # a tensor would be taken apart
    weft.reset()
    eager = make() if make is not None else function
    compiled = weft.compile(make() if make is not None else function, backend="eager")
    named = kwargs or {}
    for _ in range(repeat):
        for args in calls:
            expected, actual = run(eager, args, named), run(compiled, args, named)
            compare(expected, actual)
    stats = weft.stats()
    if graphs is not None:
        assert stats["graphs"] == graphs, stats
    if breaks is not None:
        assert stats["graph_breaks"] == breaks, stats
    return compiled


def compare(expected: Outcome, actual: Outcome) -> None:
    """Asserts that two outcomes are the same."""
    if expected.error is not None or actual.error is not None:
        assert type(expected.error) is type(actual.error), (expected.error, actual.error)
        assert str(expected.error) == str(actual.error)
    assert same(expected.result, actual.result), (expected.result, actual.result)
    assert expected.printed == actual.printed
    assert same(expected.args, actual.args), (expected.args, actual.args)
