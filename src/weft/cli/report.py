"""``weft report [NAME] [--clear]``: the reports of failures that ended in eager runs.

Place in the pipeline: command line; the reports are written by `diagnostics.failures`. One is all
that is needed to file an issue: versions, settings, traceback, graphs, generated code.
"""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from weft.diagnostics import failures


def run(console: Console, name: str | None, *, clear: bool) -> bool:
    """List the reports, print the one named (or "last"), or remove all; whether it was there."""
    reports = failures.reports()
    if clear:
        failures.clear_reports()
        place = failures.report_place()
        console.print(f"removed {len(reports)} reports from {place}", markup=False)
        return True
    if name is None:
        _list(console, reports)
        return True
    return _print(console, reports, name)


def _list(console: Console, reports: list[Path]) -> None:
    if not reports:
        console.print(f"no reports in {failures.report_place()}: nothing has failed", markup=False)
        return
    table = Table("name", "what failed", box=None)
    for report in reports:
        table.add_row(Text(report.stem), Text(failures.subject(report)))
    console.print(table)
    console.print(Text(f"in {failures.report_place()}; `weft report last` prints the latest"))


def _print(console: Console, reports: list[Path], name: str) -> bool:
    chosen = reports[-1:] if name == "last" else [r for r in reports if r.stem.startswith(name)]
    if not reports:
        _list(console, reports)
        return False
    if not chosen:
        console.print(f"no report is named {name}; `weft report` lists them", markup=False)
        return False
    console.print(Text(chosen[-1].read_text()), soft_wrap=True)
    return True
