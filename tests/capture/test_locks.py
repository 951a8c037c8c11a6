"""Locks of `threading` that exist outside: held while the graph runs, let go after the effects."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

import weft
from tests.capture.harness import check
from weft.capture.library.standard import locks
from weft.capture.replacement import graph_calls

X = torch.ones(3)
LOCKS = [threading.Lock, threading.RLock]


@pytest.mark.parametrize("make", LOCKS)
def test_a_lock_as_context_broke_the_graph(make: Any) -> None:
    lock, cache = make(), {}

    def f(x: torch.Tensor) -> torch.Tensor:
        with lock:
            if "factor" not in cache:
                cache["factor"] = 3
        if lock.acquire(blocking=False):
            try:
                x = x * cache["factor"]
            finally:
                lock.release()
        return x + 1

    def call(x: torch.Tensor) -> torch.Tensor:
        cache.clear()
        return f(x)

    check(call, (X,), graphs=1)
    assert lock.acquire(blocking=False)


def test_a_break_under_a_lock() -> None:
    """`__exit__`, bound before the break, was compiled anew at each call."""
    lock = threading.Lock()

    def f(x: torch.Tensor) -> torch.Tensor:
        with lock:
            y = x + 1
            print("inside", lock.locked())
            y = y * 2
        return y

    check(f, (X,), graphs=2, breaks=1, repeat=3)
    assert weft.stats()["recompiles"] == 0
    assert not lock.locked()


def test_an_rlock_taken_twice_at_a_break() -> None:
    lock = threading.RLock()

    def f(x: torch.Tensor) -> torch.Tensor:
        with lock:
            with lock:
                print("inside")
                x = x + 1
            x = x * 2
        return x

    check(f, (X,), breaks=None)
    other: list[bool] = []
    thread = threading.Thread(target=lambda: other.append(lock.acquire(blocking=False)))
    thread.start()
    thread.join()
    assert other == [True]


def test_errors_under_a_lock() -> None:
    lock = threading.Lock()

    def f(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        with lock:
            y = x[i]
            if x.size(0) > 3:
                raise ValueError("too many")
        return y

    check(f, (X, torch.tensor([1])), (X, torch.tensor([7])), (torch.ones(4), torch.tensor([1])),
          breaks=None)
    assert not lock.locked()


def test_a_lock_held_by_another_thread_is_waited_for() -> None:
    lock = threading.Lock()
    counts = {"n": 0}

    def f(x: torch.Tensor) -> torch.Tensor:
        with lock:
            before = counts["n"]
            for _ in range(10):
                x = x + 1
            counts["n"] = before + 1
        return x

    weft.reset()
    compiled = weft.compile(f, backend="eager")

    def work() -> None:
        for _ in range(50):
            compiled(X)

    threads = [threading.Thread(target=work) for _ in range(4)]
    lock.acquire()
    for thread in threads:
        thread.start()
    assert counts["n"] == 0
    lock.release()
    for thread in threads:
        thread.join()
    assert counts["n"] == 200


@pytest.mark.parametrize("first", [True, False])
def test_an_operator_that_takes_the_same_lock(first: bool) -> None:
    """It runs in a graph that must not hold the lock then."""
    lock = threading.Lock()

    @torch.library.custom_op(f"weft_test_locks::scaled_{first}", mutates_args=())
    def scaled(x: torch.Tensor) -> torch.Tensor:
        with lock:
            return x * 2

    scaled.register_fake(torch.empty_like)

    def f(x: torch.Tensor) -> torch.Tensor:
        if first:
            x = scaled(x)
        with lock:
            x = x + 1
        return x if first else scaled(x)

    check(f, (X,), breaks=1)


def test_queues_and_semaphores_keep_their_own_locks() -> None:
    semaphore = threading.Semaphore(1)

    def f(x: torch.Tensor) -> torch.Tensor:
        with semaphore:
            x = x + 1
        return x * 2

    check(f, (X,), breaks=None)
    assert semaphore.acquire(blocking=False)


def _another_thread(monkeypatch: pytest.MonkeyPatch, change: Any) -> list[bool]:
    """Let another thread change something between the guards and the taking of a lock, while the
    list holds True."""
    armed = [False]

    def take(*arguments: Any) -> None:
        if armed[0]:
            armed[0] = False
            thread = threading.Thread(target=change)
            thread.start()
            thread.join()
        locks.take(*arguments)

    monkeypatch.setattr(graph_calls, "take", take)
    return armed


class Shared:
    """What two threads use, under its lock."""

    def __init__(self, lock: Any) -> None:
        self.lock = lock
        self.count = 1
        self.weight = torch.ones(3)
        self.options = {"scale": 2.0}
        self.items = [6, 5, 4, 3, 2, 1]
        self.factor = 3

    def double(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def _triple(self: Shared, x: torch.Tensor) -> torch.Tensor:
    return x * 3


CHANGES: dict[str, tuple[Any, Any]] = {
    "number": (lambda s, x: x + s.count, lambda s: setattr(s, "count", 5)),
    "tensor": (lambda s, x: x + s.weight, lambda s: setattr(s, "weight", torch.full((3,), 4.0))),
    "tensor of another size": (
        lambda s, x: x + s.weight, lambda s: setattr(s, "weight", torch.full((1,), 4.0))),
    "tensor's data": (lambda s, x: x + s.weight, lambda s: s.weight.fill_(4.0)),
    "dictionary": (lambda s, x: x * s.options["scale"], lambda s: s.options.update(scale=7.0)),
    "list": (lambda s, x: x * len(s.items), lambda s: s.items.append(3)),
    "popped": (lambda s, x: x * s.items.pop(), lambda s: s.items.append(9)),
    "new attribute": (lambda s, x: x * hasattr(s, "late"), lambda s: setattr(s, "late", 1)),
    "method": (lambda s, x: s.double(x), lambda s: vars(s).update(
        double=lambda x: _triple(s, x))),
    "written": (lambda s, x: setattr(s, "count", s.count + 1) or x * s.count,
                lambda s: setattr(s, "count", 20)),
    "closure": (lambda s, x: x * s.factor, lambda s: setattr(s, "factor", 11)),
}


@pytest.mark.parametrize("make", LOCKS)
@pytest.mark.parametrize("name", CHANGES)
def test_what_another_thread_changed_before_the_lock_was_taken(
        make: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use, change = CHANGES[name]

    def eager(x: torch.Tensor, shared: Shared) -> torch.Tensor:
        with shared.lock:
            y = use(shared, x)
        return y + 1

    def change_under_lock() -> None:
        with ours.lock:
            change(ours)

    weft.reset()
    ours, theirs = Shared(make()), Shared(make())
    armed = _another_thread(monkeypatch, change_under_lock)
    compiled = weft.compile(eager, backend="eager")
    for changes in (False, False, True, False, False):
        armed[0] = changes
        if changes:
            change(theirs)
        assert compiled(X, ours).tolist() == eager(X, theirs).tolist()
        assert not armed[0]
    assert ours.lock.acquire(False)
    assert vars(ours).keys() == vars(theirs).keys() and ours.items == theirs.items


def test_closure_that_another_thread_changed_before_the_lock_was_taken(
        monkeypatch: pytest.MonkeyPatch) -> None:
    lock, factor = threading.Lock(), 2

    def f(x: torch.Tensor, n: int) -> torch.Tensor:
        with lock:
            return x * factor + n

    def change() -> None:
        nonlocal factor
        with lock:
            factor = 5

    weft.reset()
    armed = _another_thread(monkeypatch, change)
    compiled = weft.compile(f, backend="eager")
    for n in range(3):
        assert compiled(X, n).tolist() == (X * 2 + n).tolist()
    armed[0] = True
    assert compiled(X, 3).tolist() == (X * 5 + 3).tolist()
    graphs = weft.stats()["graphs"]
    assert compiled(X, 3).tolist() == (X * 5 + 3).tolist()
    assert compiled(X, 4).tolist() == (X * 5 + 4).tolist()
    assert weft.stats()["graphs"] <= graphs + 1
