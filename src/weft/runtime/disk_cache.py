"""Content-addressed files on disk, shared by all processes of a user.

Place in the pipeline: below every compiler of `runtime/`; keys are hashes of everything a result
depends on.

    cache = DiskCache("cpp")
    cache.put(key, shared_object)
    cache.get(key)     # the bytes, or None

A file is its content followed by its keys and a checksum of both (`sealing.py`; the dynamic loader
ignores them). What is missing is looked for at `config.cache_remote` (`remote_cache.py`), and what
is put goes there, too. A file appears under its name by an atomic rename, so a reader sees all of
it or nothing; what is damaged, swapped, no file, or of another user is removed and counts as
missing. When the folder outgrows `config.cache_size_mb` the files used longest ago go first.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final, final

from weft import folders
from weft.config import config
from weft.diagnostics import events
from weft.runtime import remote_cache
from weft.runtime.file_locks import Lock
from weft.runtime.sealing import parts, sealed, unsealed

_TOUCH_INTERVAL: Final = 3600.0  # seconds between two updates of a file's time of use
_TRIM_TO: Final = 0.8  # of the size limit
_PUTS_BETWEEN_TRIMS: Final = 64
_DICE: Final = random.Random()
"""A generator of our own: the program's must stay in the state that eager would leave."""
_KEY: Final = re.compile("[0-9a-f]{64}")
_TEMPORARY: Final = ".tmp-"
_JUST_BEGUN: Final = 10.0
"""Seconds within which a process has locked its folder."""
_STAMP: Final = ".trimmed"
"""Its time says when the cache was trimmed."""
_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""How files are opened: no links are followed, and no pipe is waited for."""


@final
class DiskCache:
    """The files of one kind ("cpp", "triton", …): a mapping from key (a SHA-256 in hex) to bytes.

    is_valid: what content must satisfy beyond its checksum.
    """

    def __init__(self, kind: str, is_valid: Callable[[bytes], bool] | None = None) -> None:
        self.is_valid = is_valid
        self.directory = folders.cache_root() / kind

    def path(self, key: str) -> Path:
        """Where the file of `key` is, or would be."""
        return self.directory / key[:2] / key

    def get(self, key: str) -> bytes | None:
        """The content stored under `key`, here or elsewhere, or None."""
        content = self.appeared(key)
        if content is None and config.cache_remote:
            content = self._fetched(key)
        events.count("disk_cache_misses" if content is None else "disk_cache_hits")
        return content

    def _fetched(self, key: str) -> bytes | None:
        """The content stored elsewhere, which is stored here, too."""
        data = remote_cache.fetch(self.directory.name, key)
        arrived = None if data is None else parts(data)
        return arrived[0] if arrived is not None and self._accept(arrived[1], arrived[0]) else None

    def accept(self, data: bytes) -> bool:
        """Store the bytes of a file of another cache; whether they are one."""
        arrived = parts(data)
        return arrived is not None and self._accept(arrived[1], arrived[0])

    def _accept(self, keys: list[str], content: bytes) -> bool:
        if self.is_valid is not None and not self.is_valid(content):
            return False
        self._put_here(keys, content)
        return True

    def put(self, key: str, content: bytes) -> None:
        """Store `content`; the file is complete when its name appears."""
        self.put_all([key], content)

    def put_all(self, keys: Iterable[str], content: bytes) -> None:
        """Store the same `content` under each key: as one file, if the file system has links.

        Where it cannot be written it is not kept, and the user is told.
        """
        known = list(keys)
        self._put_here(known, content)
        if config.cache_remote:
            remote_cache.send(self.directory.name, known, sealed(content, known))

    def _put_here(self, keys: list[str], content: bytes) -> None:
        try:
            self._write(keys, content)
        except OSError as error:
            folders.note_problem("the cache folder cannot be written", error, folders.NOT_KEPT)

    def _write(self, keys: list[str], content: bytes) -> None:
        data = sealed(content, keys)
        folders.folder_inside(self.directory)
        first, *others = keys
        file = self._write_one(first, data)
        self._trim_sometimes()
        for key in others:
            self._link(file, key, data)

    def _write_one(self, key: str, data: bytes) -> Path:
        file = self.path(key)
        folder = folders.folder_inside(file.parent)
        handle, temporary = tempfile.mkstemp(dir=folder, prefix=_TEMPORARY)
        try:
            with os.fdopen(handle, "wb") as stream:
                os.fchmod(handle, stat.S_IRUSR | stat.S_IWUSR)
                stream.write(data)
            _rename(temporary, file)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        return file

    def _link(self, file: Path, key: str, data: bytes) -> None:
        name = self.path(key)
        temporary = folders.folder_inside(name.parent) / f"{_TEMPORARY}{os.getpid()}-{key}"
        try:
            os.link(file, temporary)
        except OSError:
            self._write_one(key, data)
        else:
            _rename(str(temporary), name)

    def appeared(self, key: str) -> bytes | None:
        """`get` for a file that was missing a moment ago; not counted as another look-up."""
        file = self.path(key)
        data = _data(file)
        if data is None:
            return None
        content = unsealed(data, key)
        if content is None or (self.is_valid is not None and not self.is_valid(content)):
            folders.remove(file)
            return None
        _touch(file)
        return content

    def lock(self, key: str, is_cancelled: Callable[[], bool] = bool) -> Lock:
        """Held while the content of `key` is made: another process waits, then finds it."""
        return Lock(self.directory / "locks" / key[:2], is_cancelled)

    def _trim_sometimes(self) -> None:
        """Trim the cache once an hour, and at one put in many: chosen at random, because processes
        are often short."""
        if _DICE.randrange(_PUTS_BETWEEN_TRIMS) == 0 or _is_time_to_trim(self.directory.parent):
            trim()


def _is_time_to_trim(root: Path) -> bool:
    stamp = root / _STAMP
    with contextlib.suppress(OSError):
        if not folders.is_stale(stamp.lstat()):
            return False
    with contextlib.suppress(OSError):
        folders.remove(stamp)
        stamp.touch()
    return True


def _data(file: Path) -> bytes | None:
    """The bytes of a file of ours; whatever else is there is removed."""
    try:
        problem, content = _opened(file)
    except FileNotFoundError:
        return None
    except OSError:  # a link, a socket, a file without permissions
        folders.remove(file)
        return None
    if content is None:
        folders.remove(file)
    if problem:
        folders.note_distrust(file, problem)
    return content


def _opened(file: Path) -> tuple[str, bytes | None]:
    """Why it is not trusted, or its bytes; neither if it is no file or cannot be read."""
    handle = os.open(file, _OPEN)
    try:
        return _content_of(handle)
    finally:
        os.close(handle)


def _content_of(handle: int) -> tuple[str, bytes | None]:
    status = os.fstat(handle)
    problem = folders.distrust(status)
    if not problem and stat.S_ISREG(status.st_mode):
        with contextlib.suppress(OSError), open(handle, "rb", closefd=False) as stream:
            return "", stream.read()
    return problem, None


def _rename(temporary: str, file: Path) -> None:
    try:
        os.replace(temporary, file)
    except IsADirectoryError:
        folders.remove(file)
        os.replace(temporary, file)


def _touch(file: Path) -> None:
    with contextlib.suppress(OSError):
        if folders.is_stale(file.stat(), _TOUCH_INTERVAL):
            os.utime(file)


def files() -> list[Path]:
    """Every cached file of every kind, and nothing else in the directory."""
    paths = folders.cache_root().glob("*/??/*")
    return [f for f in paths if _KEY.fullmatch(f.name) and f.name[:2] == f.parent.name]


def _entries() -> list[tuple[float, int, Path]]:
    """(time of use, size, file) of every cached file of every kind, and of reports and traces;
    names of one file share its size."""
    entries = []
    for file in (*files(), *_written_for_people()):
        with contextlib.suppress(OSError):
            status = file.lstat()
            entries.append((status.st_mtime, status.st_size // status.st_nlink, file))
    return entries


def _written_for_people() -> Iterator[Path]:
    """Reports and traces, which take room too."""
    for kind in (folders.REPORTS, folders.TRACES):
        for place, _, names in os.walk(folders.cache_root() / kind):
            yield from (Path(place, name) for name in names)


def total_size() -> int:
    """Bytes of everything that counts for the limit."""
    return sum(size for _, size, _ in _entries())


def problem_of(file: Path) -> str:
    """Why a cached file is not used; empty if it is as it was written. It stays as it is."""
    try:
        problem, data = _opened(file)
    except OSError as error:
        return f"cannot be opened: {error.strerror}"
    if data is None:
        return problem or "is no file"
    return "" if unsealed(data, file.name) is not None else "is damaged, or under another key"


def data_of(file: Path) -> bytes | None:
    """The bytes of a cached file, which stays as it is; None if it is not trusted."""
    try:
        return _opened(file)[1]
    except OSError:
        return None


def trim() -> None:
    """Delete the files used longest ago until the cache is well below its limit, and what killed
    processes left behind."""
    remove_left_behind()
    limit = config.cache_size_mb << 20
    entries = sorted(_entries())
    total = sum(size for _, size, _ in entries)
    if total <= limit:
        return
    for _, size, file in entries:
        if total <= limit * _TRIM_TO:
            break
        with contextlib.suppress(OSError):
            file.unlink()
            total -= size


def remove_left_behind(after: float = folders.STALE_SECONDS) -> int:
    """Remove temporary files of killed processes, and their folders, that nobody has touched for so
    many seconds; returns how many."""
    left = [*_temporary_files(after), *folders.left_behind(after)]
    for path in left:
        folders.remove(path)
    return len(left)


def _temporary_files(after: float) -> list[Path]:
    leftovers = []
    for file in folders.cache_root().glob(f"*/??/{_TEMPORARY}*"):
        with contextlib.suppress(OSError):
            if folders.is_stale(file.lstat(), after):
                leftovers.append(file)
    return leftovers


def clear() -> int:
    """Delete every cached file, and what belongs to them; returns how many files were cached."""
    cached = files()
    for file in cached:
        with contextlib.suppress(OSError):
            file.unlink()
    for file in (*_temporary_files(0), *folders.cache_root().glob("*/locks/??")):
        folders.remove(file)
    remove_left_behind(_JUST_BEGUN)
    return len(cached)
