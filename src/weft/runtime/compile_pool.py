"""Compiles many C++ sources at once: in parallel, each distinct one once, through the disk cache.

Place in the pipeline: between `codegen/cpp/` (texts) and `launcher.py` (callables). The threads
only wait for compiler processes, so they cost nothing while Python goes on working::

    started = submit(texts)                        # starts compiling at once
    files = [one.file() for one in started]        # each has a function called one.symbol

Several sources become one translation unit, each in its own namespace: compiled alone, a small
kernel spends half of its time on the compiler's start, the headers and the linker. The cache does
not depend on which sources share a unit: each source's key names the file.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Event, Lock
from typing import Final, final

from weft.compiling import when_interrupted
from weft.config import config
from weft.folders import note_problem, tell_problems
from weft.interrupts import wait_for
from weft.runtime.cpp_build import Toolchain, is_loadable, load, toolchain
from weft.runtime.disk_cache import DiskCache

ENTRY: Final = "weft_kernel"
"""The name of the exported function in a source; in the object it is `Compiling.symbol`."""
FEWEST: Final = 2
MOST: Final = 16
"""Sources in one translation unit, where there are that many."""


@final
@dataclass(frozen=True)
class _Unit:
    """Sources that are compiled together: their files, once they exist, and whether to stop."""

    files: Future[dict[str, Path]]
    cancelled: Event


_running: Final[dict[str, _Unit]] = {}
_lock: Final = Lock()


@final
@dataclass(frozen=True)
class Compiling:
    """A source that was passed to the compiler."""

    key: str
    _source: str
    _unit: _Unit

    @property
    def symbol(self) -> str:
        """The name of its function."""
        return _symbol(self.key)

    def file(self) -> Path:
        """The shared object with that function, once it exists; raises CompilationFailed."""
        try:
            return wait_for(self._unit.files)[self.key]
        except BaseException:
            self._unit.cancelled.set()  # in the case that the waiting was interrupted
            raise
        finally:
            tell_problems()

    def library(self) -> ctypes.CDLL:
        """The loaded object, which has that function.

        What does not load is removed and compiled again; if that does not help (another process
        clears the cache, a folder from which nothing is executed), in this process's own folder.
        """
        try:
            return self._loaded(self.file())
        except _LOAD_ERRORS:
            disk = _disk()
        disk.forget(self.key)
        try:
            return self._loaded(self._again(disk))
        except _LOAD_ERRORS as error:
            note_problem("a kernel of the cache folder does not load", error)
            tell_problems()
            return self._loaded(self._again(disk.of_process()))

    def _again(self, disk: DiskCache) -> str:
        """The name of a new file; not that of the old one, which the loader would remember."""
        file = _build(toolchain(), {self.key: self._source}, disk, bool)[self.key]
        return f"{file.parent}/./{file.name}"

    def _loaded(self, file: str | Path) -> ctypes.CDLL:
        library = load(file)
        getattr(library, self.symbol)  # or it is not what was compiled
        return library


_LOAD_ERRORS: Final = (OSError, AttributeError)


def _disk() -> DiskCache:
    return DiskCache("cpp", is_loadable)


@cache
def _pool(jobs: int, process: int) -> ThreadPoolExecutor:
    """The thread pool. A forked child has none of its parent's threads, so each `process` has its
    own."""
    return ThreadPoolExecutor(jobs, thread_name_prefix="weft-compile")


def submit(sources: Sequence[str]) -> list[Compiling]:
    """Start compiling the `sources` that are not yet compiled; raises CompilerNotFound."""
    tools, disk = toolchain(), _disk()
    place = f"{os.getpid()}:{disk.directory}/"
    keys = {source: tools.key(source) for source in sources}
    jobs = config.compile_jobs or os.cpu_count() or 1
    with _lock:
        new = {key: text for text, key in keys.items() if not _is_known(place + key, key)}
        for unit in _units(new, jobs):
            stop = Event()
            files = _pool(jobs, os.getpid()).submit(
                _build, tools, unit, disk, stop.is_set)
            _running.update((place + key, _Unit(files, stop)) for key in unit)
        return [Compiling(keys[source], source, _running[place + keys[source]])
                for source in sources]


def _is_known(place: str, key: str) -> bool:
    """Whether the source is being compiled, or its object is in the cache."""
    unit = _running.get(place)
    if unit is None or unit.cancelled.is_set():
        return False
    files = unit.files
    return not files.done() or (files.exception() is None and files.result()[key].exists())


def _cancel_all() -> None:
    """End the compilers that run: what they compile is compiled again when it is needed."""
    for unit in list(_running.values()):
        if not unit.files.done():
            unit.cancelled.set()


when_interrupted(_cancel_all)


def _units(sources: Mapping[str, str], jobs: int) -> list[dict[str, str]]:
    """The sources, by key, divided into units of about equal length: as many as can be compiled at
    once, or a multiple of that. Equal programs are divided in the same way."""
    rounds = -(-len(sources) // (MOST * jobs))
    count = min(rounds * jobs, -(-len(sources) // FEWEST))
    units: list[dict[str, str]] = [{} for _ in range(count)]
    lengths = [0] * len(units)
    for key, text in sorted(sources.items(), key=lambda item: (-len(item[1]), item[0])):
        shortest = lengths.index(min(lengths))
        units[shortest][key] = text
        lengths[shortest] += len(text)
    return units


def _build(
    tools: Toolchain, sources: Mapping[str, str], disk: DiskCache, is_cancelled: Callable[[], bool]
) -> dict[str, Path]:
    """The sources' objects from the cache; missing ones are compiled together, under the unit's
    lock, so that processes do not race."""
    found = {key: disk.path(key) for key in sources}
    if None in found.values():
        with disk.lock(min(sources), is_cancelled):
            found |= {k: disk.appeared(k) for k, file in found.items() if file is None}
            missing = {k: sources[k] for k, file in found.items() if file is None}
            if missing:
                found |= disk.put_all(
                    missing, tools.compile(_translation_unit(missing), is_cancelled))
    return {key: file for key, file in found.items() if file is not None}


def _translation_unit(sources: Mapping[str, str]) -> str:
    """The sources, by key, in their own namespaces, after the headers of all of them."""
    headers: set[str] = set()
    parts = []
    for key, text in sources.items():
        lines = text.split("\n")
        headers.update(line for line in lines if _is_include(line))
        own = "\n".join(line for line in lines if not _is_include(line))
        parts += [f"#define {ENTRY} {_symbol(key)}", f"namespace n{key} {{", own, "}",
                  f"#undef {ENTRY}"]
    return "\n".join([*sorted(headers), *parts, ""])


def _is_include(line: str) -> bool:
    return line.startswith("#include")


def _symbol(key: str) -> str:
    return f"{ENTRY}_{key[:32]}"
