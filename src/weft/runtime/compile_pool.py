"""Compiles many C++ sources at once: in parallel, each distinct one once, through the disk cache.

Place in the pipeline: between `codegen/cpp/` (texts) and `launcher.py` (callables). The threads
only wait for compiler processes, so they cost nothing while Python goes on working::

    started = submit(texts)                        # starts compiling at once
    libraries = [one.library() for one in started] # each has a function called one.symbol

Several sources become one translation unit, each in its own namespace: compiled alone, a small
kernel spends half of its time on the compiler's start, the headers and the linker. The cache does
not depend on which sources share a unit: each source's key names the file. Files are read once,
when they are checked, and never again: what is loaded is what was read.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from threading import Event, Lock
from typing import Final, final

from weft.compiling import when_interrupted
from weft.config import config
from weft.folders import tell_problems
from weft.interrupts import wait_for
from weft.runtime.cpp_build import Toolchain, toolchain
from weft.runtime.disk_cache import DiskCache
from weft.runtime.shared_objects import DoesNotLoad, SharedObject, is_loadable

ENTRY: Final = "weft_kernel"
"""The name of the exported function in a source; in the object it is `Compiling.symbol`."""
FEWEST: Final = 2
MOST: Final = 16
"""Sources in one translation unit, where there are that many."""


@final
@dataclass(frozen=True)
class _Unit:
    """Sources that are compiled together: their objects, once they exist, and whether to stop."""

    objects: Future[dict[str, SharedObject]]
    cancelled: Event


_running: Final[dict[str, _Unit]] = {}
_lock: Final = Lock()


@final
@dataclass(frozen=True)
class Compiling:
    """A source that was passed to the compiler."""

    key: str
    text: str
    _unit: _Unit

    @property
    def symbol(self) -> str:
        """The name of its function."""
        return _symbol(self.key)

    def wait(self) -> SharedObject:
        """The shared object with that function, once it exists; raises CompilationFailed."""
        try:
            return wait_for(self._unit.objects)[self.key]
        except BaseException:
            self._unit.cancelled.set()  # in the case that the waiting was interrupted
            raise
        finally:
            tell_problems()

    def library(self) -> ctypes.CDLL:
        """The loaded object, which has that function.

        What does not load is compiled again, in place of the file of the cache.
        """
        try:
            return self._with_function(self.wait())
        except DoesNotLoad:
            tools, content = toolchain(), _translation_unit({self.key: self.text})
            return self._with_function(_compile(tools, content, [self.key], _disk(), bool))

    def _with_function(self, shared: SharedObject) -> ctypes.CDLL:
        library = shared.library()
        if not hasattr(library, self.symbol):
            raise DoesNotLoad(f"it has no function {self.symbol}")
        return library


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
        new = {key: text for text, key in keys.items() if not _is_known(place + key)}
        for unit in _units(new, jobs):
            stop = Event()
            objects = _pool(jobs, os.getpid()).submit(
                _build, tools, unit, disk, stop.is_set)
            _running.update((place + key, _Unit(objects, stop)) for key in unit)
        return [Compiling(keys[source], source, _running[place + keys[source]])
                for source in sources]


def _is_known(place: str) -> bool:
    """Whether the source is being compiled, or has been."""
    unit = _running.get(place)
    if unit is None or unit.cancelled.is_set():
        return False
    return not unit.objects.done() or unit.objects.exception() is None


def _cancel_all() -> None:
    """End the compilers that run: what they compile is compiled again when it is needed."""
    for unit in list(_running.values()):
        if not unit.objects.done():
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
) -> dict[str, SharedObject]:
    """The sources' objects from the cache; missing ones are compiled together, under the unit's
    lock, so that processes do not race."""
    contents = {key: disk.get(key) for key in sources}
    objects = _objects(contents)
    if len(objects) < len(sources):
        with disk.lock(min(sources), is_cancelled):
            objects |= _objects({k: disk.appeared(k) for k in sources if k not in objects})
            missing = {k: text for k, text in sources.items() if k not in objects}
            if missing:
                compiled = _compile(
                    tools, _translation_unit(missing), list(missing), disk, is_cancelled)
                objects |= dict.fromkeys(missing, compiled)
    return objects


def _objects(contents: Mapping[str, bytes | None]) -> dict[str, SharedObject]:
    return {key: SharedObject(content, key)
            for key, content in contents.items() if content is not None}


def _compile(
    tools: Toolchain, text: str, keys: Sequence[str], disk: DiskCache,
    is_cancelled: Callable[[], bool],
) -> SharedObject:
    """The object of a translation unit, which is put into the cache under each key."""
    content = tools.compile(text, is_cancelled)
    disk.put_all(keys, content)
    return SharedObject(content, keys[0])


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
