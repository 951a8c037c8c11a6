"""One file with what a cache holds, to be taken to another machine of the same kind.

Place in the pipeline: beside `disk_cache.py`, for `weft cache save` and `weft cache load`::

    save(Path("warm.zip"), files())
    load(Path("warm.zip"))          # raises BadArchive, and then nothing of it was stored

An archive is a ZIP file with a member `<kind>/<first two digits>/<key>` for each file of the cache,
signed as `sealing.py` says. Nothing is extracted: names are only compared with that form, and what
is in a member is stored by the cache under the keys that its checksum covers. All members are
checked before the first is stored, and read no further than they say to be long.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, final

from weft.config import config
from weft.errors import WeftError
from weft.runtime.disk_cache import DiskCache, data_of
from weft.runtime.remote_cache import KINDS, LARGEST
from weft.runtime.sealing import SECRET, BadSignature, NotReceived, parts, received, signed

_MEMBER: Final = re.compile(f"({'|'.join(KINDS)})/([0-9a-f]{{2}})/(\\2[0-9a-f]{{62}})")
_UNREADABLE: Final = (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError,
                      ValueError, OSError, OverflowError)
"""What reading a spoiled ZIP file raises."""


@final
class BadArchive(WeftError):
    """A file is no archive of a cache, was changed, or is not signed; nothing of it was stored."""

    def __init__(self, file: Path, problem: object, do: str) -> None:
        super().__init__(f"{file} is not loaded: {problem}", do=do)


# -- save ------------------------------------------------------------------------------------------


def save(archive: Path, files: Sequence[Path]) -> int:
    """Write those files of the cache that can be used elsewhere; returns how many keys they have.

    The archive appears as a whole, and only its owner can read it.
    """
    handle, temporary = tempfile.mkstemp(dir=archive.absolute().parent, prefix=f".{archive.name}-")
    try:
        with os.fdopen(handle, "wb") as stream, zipfile.ZipFile(
                stream, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as target:
            count = _write(target, files)
        os.replace(temporary, archive)
    except BaseException:
        os.unlink(temporary)
        raise
    return count


def _write(target: zipfile.ZipFile, files: Sequence[Path]) -> int:
    written: set[str] = set()
    for file in files:
        kind, key = file.parent.parent.name, file.name
        data = data_of(file) if kind in KINDS and f"{kind}/{key}" not in written else None
        both = None if data is None else parts(data)
        if data is not None and both is not None and key in both[1]:
            target.writestr(f"{kind}/{key[:2]}/{key}", signed(kind, key, data))
            written |= {f"{kind}/{other}" for other in both[1]}
    return len(written)


# -- load ------------------------------------------------------------------------------------------


def load(archive: Path) -> int:
    """Store what is in an archive; returns how many files. Raises BadArchive."""
    try:
        with _opened(archive) as source:
            _check_sizes(archive, source)
            for _ in _members(archive, source):  # all of them, before the first is stored
                pass
            return sum(DiskCache(kind).accept(data) for kind, data in _members(archive, source))
    except _UNREADABLE as error:
        raise BadArchive(archive, error, _AGAIN) from error


_AGAIN: Final = "make it again with `weft cache save`"


@contextmanager
def _opened(archive: Path) -> Iterator[zipfile.ZipFile]:
    handle = os.open(archive, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # no pipe is waited for
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise BadArchive(archive, "it is no file", _AGAIN)
    with os.fdopen(handle, "rb") as stream, zipfile.ZipFile(stream) as source:
        yield source


def _check_sizes(archive: Path, source: zipfile.ZipFile) -> None:
    members = source.infolist()
    for member in members:
        if not _MEMBER.fullmatch(member.filename):
            raise BadArchive(archive, f"it has a member {member.filename!r}", _AGAIN)
        if member.file_size > LARGEST:
            raise BadArchive(archive, f"{member.filename} has {member.file_size} bytes", _AGAIN)
    total = sum(member.file_size for member in members)
    if total > config.cache_size_mb << 20:
        raise BadArchive(archive, f"it holds {total >> 20} MiB, the cache at most "
                         f"{config.cache_size_mb}", "raise WEFT_CACHE_SIZE_MB")


def _members(archive: Path, source: zipfile.ZipFile) -> Iterator[tuple[str, bytes]]:
    """Kind and bytes of each file."""
    for member in source.infolist():
        kind, _, key = member.filename.split("/")
        with source.open(member) as stream:
            frame = stream.read(member.file_size + 1)
        try:
            file = received(kind, key, frame)
            if file.refers_to:
                raise NotReceived("it refers to another file")
            yield kind, file.data
        except NotReceived as problem:
            raise BadArchive(archive, f"{member.filename}: {problem}", _AGAIN) from None
        except BadSignature as problem:
            raise BadArchive(archive, f"{member.filename}: {problem}",
                             f"load and save with the same {SECRET}") from None
