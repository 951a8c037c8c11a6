"""Content-addressed files on disk, shared by all processes of a user.

Place in the pipeline: below every compiler of `runtime/`; keys are hashes of everything a result
depends on.

    cache = DiskCache("cpp")
    cache.put(key, shared_object)
    cache.get(key)     # the bytes, or None

A file is its content followed by its keys and a checksum of both (which the dynamic loader
ignores). It appears under its name by an atomic rename, so a reader sees all of it or nothing; what
is damaged, swapped, no file, or of another user is removed and counts as missing. When the cache
outgrows `config.cache_size_mb` the files used longest ago go first.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import re
import stat
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, final

from weft import folders
from weft.config import config
from weft.diagnostics import events
from weft.runtime.file_locks import Lock

_KEY_SIZE: Final = 32
_COUNT_SIZE: Final = 4
_DIGEST_SIZE: Final = 32
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
        """The content stored under `key`, or None."""
        content = self.appeared(key)
        events.count("disk_cache_misses" if content is None else "disk_cache_hits")
        return content

    def put(self, key: str, content: bytes) -> None:
        """Store `content`; the file is complete when its name appears."""
        self.put_all([key], content)

    def put_all(self, keys: Iterable[str], content: bytes) -> None:
        """Store the same `content` under each key: as one file, if the file system has links.

        Where it cannot be written it is not kept, and the user is told.
        """
        try:
            self._write(list(keys), content)
        except OSError as error:
            folders.note_problem("the cache folder cannot be written", error, folders.NOT_KEPT)

    def _write(self, keys: list[str], content: bytes) -> None:
        data = _sealed(content, keys)
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
        content = _unsealed(data, key)
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


def _sealed(content: bytes, keys: list[str]) -> bytes:
    """The bytes of a file: the content, the keys, their number, and a checksum of all of it."""
    named = b"".join(map(bytes.fromhex, keys)) + len(keys).to_bytes(_COUNT_SIZE, "little")
    digest = hashlib.sha256(content)
    digest.update(named)
    return b"".join((content, named, digest.digest()))


def _unsealed(data: bytes, key: str) -> bytes | None:
    """The content, or None if the bytes are not those that were written under `key`."""
    sealed, digest = memoryview(data)[:-_DIGEST_SIZE], data[-_DIGEST_SIZE:]
    if hashlib.sha256(sealed).digest() != digest:
        return None
    count = int.from_bytes(sealed[-_COUNT_SIZE:], "little")
    named = sealed[len(sealed) - _COUNT_SIZE - count * _KEY_SIZE:-_COUNT_SIZE]
    keys = {bytes(named[at:at + _KEY_SIZE]) for at in range(0, len(named), _KEY_SIZE)}
    return bytes(sealed[:len(sealed) - _COUNT_SIZE - len(named)]) if bytes.fromhex(
        key) in keys else None


def _data(file: Path) -> bytes | None:
    """The bytes of a file of ours; whatever else is there is removed."""
    try:
        handle = os.open(file, _OPEN)
    except FileNotFoundError:
        return None
    except OSError:  # a link, a socket, a file without permissions
        folders.remove(file)
        return None
    try:
        problem, content = _content_of(handle)
    finally:
        os.close(handle)
    if content is None:
        folders.remove(file)
    if problem:
        folders.note_distrust(file, problem)
    return content


def _content_of(handle: int) -> tuple[str, bytes | None]:
    """Why it is not trusted, or its bytes; neither if it is no file or cannot be read."""
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
        if time.time() - file.stat().st_mtime > _TOUCH_INTERVAL:
            os.utime(file)


def files() -> list[Path]:
    """Every cached file of every kind, and nothing else in the directory."""
    paths = folders.cache_root().glob("*/??/*")
    return [f for f in paths if _KEY.fullmatch(f.name) and f.name[:2] == f.parent.name]


def _entries() -> list[tuple[float, int, Path]]:
    """(time of use, size, file) of every cached file of every kind; names of one file share its
    size."""
    entries = []
    for file in files():
        with contextlib.suppress(OSError):
            status = file.stat()
            entries.append((status.st_mtime, status.st_size // status.st_nlink, file))
    return entries


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
    entries = _entries()
    for _, _, file in entries:
        with contextlib.suppress(OSError):
            file.unlink()
    for file in (*_temporary_files(0), *folders.cache_root().glob("*/locks/??")):
        folders.remove(file)
    remove_left_behind(_JUST_BEGUN)
    return len(entries)
