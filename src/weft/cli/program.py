"""``weft explain FILE.py``: runs a program and tells what weft did in it.

Place in the pipeline: command line; collects the events of the whole run.
"""

from __future__ import annotations

import runpy
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from rich.console import Console

from weft.diagnostics import events
from weft.diagnostics.explanation import Explanation
from weft.diagnostics.rendering import render


def explain(console: Console, file: Path, arguments: Sequence[str]) -> int:
    """Run `file` as ``__main__`` and print the explanation; its exit status, 0 if it ended well."""
    with events.collect() as seen:
        status = run(file, arguments)
    explanation = Explanation.from_events(seen, name=file.name)
    if explanation.seconds or explanation.graphs:
        render(explanation, console)
    else:
        console.print(f"{file.name} ran without compiling anything: it calls no function that "
                      "weft.compile returned")
    return status


def run(file: Path, arguments: Sequence[str]) -> int:
    """The program's exit status; the error that ends it is shown as Python would."""
    saved_argv, saved_path = sys.argv, sys.path[:]
    sys.argv = [str(file), *(a for a in arguments if a != "--")]
    sys.path.insert(0, str(file.resolve().parent))
    try:
        runpy.run_path(str(file), run_name="__main__")
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except Exception as error:  # noqa: BLE001  the program's own, whatever it is
        shown = _traceback_within(error.__traceback__, file)
        traceback.print_exception(error.with_traceback(shown))
        return 1
    finally:
        sys.argv, sys.path[:] = saved_argv, saved_path
    return 0


def _traceback_within(entry: TracebackType | None, file: Path) -> TracebackType | None:
    """The traceback from the program's first frame on: not those that started it."""
    while entry is not None and entry.tb_frame.f_code.co_filename != str(file):
        entry = entry.tb_next
    return entry
