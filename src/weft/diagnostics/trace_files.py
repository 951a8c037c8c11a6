"""With `config.trace`, each intermediate form of a compilation is a file to read.

Place in the pipeline: around each compilation, beside `logs`, whose texts these are::

    WEFT_TRACE=1 python train.py
    ls ~/.cache/weft/trace/*            # 001_graph.txt  002_guards.txt  003_aot.txt …

A process has one folder; the files are numbered in the order in which things happened.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from weft import folders
from weft.config import config
from weft.diagnostics import events
from weft.diagnostics.artifacts import ARTIFACTS, Format
from weft.diagnostics.events import Event
from weft.quoting import printable

_FORMS: Final[dict[str, Format]] = {
    kind: form for forms in ARTIFACTS.values() for kind, form in forms.items()
    if kind != "stage_end"
}
_STARTED: Final = time.strftime("%Y%m%d-%H%M%S")

_unsubscribe: Callable[[], None] | None = None
"""Set while a compilation is traced (there is one at a time)."""


@contextmanager
def traced() -> Iterator[None]:
    """Write the events of the ``with`` block to files, if `config.trace` is on."""
    global _unsubscribe
    if not config.trace or _unsubscribe is not None:
        yield
        return
    _unsubscribe = events.subscribe(_write)
    try:
        yield
    finally:
        _unsubscribe()
        _unsubscribe = None


def _write(event: Event) -> None:
    form = _FORMS.get(event.kind)
    if form is None:
        return
    with contextlib.suppress(OSError):  # a full disk
        folder = own_folder()
        number = sum(1 for _ in folder.glob("*.txt")) + 1  # not the kernels' objects
        text = printable(form(event.fields)) + "\n"
        (folder / f"{number:03}_{event.kind}.txt").write_bytes(text.encode(errors="replace"))


def own_folder() -> Path:
    """The folder that this process writes to, made if there is none; raises OSError."""
    folder = directory()
    if not folder.exists():
        folders.keep_newest(traces(), _TRACES_KEPT - 1, _DAYS_KEPT)
        print(f"weft writes what it compiles to {folder} (WEFT_TRACE)", file=sys.stderr)
    return folders.private_folder(folders.private_folder(folder.parent) / folder.name)


def directory() -> Path:
    """Where the folder of this process is."""
    return folders.cache_root() / folders.TRACES / f"{_STARTED}-{os.getpid()}"


def traces() -> list[Path]:
    """The folders that processes have written, in no order."""
    return [*(folders.cache_root() / folders.TRACES).glob("[0-9]*-[0-9]*-[0-9]*")]


_TRACES_KEPT: Final = 50
_DAYS_KEPT: Final = 60.0
