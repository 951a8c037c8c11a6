"""Locks between processes: held while something is compiled, and never waited for without end.

Place in the pipeline: below `disk_cache.py`::

    with Lock(folder / "3f"):
        ...           # other processes wait, for `LONGEST` seconds at most

A process that waited in vain (the other one is stopped, or debugged) goes on without the lock:
files appear by atomic renames, so the worst is work that is done twice. That also holds where there
are no locks (some network file systems). `filelock`, which torch needs, is not used: some of its
versions that torch accepts follow links and truncate what they point to, and it imports asyncio.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, final

from weft import folders
from weft.interrupts import PATIENCE

LONGEST: Final = 30.0
"""Seconds after which a process goes on without the lock."""

_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_open: Final[set[int]] = set()
"""Handles of locks: a forked child closes its copies, which would hold them, too."""

_given_up: Final[set[Path]] = set()
"""Locks that were waited for in vain: once is enough for a process."""


def _in_child() -> None:
    while _open:
        with contextlib.suppress(OSError):
            os.close(_open.pop())


os.register_at_fork(after_in_child=_in_child)


@final
class Lock:
    """A lock that is a file; a context manager.

    is_cancelled: ends the waiting early.
    """

    def __init__(self, file: Path, is_cancelled: Callable[[], bool] = bool) -> None:
        self._file = file
        self._is_cancelled = is_cancelled
        self._handle: int | None = None

    def __enter__(self) -> Lock:
        with contextlib.suppress(OSError):  # nothing to lock: go on without
            self._handle = self._opened()
            _open.add(self._handle)
            self._wait(self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._handle in _open:  # not in a forked child
            _open.discard(self._handle)
            os.close(self._handle)
        self._handle = None

    def _opened(self) -> int:
        folder = folders.folder_inside(folders.folder_inside(self._file.parent.parent) / "locks")
        file = folder / self._file.name
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISREG(os.lstat(file).st_mode):
                folders.remove(file)
        return os.open(file, _FLAGS, stat.S_IRUSR | stat.S_IWUSR)

    def _wait(self, handle: int) -> None:
        end = time.monotonic() + (0 if self._file in _given_up else LONGEST)
        while not _locked(handle) and not self._is_cancelled():
            if time.monotonic() >= end:
                _given_up.add(self._file)
                return
            time.sleep(PATIENCE)


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
