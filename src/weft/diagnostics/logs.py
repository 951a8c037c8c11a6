"""Logs by artifact: `WEFT_LOGS=guards,recompiles` or `weft.set_logs("guards", "recompiles")`.

Place in the pipeline: a view of `events`; loaded only if a log is on.

Each artifact is a Python logger ``weft.<artifact>``, so `logging` can redirect or filter it. Lines
go to standard error, in colour on a terminal and plain in a pipe. At level "debug" (the default) an
event is shown in full, at "info" by its first line::

    WEFT_LOGS=graph:info,output_code python train.py
    weft.set_logs("output_code", graph="info")
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from rich.console import Console
from rich.syntax import Syntax
from rich.text import Text

from weft.diagnostics import events
from weft.diagnostics.artifacts import ARTIFACTS, Format
from weft.diagnostics.events import Event
from weft.errors import BadValue, UnknownArtifact
from weft.quoting import printable

_CODE: Final = frozenset({"bytecode", "graph", "aot", "passes", "output_code"})

LEVELS: Final[Mapping[str, int]] = MappingProxyType({
    "debug": logging.DEBUG, "info": logging.INFO})

_on: dict[str, list[tuple[logging.Logger, Format]]] = {}
_unsubscribe: Callable[[], None] | None = None


class _Handler(logging.Handler):
    """Writes to today's standard error: colour where it is a terminal."""

    def emit(self, record: logging.LogRecord) -> None:
        console = Console(file=sys.stderr, soft_wrap=True, highlight=False)
        artifact = record.name.removeprefix("weft.")
        head, _, body = record.getMessage().partition("\n")
        console.print(Text(f"[{artifact}] ", style="bold cyan"), Text(head), sep="", end="\n")
        if body and artifact in _CODE and console.is_terminal:
            language = "cpp" if body.startswith("//") else "python"
            console.print(Syntax(body, language, background_color="default"))
        elif body:
            console.print(Text(body))


def set_logs(*artifacts: str, **levels: bool | int | str) -> None:
    """Log these artifacts and no others; without arguments, log nothing.

    ``set_logs("guards", "graph:info")``, ``set_logs("guards,graph:info")`` (as in WEFT_LOGS) and
    ``set_logs(guards=True, graph="info")`` are equivalent. A level is one of "debug" (all), "info"
    (first lines) or a number of `logging`. Raises UnknownArtifact for a name that is not in
    `ARTIFACTS`, BadValue for another level.
    """
    wanted = {name: _level(name, level)
              for name, level in {**_from_text(",".join(artifacts)), **levels}.items()}
    _install({name: level for name, level in wanted.items() if level is not None})


def set_logs_from_text(text: str) -> None:
    """`set_logs` from the text of WEFT_LOGS."""
    set_logs(text)


def _from_text(text: str) -> dict[str, bool | int | str]:
    """Names and levels of ``artifact`` or ``artifact:level``, with commas."""
    parts = [part.strip().partition(":") for part in text.split(",") if part.strip()]
    return {name.strip(): level.strip() or True for name, _, level in parts}


def _level(name: str, level: bool | int | str) -> int | None:
    """The number of a level; None for off."""
    if name not in ARTIFACTS:
        raise UnknownArtifact(name, ARTIFACTS)
    if isinstance(level, bool):
        return logging.DEBUG if level else None
    number = LEVELS.get(level.lower()) if isinstance(level, str) else level
    if number is None:
        raise BadValue(f"log {name!r} has no level {level!r}", do=f"use {' or '.join(LEVELS)}")
    return number


def _install(artifacts: dict[str, int]) -> None:
    global _unsubscribe
    if _unsubscribe is not None:
        _unsubscribe()
        _unsubscribe = None
    _on.clear()
    for artifact, level in artifacts.items():
        logger = logging.getLogger(f"weft.{artifact}")
        logger.setLevel(level)
        for kind, form in ARTIFACTS[artifact].items():
            _on.setdefault(kind, []).append((logger, form))
    if artifacts:
        _ensure_handler()
        _unsubscribe = events.subscribe(_log)


def _ensure_handler() -> None:
    root = logging.getLogger("weft")
    if not any(isinstance(h, _Handler) for h in root.handlers):
        root.addHandler(_Handler())
        root.propagate = False


def _log(event: Event) -> None:
    for logger, form in _on.get(event.kind, ()):
        if logger.isEnabledFor(logging.DEBUG):
            logger.debug("%s", printable(form(event.fields)))
        elif logger.isEnabledFor(logging.INFO):
            logger.info("%s", printable(form(event.fields)).partition("\n")[0])
