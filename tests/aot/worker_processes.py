"""A function's result for many items, each computed in a process that may die.

    for item, found in in_processes(work, items, jobs=4, limit_s=60):
        ...                     # work(item), or Died("killed by signal 11")

`work` runs in forked copies of this process, `jobs` at a time, which take one item after the other;
a copy that dies, or needs longer than `limit_s` for an item, costs that item alone. Items come back
in the order in which they are done. Fork before anything starts threads.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any, Final, NamedTuple, TypeVar

Item = TypeVar("Item")
FORK: Final = multiprocessing.get_context("fork")


class Died(NamedTuple):
    """What became of a process that did not answer."""

    reason: str


class Worker:
    """A process that computes `work` of what it is given."""

    def __init__(self, work: Callable[[Any], Any]) -> None:
        self.pipe, theirs = FORK.Pipe()
        self.process = FORK.Process(target=_serve, args=(work, theirs), daemon=False)
        self.process.start()
        theirs.close()
        self.item: Any = None
        self.since = 0.0

    def give(self, item: Any) -> None:
        """Begin with an item."""
        self.item, self.since = item, time.monotonic()
        self.pipe.send(item)

    def answer(self) -> Any:
        """What came back; the process has answered or died."""
        try:
            return self.pipe.recv()
        except (EOFError, ConnectionError):
            self.process.join()
            return Died(f"process ended with {self.process.exitcode}")

    def end(self) -> None:
        """Stop the process."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


def _serve(work: Callable[[Any], Any], pipe: Connection) -> None:
    while True:
        try:
            item = pipe.recv()
        except EOFError:
            return
        pipe.send(work(item))


def in_processes(
    work: Callable[[Item], Any], items: Iterable[Item], *, jobs: int, limit_s: float
) -> Iterator[tuple[Item, Any]]:
    """`(item, work(item))` of all items, `(item, Died)` where the process died or took too long."""
    left = iter(items)
    idle = [Worker(work) for _ in range(jobs)]
    busy: dict[Connection, Worker] = {}
    try:
        while True:
            for item in _next_of(left, len(idle)):
                worker = idle.pop()
                worker.give(item)
                busy[worker.pipe] = worker
            if not busy:
                return
            for worker, found in _answers(busy, limit_s):
                del busy[worker.pipe]
                if isinstance(found, Died):
                    worker.end()
                idle.append(Worker(work) if isinstance(found, Died) else worker)
                yield worker.item, found
    finally:
        for worker in [*idle, *busy.values()]:
            worker.end()


def _next_of(left: Iterator[Item], n: int) -> list[Item]:
    return [item for _, item in zip(range(n), left, strict=False)]


def _answers(busy: dict[Connection, Worker], limit_s: float) -> Iterator[tuple[Worker, Any]]:
    """Who is done, waiting for it; who took too long."""
    for pipe in wait(list(busy), timeout=1.0):
        worker = busy[pipe]  # type: ignore[index]  # what wait gives back is what it was given
        yield worker, worker.answer()
    for worker in list(busy.values()):
        if time.monotonic() - worker.since > limit_s:
            yield worker, Died(f"not done in {limit_s:.0f} s")
