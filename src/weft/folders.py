"""The folders of weft's own files: this user's alone, and never an obstacle to compiling.

Place in the pipeline: the bottom, beside `config`; below the disk cache, reports and traces.

Code is loaded from these folders, so they must belong to this user and be writable by nobody else,
whatever the umask. Where the settings name no such folder (no home, a read-only or full disk, a
folder of another user), a temporary one of this process takes its place, with one warning::

    cache_root()        # ~/.cache/weft, or a folder of this process
    process_folder()    # /tmp/weft-process-k3v8x1q_: removed at exit

A process holds a lock on its folder as long as it lives, so folders of killed processes are known.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, final

from weft.config import config
from weft.errors import CacheWarning, warn

ONLY_OURS: Final = 0o700
_WRITABLE_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH

_PREFIX: Final = "weft-process-"
_MARKER: Final = ".weft"
"""A file that tells our folders from others whose names begin like that."""
_PLACES: Final = ("/dev/shm", "/var/tmp")
"""Where temporary folders may be, beside the system's own choice."""
_ROOM: Final = 16 << 20
"""Bytes that should be free there."""
REPORTS: Final = "reports"
"""The folder of failure reports in the cache folder."""
TRACES: Final = "trace"
"""The folder of traces in the cache folder."""
STALE_SECONDS: Final = 3600.0
"""A temporary file or folder that is older, and that no process holds, was left behind."""


@final
class NotTrusted(PermissionError):
    """A file or folder that others may have written."""


def distrust(status: os.stat_result) -> str:
    """Why a file or folder with this status cannot be trusted; empty if it can."""
    if status.st_uid != os.geteuid():
        return f"belongs to user {status.st_uid}"
    if status.st_mode & _WRITABLE_BY_OTHERS:
        return f"can be written by others (mode {stat.S_IMODE(status.st_mode):03o})"
    return ""


def private_folder(path: Path, *, close: bool = True) -> Path:
    """The folder, made if there is none. Others can read there only if they could before, and not
    if `close`.

    Raises NotTrusted if others own it or may have written there, and OSError.
    """
    try:
        status = os.stat(path)
    except FileNotFoundError:
        _make(path)
        return path
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "it is no folder", str(path))
    problem = distrust(status) or (
        "is a link of another user" if os.lstat(path).st_uid != os.geteuid() else "")
    if problem:
        raise NotTrusted(errno.EPERM, f"it {problem}", str(path))
    if close and status.st_mode & ~ONLY_OURS & 0o777:
        with contextlib.suppress(OSError):  # a read-only file system
            os.chmod(path, status.st_mode & ONLY_OURS)
    return path


def _make(path: Path) -> None:
    """Make the folder and what is missing above it."""
    missing = [path, *(p for p in path.parents if not p.exists())]
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another process was faster
            folder.mkdir(ONLY_OURS)
            os.chmod(folder, ONLY_OURS)  # the umask may have taken bits away


def folder_inside(path: Path) -> Path:
    """`private_folder` below a folder that is private already: what is in its way is removed."""
    try:
        if not stat.S_ISLNK(os.lstat(path).st_mode):
            return private_folder(path)
    except FileNotFoundError:
        return private_folder(path)
    except (NotADirectoryError, NotTrusted):
        pass
    remove(path)
    return private_folder(path)


def remove(path: Path) -> None:
    """Remove whatever is there, if that is possible."""
    with contextlib.suppress(OSError):
        if stat.S_ISDIR(os.lstat(path).st_mode):
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)


# -- the cache ------------------------------------------------------------------------------------

_problems: list[str] = []
_has_told = False


def cache_root() -> Path:
    """The folder that the settings name, or one of this process where that cannot be used."""
    tell_problems()
    if not config.disk_cache:
        return process_cache()
    try:
        # A folder that the user names may be there for more than this.
        return private_folder(config.cache_path(), close=not config.cache_dir)
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        note_problem("the cache folder cannot be used", error, KEPT_HERE)
        tell_problems()
        return process_cache()


def process_cache() -> Path:
    """The cache of this process alone."""
    return private_folder(process_folder() / "cache")


def note_problem(what: str, error: Exception, consequence: str, do: str = "") -> None:
    """Note that the cache cannot be used; `tell_problems` warns, in the program's own thread."""
    _problems.append(f"{what}: {error}\n  {consequence}\n  do: {do}" if do else
                     f"{what}: {error}\n  {consequence}\n  {_DO}")


def note_distrust(file: Path, problem: str) -> None:
    """Note that a file is not used; `tell_problems` warns."""
    _problems.append(f"{file} {problem}: it is not used, and compiled again\n  {_DO}")


KEPT_HERE: Final = "what is compiled is kept in a temporary folder of this process"
NOT_KEPT: Final = "what is compiled is not kept for other processes"
_DO: Final = "do: name a folder that only you can write with WEFT_CACHE_DIR"


def tell_problems() -> None:
    """Warn of what was noted: once in a process, whatever follows from it."""
    global _has_told
    if _problems:
        message = _problems[0]
        _problems.clear()
        if not _has_told:
            _has_told = True
            warn(CacheWarning, message)


# -- this process's folder ------------------------------------------------------------------------

_folders: dict[int, Path] = {}
"""By process: its folder. A forked child makes its own."""


def process_folder() -> Path:
    """The folder of this process's temporary files; it is removed at exit."""
    known = _folders.get(os.getpid())
    if known is not None and known.exists():
        return known
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_place()))
    os.chmod(folder, ONLY_OURS)
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)  # until the process ends
    with contextlib.suppress(OSError):  # no locks there: age alone tells
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    (folder / _MARKER).touch()
    if known is not None:  # somebody has removed it
        _folders[os.getpid()] = folder
    kept = _folders.setdefault(os.getpid(), folder)  # another thread may have been faster
    if kept is not folder:
        shutil.rmtree(folder, ignore_errors=True)
    return kept


def _remove_process_folder() -> None:
    """Remove it, but for reports that the user was told of: these go when they are stale."""
    folder = _folders.pop(os.getpid(), None)
    if folder is None:
        return
    if not (folder / "cache" / REPORTS).exists():
        shutil.rmtree(folder, ignore_errors=True)
        return
    for path in (*folder.iterdir(), *(folder / "cache").iterdir()):
        if path.name not in ("cache", REPORTS, _MARKER):
            remove(path)


atexit.register(_remove_process_folder)


def _places() -> Iterator[str]:
    with contextlib.suppress(OSError):  # there is none
        yield tempfile.gettempdir()
    yield from _PLACES


def _place() -> str:
    """A place for temporary files with room, from which code can be loaded."""
    places = [place for place in _places() if os.access(place, os.W_OK | os.X_OK)]
    return next(filter(_is_good, places), places[0] if places else tempfile.gettempdir())


def _is_good(place: str) -> bool:
    try:
        status = os.statvfs(place)
    except OSError:
        return False
    has_room = status.f_bavail * status.f_frsize >= _ROOM
    return has_room and not status.f_flag & os.ST_NOEXEC


def left_behind(after: float = STALE_SECONDS) -> list[Path]:
    """The folders of processes that were killed, not touched for so many seconds."""
    stale = []
    for place in {*_places()}:
        with contextlib.suppress(OSError), os.scandir(place) as entries:
            stale += [Path(e.path) for e in entries
                      if e.name.startswith(_PREFIX) and _is_left_behind(Path(e.path), after)]
    return stale


def _is_left_behind(folder: Path, after: float) -> bool:
    with contextlib.suppress(OSError):
        status = os.lstat(folder)
        if distrust(status) or not stat.S_ISDIR(status.st_mode) or not is_stale(status, after):
            return False
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return (folder / _MARKER).exists() or not any(folder.iterdir())
        finally:
            os.close(handle)
    return False


def is_stale(status: os.stat_result, after: float = STALE_SECONDS) -> bool:
    """Whether a temporary file or folder has not been written for so many seconds; one of a time
    that has not come yet is stale, too: the clock went backwards."""
    return abs(time.time() - status.st_mtime) > after


def keep_newest(files: list[Path], number: int, days: float) -> list[Path]:
    """Remove files and folders that are too old or too many; returns what is left, oldest first."""
    ages = []
    for file in files:
        with contextlib.suppress(OSError):
            ages.append((file.lstat().st_mtime, file))
    ages.sort()
    oldest = time.time() - days * 86400
    kept = [file for when, file in ages[max(0, len(ages) - number):] if when >= oldest]
    for _, file in ages:
        if file not in kept:
            remove(file)
    return kept
