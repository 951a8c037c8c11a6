"""One compilation at a time, undisturbed: the lock held from the miss of a frame to its entry.

Place in the pipeline: around everything that `FrameCompiler` does::

    with compiling():
        ...             # the only compilation of this process; signals wait

Settings of one compilation (`config.patch`), the garbage collector and the recursion limit belong
to the process, so two compilations at once would disturb each other. Calls of compiled code take no
lock.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from weft import interrupts

_RECURSION: Final = 20_000
"""Python's limit while capturing: an interpreted call takes about ten interpreter frames."""

_limits: list[int] = []
"""The program's own recursion limits, while a higher one is set."""

_FORK_PATIENCE: Final = 30.0
"""Seconds that a fork waits for another thread's compilation at most."""

_lock = threading.RLock()


_to_stop: list[Callable[[], None]] = []

_held_for_fork: list[bool] = []
_forked: list[bool] = []


def is_forked() -> bool:
    """Whether this process is the fork of another one, whose connections it must not use."""
    return bool(_forked)


def _before_fork() -> None:
    """Wait for another thread's compilation: the child would find it half done for ever."""
    acquired = False
    try:
        acquired = _lock.acquire(timeout=_FORK_PATIENCE)
    finally:  # a signal's handler may raise
        _held_for_fork.append(acquired)


def _after_fork() -> None:
    if _held_for_fork.pop():
        _lock.release()


def _in_child() -> None:
    """Reset the lock: the other threads do not exist in the child."""
    global _lock
    _held_for_fork.clear()
    _lock = threading.RLock()
    _forked.append(True)


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)


@contextmanager
def compiling() -> Iterator[None]:
    """Hold the lock; what another thread has just compiled is visible inside."""
    with interrupts.held():
        lock = _lock
        while not lock.acquire(timeout=interrupts.PATIENCE):
            interrupts.checkpoint()
        try:
            with _no_collection():
                yield
        except Exception:
            raise
        except BaseException:
            for stop in _to_stop:
                stop()
            raise
        finally:
            lock.release()


def when_interrupted(stop: Callable[[], None]) -> None:
    """Call `stop` whenever a compilation is interrupted: it ends work in the background."""
    _to_stop.append(stop)


def recursion_limit() -> int:
    """The program's own limit, even while it is raised here."""
    return _limits[0] if _limits else sys.getrecursionlimit()


@contextmanager
def _no_collection() -> Iterator[None]:
    """Turn garbage collection off: captures make many objects that live on, and collecting a large
    heap costs more than all the rest."""
    was_on = gc.isenabled()
    gc.disable()
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _RECURSION))
    _limits.append(limit)
    try:
        yield
    finally:
        _limits.pop()
        sys.setrecursionlimit(limit)
        if was_on:
            gc.enable()
