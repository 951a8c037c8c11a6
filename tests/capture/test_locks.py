"""Locks of `threading` that exist outside: held while the graph runs, let go after the effects."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

import weft
from tests.capture.harness import check

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
