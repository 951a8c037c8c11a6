"""Draws an `Explanation` with rich: tables and colour on a terminal, plain text in a pipe.

Place in the pipeline: used by the command line; not loaded by ``import weft``::

    render(weft.explain(f)(x))
"""

from __future__ import annotations

from typing import Final

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from weft.diagnostics.explanation import Explanation, Section

MOST_ROWS: Final = 40


def _table(section: Section, most_rows: int) -> Table:
    table = Table(title=section.title, title_justify="left", title_style="bold",
                  box=box.SIMPLE_HEAD)
    for column in section.columns:
        table.add_column(column, overflow="fold")
    for row in section.rows[:most_rows]:
        table.add_row(*(Text(cell) for cell in row))
    if len(section.rows) > most_rows:
        table.add_row(Text(f"… {len(section.rows) - most_rows} more"))
    return table


def drawing(explanation: Explanation, most_rows: int = MOST_ROWS) -> RenderableType:
    """What rich prints: the summary, then a table for each kind of detail."""
    return Group(
        Text(f"weft: {explanation.name}", style="bold"),
        *(Text(line) for line in explanation.summary()),
        *(_table(section, most_rows) for section in explanation.sections()),
    )


def render(
    explanation: Explanation, console: Console | None = None, most_rows: int = MOST_ROWS
) -> None:
    """Print it, long tables cut at `most_rows`."""
    (console or Console()).print(drawing(explanation, most_rows))
