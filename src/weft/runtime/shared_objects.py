"""Shared objects: checked, and loaded into this process exactly as they were checked.

Place in the pipeline: below the C++ compiler and `compile_pool.py`, beside the disk cache::

    is_loadable(content)            # a whole ELF object of this machine
    library = load(content, key)    # a ctypes.CDLL

The loader gets a copy in memory that nobody else can write: reading a page of a file that is
replaced, cut or overwritten between its check and its loading, or later, ends the process. Where
there is no memory with a name (old systems, no /proc), the copy is a file in this process's own
folder, and goes when it is loaded.

The copy bears the name of its key in /proc/<pid>/maps and in profiles; with `config.trace` it is a
file in the trace folder, which debuggers and profilers can read later, too.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import itertools
import os
import struct
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from typing import Final, final

from weft.config import config
from weft.diagnostics import trace_files
from weft.folders import process_folder, remove


@final
class DoesNotLoad(Exception):
    """The dynamic loader refused the object, or it lacks the function that it should have."""


@final
class SharedObject:
    """The content of a shared object, which was checked; it is loaded when it is first needed."""

    def __init__(self, content: bytes, name: str) -> None:
        self._content = content
        self._name = name
        self._library: ctypes.CDLL | None = None

    def library(self) -> ctypes.CDLL:
        """The loaded object. Raises DoesNotLoad, and OSError where no copy can be written."""
        content = self._content  # read first: another thread may have loaded and dropped it
        if self._library is None:
            self._library = load(content, self._name)
            self._content = b""
        return self._library


# -- checking -------------------------------------------------------------------------------------


def is_loadable(content: bytes) -> bool:
    """Whether the bytes are a whole shared object for this machine, which may be mapped.

    The dynamic loader checks less: reading a page of a file that was cut ends the process.
    """
    if len(content) < _HEADER.size:
        return False
    mark, kind, machine, at, size, number = _HEADER.unpack_from(content)
    if mark != _ELF_MARK or kind != _SHARED or machine != _elf_machine() or (
            size != _SEGMENT.size or at + size * number > len(content)):
        return False
    segments = [_SEGMENT.unpack_from(content, at + size * i) for i in range(number)]
    return any(kind == _LOADED for kind, *_ in segments) and all(
        offset + length <= len(content) for _, offset, length in segments)


_HEADER: Final = struct.Struct("=6s10xHH4x8xQ14xHH")
"""Of ELF files of 64 bits: mark, type, machine, place of the program headers, their size and
number."""
_SEGMENT: Final = struct.Struct("=I4xQ16xQ16x")
"""A program header: type, place and length in the file."""
_ELF_MARK: Final = b"\x7fELF\x02" + (b"\x01" if sys.byteorder == "little" else b"\x02")
_SHARED: Final = 3  # ET_DYN
_LOADED: Final = 1  # PT_LOAD


@cache
def _elf_machine() -> int:
    """The machine's number in the header of this process's program."""
    with open("/proc/self/exe", "rb") as program:
        return int(_HEADER.unpack(program.read(_HEADER.size))[2])


# -- loading --------------------------------------------------------------------------------------

_loaded: Final[dict[bytes, ctypes.CDLL]] = {}
"""By digest of the content: what this process has loaded, for the rest of its life."""


def load(content: bytes, name: str) -> ctypes.CDLL:
    """The object with that content; `name` is for readers of maps and profiles.

    Raises DoesNotLoad, and OSError where no copy can be written.
    """
    digest = hashlib.sha256(content).digest()
    known = _loaded.get(digest)
    if known is not None:
        return known
    _share_openmp()
    return _loaded.setdefault(digest, _load_copy(content, name))


def _load_copy(content: bytes, name: str) -> ctypes.CDLL:
    """Load a copy from the first place that takes one and from which code can be loaded."""
    problem: Exception = OSError("there is no place for a copy")
    for place in _places():
        try:
            with place(content, name) as file:
                return _opened(file)
        except (OSError, DoesNotLoad) as error:
            problem = error
    raise problem


def _opened(file: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(file)
    except OSError as error:
        raise DoesNotLoad(str(error)) from None


Place = Callable[[bytes, str], AbstractContextManager[str]]
"""A copy of the content as long as the context lasts: the name of a file."""


def _places() -> Iterator[Place]:
    if config.trace:
        yield _in_trace_folder
    if hasattr(os, "memfd_create"):  # Python may be built for older systems
        yield _in_memory
    yield _in_own_folder


_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
_HIGH: Final = 700
"""A handle that hardly any process uses: its name stays with the loaded object, and a debugger that
opens this name of its own should find nothing."""
_count: Final = itertools.count()


@contextmanager
def _in_memory(content: bytes, name: str) -> Iterator[str]:
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
    with open(os.memfd_create(f"weft-{name[:32]}", flags), "wb") as stream:
        stream.write(content)
        stream.flush()
        fcntl.fcntl(stream.fileno(), fcntl.F_ADD_SEALS, _SEALS)
        handle = _high(stream.fileno())
    try:
        yield f"/proc/self/fd{_spelling(next(_count))}{handle}"
    finally:
        os.close(handle)


def _high(handle: int) -> int:
    try:
        return fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, _HIGH)
    except OSError:  # fewer handles are allowed
        return fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, 0)


def _spelling(number: int) -> str:
    """A spelling of a slash that no other number has: of a path that the loader has seen, it would
    return the object that it has loaded."""
    return "".join("/." if digit == "1" else "/" for digit in f"{number:b}") + "/"


@contextmanager
def _in_own_folder(content: bytes, name: str) -> Iterator[str]:
    folder = Path(tempfile.mkdtemp(prefix="object-", dir=process_folder()))
    try:
        yield _written(folder / f"{name}.so", content)
    finally:
        remove(folder)


@contextmanager
def _in_trace_folder(content: bytes, name: str) -> Iterator[str]:
    yield _written(trace_files.own_folder() / f"{name}.so", content)


def _written(file: Path, content: bytes) -> str:
    """The name of a new file, which no other process writes."""
    file.unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):
        file.write_bytes(content)
    return str(file)


@cache
def _share_openmp() -> None:
    """Make an OpenMP runtime visible to kernels: torch's if it has one, else the system's."""
    if not hasattr(ctypes.CDLL(None), "GOMP_parallel"):
        ctypes.CDLL(_loaded_openmp() or "libgomp.so.1", mode=ctypes.RTLD_GLOBAL)


def _loaded_openmp() -> str | None:
    """The file of an OpenMP runtime that this process has mapped."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        file = line.rpartition(" ")[2]
        if any(name in Path(file).name for name in ("libgomp", "libiomp5", "libomp.")):
            return file
    return None
