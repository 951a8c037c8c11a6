"""The boundary where a failure inside weft becomes an eager run with one warning.

Place in the pipeline: called by stages that have an eager fallback (capture, the code generator)::

    try:
        return compile_it()
    except Exception as error:  # noqa: BLE001  the documented boundary
        handle(error, during="lowering", what="model.forward", attachments={"graph.py": text})
        return run_eager

`handle` raises what the user must see: mistakes of the call, `GraphBreakError`, exceptions of
signal handlers and other threads, and everything in strict mode. Otherwise it writes a report file
and warns, once per kind of failure.
"""

from __future__ import annotations

import hashlib
import platform
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import torch

from weft import folders
from weft.config import config
from weft.diagnostics import events
from weft.errors import (
    BackendError,
    CompilerMissingWarning,
    CompilerNotFound,
    FallbackWarning,
    GraphBreakError,
    MissingDependency,
    SourceLine,
    UserError,
    warn,
)
from weft.interrupts import surface
from weft.quoting import one_line, printable
from weft.version import __version__

SURFACING: Final = (UserError, GraphBreakError, BackendError)
"""Errors that the user must see, in any mode."""

MISSING: Final = (CompilerNotFound, MissingDependency)
"""A missing package: one message, no report."""

_EVENTS_SHOWN: Final = 50

_REPORT_NAMES: Final = "[0-9]*-[0-9]*-*-*.txt"
"""Date, time, stage and digest: see `write_report`."""
_REPRO_NAMES: Final = "repro-[0-9]*-[0-9]*-*.*"
_REPORTS_KEPT: Final = 100
_DAYS_KEPT: Final = 60.0
_warned: set[tuple[object, ...]] = set()


def handle(
    error: Exception, *, during: str, what: str = "", stack: Sequence[SourceLine] = (),
    attachments: Mapping[str, str] | None = None,
) -> None:
    """Raise `error` if the user must see it; otherwise report it, warn once, and return.

    during: the stage. what: the user's function. stack: the user's lines, innermost last.
    attachments: name -> text, put into the report (graphs, generated code).
    """
    surface(error)
    if isinstance(error, SURFACING):
        raise error
    if isinstance(error, MISSING):
        _warn(CompilerMissingWarning, f"{error}\n  weft runs eagerly", (type(error),))
        return
    if config.raise_internal_errors:
        raise error
    events.count("fallbacks")
    path = write_report(error, during=during, what=what, stack=stack, attachments=attachments)
    events.record("fallback", error=f"{type(error).__name__}: {error}", report=path or "")
    _warn(FallbackWarning, _message(error, during, what, stack, path), _signature(error, during))


def _message(
    error: Exception, during: str, what: str, stack: Sequence[SourceLine], path: str | None
) -> str:
    subject = f" of {one_line(what)}" if what else ""
    where = f" ({stack[-1]})" if stack else ""
    note = f"; please file the report {path}" if path else "; no report could be written"
    note += "".join(f"; {added}" for added in getattr(error, "__notes__", ()))
    return printable(f"weft failed during {during}{subject}{where} and runs it eagerly: "
                     f"{type(error).__name__}: {error}{note}. WEFT_STRICT=1 raises instead.")


def _signature(error: Exception, during: str) -> tuple[object, ...]:
    """What makes two failures equal: the type, and the place in weft where it was raised."""
    last = traceback.extract_tb(error.__traceback__)[-1:]
    return (during, type(error), *((f.filename, f.lineno) for f in last))


def _warn(category: type[Warning], message: str, signature: tuple[object, ...]) -> None:
    if signature not in _warned:
        _warned.add(signature)
        warn(category, message)


def forget_warnings() -> None:
    """Warn again about failures that were reported before (`weft.reset`)."""
    _warned.clear()


def write_report(
    error: BaseException, *, during: str, what: str = "", stack: Sequence[SourceLine] = (),
    attachments: Mapping[str, str] | None = None,
) -> str | None:
    """Write the report of a failure; returns its path, or None if the directory is not writable."""
    text = _report_text(error, during, what, stack, attachments or {}).encode(errors="replace")
    digest = hashlib.sha256(text).hexdigest()[:8]
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{during.replace(' ', '-')}-{digest}.txt"
    try:
        path = report_folder() / name
        path.write_bytes(text)
    except (OSError, ValueError):
        return None
    return str(path)


def report_place() -> Path:
    """The folder of reports; raises OSError."""
    return config.report_path() or folders.cache_root() / folders.REPORTS


def report_folder() -> Path:
    """The folder of reports, made, with room for one more; raises OSError."""
    folder = report_place()
    if config.report_dir:
        folder.mkdir(parents=True, exist_ok=True)
    else:
        folders.private_folder(folder)
    folders.keep_newest(_files_of_reports(folder), _REPORTS_KEPT - 1, _DAYS_KEPT)
    return folder


def _files_of_reports(folder: Path) -> list[Path]:
    return [file for names in (_REPORT_NAMES, _REPRO_NAMES) for file in folder.glob(names)]


def reports() -> list[Path]:
    """The reports written so far, oldest first."""
    return sorted(report_place().glob(_REPORT_NAMES))


def clear_reports() -> int:
    """Remove the reports, and the programs written with them; returns how many files."""
    files = _files_of_reports(report_place())
    folders.keep_newest(files, 0, 0)
    return len(files)


def subject(report: Path) -> str:
    """The first line of a report: which error, in which stage, of which function."""
    return report.read_text().partition("\n")[2].partition("\n")[0]


def _report_text(
    error: BaseException, during: str, what: str, stack: Sequence[SourceLine],
    attachments: Mapping[str, str],
) -> str:
    """What helps to reproduce a failure: versions, settings, traceback, what was compiled."""
    sections = {
        "what": f"{type(error).__name__} during {during} of {one_line(what) or 'a graph'}",
        "where in the program": "\n".join(str(line) for line in stack),
        "versions": environment_text(),
        "settings": config.describe(),
        "traceback": "".join(traceback.format_exception(error)),
        **attachments,
        "latest events": "\n".join(f"{e.kind} {e.fields}"
                                   for e in events.history()[-_EVENTS_SHOWN:]),
    }
    return printable("\n".join(f"== {title} ==\n{text.rstrip()}\n"
                               for title, text in sections.items() if text))


def environment_text() -> str:
    """The versions of Python, torch and so on."""
    lines = [
        f"weft {__version__}",
        f"torch {torch.__version__}, CUDA {torch.version.cuda or 'none'}",
        f"Python {sys.version.split()[0]} ({sys.implementation.name})",
        f"{platform.platform()}, {platform.machine()}",
        f"command {one_line(Path(sys.argv[0]).name) if sys.argv else ''}",
    ]
    return "\n".join(lines)
