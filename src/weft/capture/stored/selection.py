"""The files of the cache that some entries need: their own, and their kernels'.

Place in the pipeline: for `weft cache save FILE KEY`::

    files_of(["5d1e"])        # of all entries whose keys begin so
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from weft.errors import CompilerNotFound
from weft.runtime import disk_cache
from weft.runtime.cpp_build import toolchain
from weft.runtime.disk_cache import DiskCache
from weft.store.packing import unpacked
from weft.store.reader import kernel_texts


def entry_files(keys: Sequence[str] = ("",)) -> list[Path]:
    """The files of entries whose keys begin with one of these."""
    return [file for file in _of_kind("entries") if file.name.startswith(tuple(keys))]


def _of_kind(kind: str) -> list[Path]:
    return sorted(file for file in disk_cache.files() if file.parent.parent.name == kind)


def files_of(keys: Sequence[str]) -> list[Path]:
    """The files of those entries, of all backwards (which entry has one is not known), and of the
    kernels in them that this machine's compiler makes."""
    entries = [*entry_files(keys), *_of_kind("backwards")]
    texts: set[str] = set()
    for file in entries:
        content = DiskCache(file.parent.parent.name).appeared(file.name)
        texts.update(kernel_texts(unpacked(content)) if content is not None else ())
    kernels = DiskCache("cpp")
    return [*entries, *(kernels.path(key) for key in _kernel_keys(sorted(texts)))]


def _kernel_keys(texts: Sequence[str]) -> list[str]:
    try:
        return [toolchain().key(text) for text in texts]
    except CompilerNotFound:
        return []
