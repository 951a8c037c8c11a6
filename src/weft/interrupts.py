"""Signals that arrive while weft compiles: delayed until a point where nothing is half done.

Place in the pipeline: the bottom, beside `config`. Capture holds signals during a compilation;
stages and inlined calls are the points where they are handled.

Compiling runs torch's C++ code, parts of which end the process if a Python handler raises below
them (Ctrl-C, a time-out by SIGALRM), and changes tables that must not be left half filled. So the
program's handlers are called a little later, in its own thread, and what they raise is raised by
the call that was being compiled::

    with held():
        ...                    # SIGINT arrives: noted
        checkpoint()           # KeyboardInterrupt is raised here
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

Handler = Callable[[int, FrameType | None], Any]

_SIGNALS: Final = tuple(signal.valid_signals())

_held: dict[int, Handler] = {}
"""The program's handlers, while ours are in their place."""
_arrived: list[tuple[int, Handler]] = []


def _note(number: int, _frame: FrameType | None) -> None:
    _arrived.append((number, _held[number]))


@contextmanager
def held() -> Iterator[None]:
    """Delay signals until a checkpoint, at the latest until the end of the block.

    Only the main thread runs handlers; in others, and when nested, it does nothing.
    """
    if _held or threading.current_thread() is not threading.main_thread():
        yield
        return
    try:
        _hold()
        yield
    finally:
        _release()
        checkpoint()


def _hold() -> None:
    for number in _SIGNALS:
        handler = signal.getsignal(number)
        if callable(handler):
            _held[number] = handler
            signal.signal(number, _note)


def _release() -> None:
    """Restore the program's handlers, unless code inside the block set others.

    A restored handler may raise here; the others are restored all the same.
    """
    try:
        for number, handler in list(_held.items()):
            if signal.getsignal(number) is _note:
                signal.signal(number, handler)
            _held.pop(number, None)
    finally:
        if _held:
            _release()


def checkpoint() -> None:
    """Handle the signals that have arrived; raises what the program's handlers raise."""
    if _arrived and threading.current_thread() is threading.main_thread():
        while _arrived:
            number, handler = _arrived.pop(0)
            handler(number, sys._getframe(1))
