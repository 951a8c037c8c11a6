"""Logs by artifact: `WEFT_LOGS=guards,recompiles` or `weft.set_logs("guards", "recompiles")`.

Place in the pipeline: a view of `events`; loaded only when a log is on.

Each artifact is a Python logger ``weft.<artifact>``, so `logging` can redirect or filter it.
Lines go to standard error, code in colour on a terminal and plain in a pipe. At level "debug" (the
default) an event is told in full, at "info" by its first line::

    WEFT_LOGS=graph:info,output_code python train.py
    weft.set_logs("output_code", graph="info")
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from rich.console import Console
from rich.syntax import Syntax
from rich.text import Text

from weft.diagnostics import events
from weft.diagnostics.changes import summary
from weft.diagnostics.events import Event
from weft.diagnostics.explanation import code_name, graph_text
from weft.errors import BadValue, UnknownArtifact

Fields = Mapping[str, Any]
Format = Callable[[Fields], str]


def _graph(f: Fields) -> str:
    return f"captured graph of {code_name(f.get('code', ''))}\n{graph_text(f.get('gm'))}"


def _guards(f: Fields) -> str:
    lines = [f"guards of {code_name(f.get('code', ''))}"]
    return "\n".join([*lines, *(f"  {g}" for g in f.get("guards", ()))])


def _recompile(f: Fields) -> str:
    changes = f.get("changes") or ()
    head = f"recompiling {code_name(f.get('code', ''))}: "
    if not changes:
        return head + str(f.get("reason", ""))
    lines = [head + str(changes[0]), *changes[0].details()]
    if len(changes) > 1:
        lines.append("the variants before it: " + "; ".join(summary(changes[1:])))
    return "\n  ".join(lines)


def _break(f: Fields) -> str:
    stack = "".join(f"\n  at {line}" for line in reversed(f.get("stack") or ()))
    hint = f"\n  hint: {f['hint']}" if f.get("hint") else ""
    return f"graph break [{f.get('id', '')}]: {f.get('reason', '')}{stack}{hint}"


def _bytecode(f: Fields) -> str:
    return f"replacement of {code_name(f.get('code', ''))}\n{f.get('source', '')}"


def _aot(f: Fields) -> str:
    return f"ATen graph\n{graph_text(f.get('gm'))}"


def _text(f: Fields) -> str:
    return str(f.get("text", ""))


def _output_code(f: Fields) -> str:
    path = f" ({f['path']})" if f.get("path") else ""
    return f"output code{path}\n{f.get('source', '')}"


def _kernel(f: Fields) -> str:
    return f"kernel {f.get('name', '')} ({f.get('target', '')})\n{f.get('source', '')}"


def _limit(f: Fields) -> str:
    return f"no more variants of {code_name(f.get('code', ''))}: {f.get('reason', '')}"


def _stage(f: Fields) -> str:
    return f"{f['name']}: {f['seconds'] * 1e3:.2f} ms (own {f['self_seconds'] * 1e3:.2f})"


# artifact -> kind of event -> how it reads
ARTIFACTS: Final[Mapping[str, Mapping[str, Format]]] = MappingProxyType({
    "bytecode": {"bytecode": _bytecode},
    "graph": {"graph": _graph},
    "guards": {"guards": _guards},
    "recompiles": {"recompile": _recompile, "limit": _limit},
    "graph_breaks": {"graph_break": _break},
    "aot": {"aot": _aot},
    "schedule": {"schedule": _text},
    "output_code": {"output_code": _output_code, "kernel": _kernel},
    "perf": {"perf": _text, "stage_end": _stage},
})
_CODE: Final = frozenset({"bytecode", "graph", "aot", "output_code"})

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
            console.print(Syntax(body, "python", background_color="default"))
        elif body:
            console.print(Text(body))


def set_logs(*artifacts: str, **levels: bool | int | str) -> None:
    """Log these artifacts and no others; none at all without arguments.

    ``set_logs("guards", "graph")`` and ``set_logs(guards=True, graph=True)`` say the same. A level
    is one of "debug" (all), "info" (first lines) or a number of `logging`. Raises UnknownArtifact
    for a name that is not in `ARTIFACTS`, BadValue for another level.
    """
    wanted = {name: _level(name, level)
              for name, level in {**dict.fromkeys(artifacts, True), **levels}.items()}
    _install({name: level for name, level in wanted.items() if level is not None})


def set_logs_from_text(text: str) -> None:
    """`set_logs` from the text of WEFT_LOGS: ``artifact`` or ``artifact:level``, with commas."""
    parts = [part.strip().partition(":") for part in text.split(",") if part.strip()]
    set_logs(**{name.strip(): level.strip() or True for name, _, level in parts})


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
            logger.debug("%s", form(event.fields))
        elif logger.isEnabledFor(logging.INFO):
            logger.info("%s", form(event.fields).partition("\n")[0])
