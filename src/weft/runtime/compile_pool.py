"""Compiles many C++ sources at once: in parallel, each distinct one once, through the disk cache.

Place in the pipeline: between `codegen/cpp/` (texts) and `launcher.py` (callables). The threads
only wait for compiler processes, so they cost nothing beside Python work that goes on meanwhile:

    futures = [submit(text) for text in texts]     # starts compiling at once
    paths = [future.result() for future in futures]
"""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Final

from weft.config import config
from weft.runtime.cpp_build import Toolchain, toolchain
from weft.runtime.disk_cache import DiskCache, root_directory

_running: Final[dict[str, Future[Path]]] = {}
_lock: Final = Lock()


@cache
def _pool(jobs: int, process: int) -> ThreadPoolExecutor:
    """A forked child has none of its parent's threads: each `process` has a pool of its own."""
    return ThreadPoolExecutor(jobs, thread_name_prefix="weft-compile")


def submit(source: str) -> Future[Path]:
    """Start compiling `source`; the future gives the shared object's file.

    Raises CompilerNotFound at once; the future raises CompilationFailed.
    """
    tools = toolchain()
    key = tools.key(source)
    place = f"{os.getpid()}:{root_directory()}/{key}"
    with _lock:
        future = _running.get(place)
        if future is None or (future.done() and not _still_there(future)):
            jobs = config.compile_jobs or os.cpu_count() or 1
            future = _pool(jobs, os.getpid()).submit(_build, tools, key, source, DiskCache("cpp"))
            _running[place] = future
    return future


def _still_there(future: Future[Path]) -> bool:
    return future.exception() is None and future.result().exists()


def _build(tools: Toolchain, key: str, source: str, disk: DiskCache) -> Path:
    """The object from the cache, or compiled under the key's lock, so that processes do not race.
    """
    found = disk.path(key)
    if found is not None:
        return found
    with disk.lock(key):
        return disk.appeared(key) or disk.put(key, tools.compile(source))
