"""With `config.trace`, each intermediate form of a compilation is a file to read.

Place in the pipeline: around each compilation, beside `logs`, whose texts these are::

    WEFT_TRACE=1 python train.py
    ls ~/.cache/weft/trace/*            # 001_graph.txt  002_guards.txt  003_aot.txt …

A process has one folder; the files are numbered in the order in which things happened.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from weft.config import config
from weft.diagnostics import events
from weft.diagnostics.artifacts import ARTIFACTS, Format
from weft.diagnostics.events import Event

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
    folder = directory()
    folder.mkdir(parents=True, exist_ok=True)
    number = sum(1 for _ in folder.iterdir()) + 1
    (folder / f"{number:03}_{event.kind}.txt").write_text(form(event.fields) + "\n")


def directory() -> Path:
    """The folder that this process writes to."""
    return config.cache_path() / "trace" / f"{_STARTED}-{os.getpid()}"
