"""The cache that the user names with `config.cache_remote`: read on a miss, written behind.

Place in the pipeline: below `disk_cache.py`. Any address of `fsspec` will do (a folder, `s3://`,
`gs://`, `memory://`); `key` is under `<address>/<kind>/<its first two digits>/<key>`::

    fetch("cpp", key)              # the bytes of a file, or None
    send("cpp", [key], data)       # at once: a thread writes it
    flush(5.0)                     # wait until it is written

Nothing here stops a program: what fails or takes longer than `LONGEST` counts as missing, is told
once, and the address is left alone for a while. Threads are daemons: one that hangs in a library
ends with the process.
"""

from __future__ import annotations

import atexit
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from typing import Any, Final, TypeVar, final

from weft.config import config
from weft.diagnostics import events
from weft.errors import MissingDependency
from weft.folders import note_problem
from weft.interrupts import PATIENCE, checkpoint
from weft.runtime.sealing import BadSignature, NotReceived, received, reference, signed

KINDS: Final = ("backwards", "cpp", "entries", "triton")
"""What is worth sending: measurements of a machine are not."""

LONGEST: Final = 10.0
"""Seconds that a compilation waits for a file."""
PAUSE: Final = 60.0
"""Seconds after a failure in which the address is left alone."""
AT_EXIT: Final = 5.0
"""Seconds that the end of a process waits for what is not yet written."""
LARGEST: Final = 256 << 20
"""Bytes of the largest file that is read."""
_MOST_WAITING: Final = 512
"""Files that wait to be written: further ones are not kept there."""

_READERS: Final = 4
_NOT_USED: Final = "what is compiled is kept on this machine only"
_NOT_TRUSTED: Final = "it is not used, and compiled again"

T = TypeVar("T")


class _Threads:
    """Daemon threads that call what is in a queue."""

    def __init__(self, count: int, limit: int) -> None:
        self._calls: queue.Queue[tuple[Future[Any], Callable[[], Any]]] = queue.Queue(limit)
        for _ in range(count):
            threading.Thread(target=self._run, daemon=True, name="weft-remote").start()

    def _run(self) -> None:
        while True:
            future, call = self._calls.get()
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001  whoever waits for it sees it
                future.set_exception(error)
            self._calls.task_done()

    def submit(self, call: Callable[[], T]) -> Future[T] | None:
        """Call it in one of the threads; None if too much is waiting."""
        future: Future[T] = Future()
        try:
            self._calls.put_nowait((future, call))
        except queue.Full:
            return None
        return future

    def n_waiting(self) -> int:
        """Calls that have not ended."""
        return self._calls.unfinished_tasks


@final
class Pause:
    """A while after a failure in which something is not tried again."""

    def __init__(self) -> None:
        self._until = 0.0

    def begin(self) -> None:
        """It failed now."""
        self._until = time.monotonic() + PAUSE

    def lasts(self) -> bool:
        """Whether it has failed a moment ago."""
        return time.monotonic() < self._until


@final
class Remote:
    """One address, in one process."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._readers = _Threads(_READERS, 0)
        self._writer = _Threads(1, _MOST_WAITING)
        self._reading = Pause()
        self._writing = Pause()
        self._opening = threading.Lock()
        self._opened: tuple[Any, str] | None = None
        self._folders: set[str] = set()

    # -- reading ----------------------------------------------------------------------------------

    def fetch(self, kind: str, key: str) -> bytes | None:
        """The bytes of the file with that key, or None."""
        data = self._fetched(kind, key)
        events.count("remote_cache_misses" if data is None else "remote_cache_hits")
        return data

    def _fetched(self, kind: str, key: str) -> bytes | None:
        frame = self._frame(kind, key)
        if frame is None:
            return None
        try:
            first = received(kind, key, frame)
            if not first.refers_to:
                return first.data
            frame = self._frame(kind, first.refers_to)
            return None if frame is None else received(kind, first.refers_to, frame).data or None
        except NotReceived as problem:  # another process writes it, or it is of another version
            events.record("perf", text=f"{shown(self.address)}/{kind}/{key}: {problem}")
        except BadSignature as problem:
            note_problem(f"{shown(self.address)}/{kind}/{key}", problem, _NOT_TRUSTED, _SIGN)
        return None

    def _frame(self, kind: str, key: str) -> bytes | None:
        if self._reading.lasts():
            return None
        future = self._readers.submit(lambda: self._read(kind, key))
        assert future is not None
        end = time.monotonic() + LONGEST
        while time.monotonic() < end:
            try:
                return future.result(PATIENCE)
            except NotYet:
                if future.done():
                    break
                checkpoint()
            except Exception as error:  # noqa: BLE001  of any file system: the file is missing
                self._fail(self._reading, error)
                return None
        self._fail(self._reading, TimeoutError(f"no answer within {LONGEST:.0f} s"))
        return None

    def _read(self, kind: str, key: str) -> bytes | None:
        system, root = self._system()
        try:
            frame: bytes = system.cat_file(_path(root, kind, key), start=0, end=LARGEST + 1)
        except FileNotFoundError:
            return None
        return frame if len(frame) <= LARGEST else None

    # -- writing ----------------------------------------------------------------------------------

    def send(self, kind: str, keys: Sequence[str], data: bytes) -> None:
        """Write the bytes of a file under its keys, behind the program's back."""
        if not self._writing.lasts():
            self._writer.submit(lambda: self._write(kind, keys, data))

    def _write(self, kind: str, keys: Sequence[str], data: bytes) -> None:
        if self._writing.lasts():
            return
        try:
            first, *others = keys
            self._put(kind, first, signed(kind, first, data))
            for key in others:
                self._put(kind, key, reference(kind, key, first))
        except Exception as error:  # noqa: BLE001  of any file system; some can only be read
            self._fail(self._writing, error)

    def _put(self, kind: str, key: str, frame: bytes) -> None:
        """Write a file so that it appears as a whole, where the file system can do that."""
        system, root = self._system()
        path = _path(root, kind, key)
        folder = path.rpartition("/")[0]
        if folder not in self._folders:
            system.makedirs(folder, exist_ok=True)
            self._folders.add(folder)
        with system.transaction, system.open(path, "wb") as stream:
            stream.write(frame)

    def flush(self, seconds: float) -> bool:
        """Wait until everything is written; whether it is."""
        end = time.monotonic() + seconds
        while not self._writing.lasts() and self._writer.n_waiting() and time.monotonic() < end:
            time.sleep(PATIENCE / 10)
        return not self._writer.n_waiting()

    # -- the address ------------------------------------------------------------------------------

    def _system(self) -> tuple[Any, str]:
        """The file system, which is this object's own, and the folder in it."""
        with self._opening:
            if self._opened is None:
                self._opened = _open(self.address)
            return self._opened

    def _fail(self, pause: Pause, error: Exception) -> None:
        pause.begin()
        events.count("remote_cache_failures")
        note_problem(f"the cache at {shown(self.address)} cannot be "
                     f"{'read' if pause is self._reading else 'written'}", error, _NOT_USED,
                     _CORRECT)


def shown(address: str) -> str:
    """The address without a user's name and password."""
    return re.sub("//[^/@]*@", "//…@", address)


_CORRECT: Final = "correct WEFT_CACHE_REMOTE, or leave it empty"
_SIGN: Final = "use the same WEFT_CACHE_KEY everywhere"


def _open(address: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise MissingDependency(
            "fsspec", "reach a cache elsewhere", "pip install fsspec") from error
    system, root = url_to_fs(address, skip_instance_cache=True)
    return system, root.rstrip("/")


def _path(root: str, kind: str, key: str) -> str:
    return f"{root}/{kind}/{key[:2]}/{key}"


# -- the address of the settings -------------------------------------------------------------------


_remotes: Final[dict[tuple[str, int], Remote]] = {}
"""By address and process: a forked child has none of its parent's threads."""
_making: Final = threading.Lock()


def remote(kind: str) -> Remote | None:
    """The cache elsewhere, if the user has named one and files of the kind are kept there."""
    address = config.cache_remote
    if not address or kind not in KINDS:
        return None
    place = address, os.getpid()
    known = _remotes.get(place)
    if known is None:
        with _making:
            known = _remotes.get(place) or _remotes.setdefault(place, Remote(address))
    return known


def fetch(kind: str, key: str) -> bytes | None:
    """The bytes of a file, or None."""
    there = remote(kind)
    return None if there is None else there.fetch(kind, key)


def send(kind: str, keys: Sequence[str], data: bytes) -> None:
    """Write a file there, soon."""
    there = remote(kind)
    if there is not None:
        there.send(kind, keys, data)


def flush(seconds: float = AT_EXIT) -> bool:
    """Wait until everything is written that this process has sent; whether it is."""
    own = [known for (_, process), known in _remotes.items() if process == os.getpid()]
    return all(known.flush(seconds) for known in own)


atexit.register(flush)
