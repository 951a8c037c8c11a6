"""Tensors across graph breaks live no longer than in eager."""

from __future__ import annotations

import tempfile
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

import weft

SEEN: list[weakref.ref[torch.Tensor]] = []


@weft.disable
def alive(x):
    """Notes a tensor; gives how many of those noted exist."""
    SEEN.append(weakref.ref(x))
    return sum(ref() is not None for ref in SEEN)


def run(function, compiled):
    counts = []
    for call in (function, compiled, compiled):
        SEEN.clear()
        counts.append(call(torch.ones(1000)))
    return counts


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_a_chain_of_tensors_across_breaks(backend):
    def f(x):
        counts = []
        for _ in range(6):
            x = x * 2
            counts.append(alive(x))
        return counts

    weft.reset()
    eager, first, second = run(f, weft.compile(f, backend=backend))
    assert eager == second == [1] * 6
    assert first == second or backend == "inductor"  # compilation itself may hold some for a while


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_straight_code_across_breaks(backend):
    def f(x):
        y = x.sin() + 1
        a = alive(y)
        z = y.cos() + 2
        b = alive(z)
        w = z.exp() + 3
        c = alive(w)
        return a, b, c, w.sum()

    weft.reset()
    eager, first, second = run(f, weft.compile(f, backend=backend))
    assert eager[:3] == (1, 2, 3)  # y and z are variables
    assert second[0] <= 1 and second[1] <= 2 and second[2] <= 3
    assert first[:3] == second[:3] or backend == "inductor"


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_inner_frames_let_go(backend):
    def inner(x):
        x = x * 2
        a = alive(x)
        x = x + 1
        b = alive(x)
        return x, (a, b)

    def f(x):
        counts = []
        for _ in range(3):
            x, pair = inner(x)
            counts.append(pair)
        return counts

    weft.reset()
    eager, first, second = run(f, weft.compile(f, backend=backend))
    assert len(second) == len(eager)
    assert all(n <= m for mine, theirs in zip(second, eager, strict=True)
               for n, m in zip(mine, theirs, strict=True)), (eager, second)


def test_results_are_not_kept():
    def f(x):
        y = x * 2
        print(end="")
        return y + 1

    compiled = weft.compile(f, backend="eager")
    argument = torch.ones(3)
    refs = [weakref.ref(compiled(argument)) for _ in range(3)]
    refs.append(weakref.ref(argument))
    del argument
    assert [ref() for ref in refs] == [None] * 4


def test_errors_do_not_keep_tensors():
    def f(x):
        y = x * 2
        print(end="")
        if y.shape[0] == 3:
            raise ValueError("three")
        return y

    compiled = weft.compile(f, backend="eager")
    refs = []
    for _ in range(3):
        argument = torch.ones(3)
        refs.append(weakref.ref(argument))
        with pytest.raises(ValueError):
            compiled(argument)
        del argument
    assert [ref() for ref in refs] == [None] * 3


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_objects_that_hold_something_live_as_long_as_in_eager():
    """A directory disappears with the last reference to its object."""

    def f(x):
        directory = tempfile.TemporaryDirectory()
        path = Path(directory.name)
        print(end="")
        y = x * 2
        print(end="")
        return y, path.exists()

    compiled = weft.compile(f, backend="eager")
    assert f(torch.ones(2))[1]
    assert compiled(torch.ones(2))[1]
    assert compiled(torch.ones(2))[1]


def test_a_weak_set_forgets_what_was_made_for_it() -> None:
    class Made:
        pass

    def f(x: Any, kept: Any) -> Any:
        kept.add(Made())
        return x + 1

    kept: Any = weakref.WeakSet()
    weft.compile(f, backend="eager")(torch.ones(1), kept)
    assert len(kept) == 0
