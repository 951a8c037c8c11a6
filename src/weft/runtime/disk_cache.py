"""Content-addressed files on disk, shared by all processes of a user.

Place in the pipeline: below every compiler of `runtime/`; keys are hashes of everything a result
depends on.

    cache = DiskCache("cpp")
    cache.put(key, shared_object)
    cache.get(key)     # the bytes, or None
    cache.path(key)    # the file itself (for dlopen), or None

A file is its content followed by a checksum (which the dynamic loader ignores). It appears under
its name by an atomic rename, so a reader sees all of it or nothing; a file whose checksum is wrong
is deleted and counts as missing. When the cache outgrows `config.cache_size_mb` the files used
longest ago go first.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import random
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final, final

from weft.config import config
from weft.diagnostics import events

_DIGEST_SIZE: Final = 32
_TOUCH_INTERVAL: Final = 3600.0  # seconds between two updates of a file's time of use
_TRIM_TO: Final = 0.8  # of the size limit
_PUTS_BETWEEN_TRIMS: Final = 64
_DICE: Final = random.Random()
"""A generator of our own: the program's must stay in the state that eager would leave."""
_KEY: Final = re.compile("[0-9a-f]{64}")


@cache
def _private_directory() -> Path:
    """The directory for this process's files if `config.disk_cache` is off; removed at exit."""
    holder = tempfile.TemporaryDirectory(prefix="weft-", ignore_cleanup_errors=True)
    _HOLDERS.append(holder)
    return Path(holder.name)


_HOLDERS: Final[list[tempfile.TemporaryDirectory[str]]] = []


def root_directory() -> Path:
    """The directory of all kinds of cached files."""
    return config.cache_path() if config.disk_cache else _private_directory()


@final
class DiskCache:
    """The files of one kind ("cpp", "triton", …): a mapping from key (a SHA-256 in hex) to bytes.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.directory = root_directory() / kind

    def _file(self, key: str) -> Path:
        return self.directory / key[:2] / key

    def get(self, key: str) -> bytes | None:
        """The content stored under `key`, or None."""
        return self._read(key)

    def path(self, key: str) -> Path | None:
        """The file stored under `key` (content verified, checksum appended), or None."""
        return None if self._read(key) is None else self._file(key)

    def put(self, key: str, content: bytes) -> Path:
        """Store `content`; the file is complete when its name appears."""
        file = self._file(key)
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=".tmp-")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(content)
                stream.write(hashlib.sha256(content).digest())
            os.chmod(temporary, 0o644)
            os.replace(temporary, file)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
        self._trim_sometimes()
        return file

    def put_all(self, keys: Iterable[str], content: bytes) -> dict[str, Path]:
        """Store the same `content` under each key: as one file, if the file system has links."""
        first, *others = keys
        file = self.put(first, content)
        return {first: file, **{key: self._link(file, key, content) for key in others}}

    def _link(self, file: Path, key: str, content: bytes) -> Path:
        name = self._file(key)
        name.parent.mkdir(parents=True, exist_ok=True)
        temporary = name.with_name(f".tmp-{os.getpid()}-{key}")
        try:
            os.link(file, temporary)
        except OSError:
            return self.put(key, content)
        os.replace(temporary, name)
        return name

    def appeared(self, key: str) -> Path | None:
        """`path` for a file that was missing a moment ago; not counted as another look-up."""
        return None if self._verify(key) is None else self._file(key)

    @contextmanager
    def lock(self, key: str, is_cancelled: Callable[[], bool] = bool) -> Iterator[None]:
        """Held while the content of `key` is made: another process waits, then finds it."""
        directory = self.directory / "locks"
        directory.mkdir(parents=True, exist_ok=True)
        with open(directory / key[:2], "w") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield

    def _read(self, key: str) -> bytes | None:
        """The content, looked up and counted."""
        content = self._verify(key)
        events.count("disk_cache_misses" if content is None else "disk_cache_hits")
        return content

    def _verify(self, key: str) -> bytes | None:
        file = self._file(key)
        try:
            data = file.read_bytes()
        except OSError:
            return None
        content, digest = data[:-_DIGEST_SIZE], data[-_DIGEST_SIZE:]
        if hashlib.sha256(content).digest() != digest:
            with contextlib.suppress(OSError):
                file.unlink()
            return None
        _touch(file)
        return content

    def _trim_sometimes(self) -> None:
        """One put in many trims the cache: chosen at random, because processes are often short."""
        if _DICE.randrange(_PUTS_BETWEEN_TRIMS) == 0:
            trim()


def _touch(file: Path) -> None:
    with contextlib.suppress(OSError):
        if time.time() - file.stat().st_mtime > _TOUCH_INTERVAL:
            os.utime(file)


def files() -> list[Path]:
    """Every cached file of every kind, and nothing else in the directory."""
    found = root_directory().glob("*/??/*")
    return [f for f in found if _KEY.fullmatch(f.name) and f.name[:2] == f.parent.name]


def _entries() -> list[tuple[float, int, Path]]:
    """(time of use, size, file) of every cached file of every kind; names of one file share its
    size."""
    found = []
    for file in files():
        with contextlib.suppress(OSError):
            status = file.stat()
            found.append((status.st_mtime, status.st_size // status.st_nlink, file))
    return found


def trim() -> None:
    """Delete the files used longest ago until the cache is well below its limit."""
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


def clear() -> int:
    """Delete every cached file; returns how many."""
    entries = _entries()
    for _, _, file in entries:
        with contextlib.suppress(OSError):
            file.unlink()
    return len(entries)
