"""Draws an `Explanation` with rich: tables and colour on a terminal, plain text in a pipe.

Place in the pipeline: used by the command line; not loaded by ``import weft``::

    render(weft.explain(f)(x))
"""

from __future__ import annotations

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from weft.diagnostics.explanation import Explanation, Section

_MOST_ROWS = 40


def _table(section: Section) -> Table:
    made = Table(title=section.title, title_justify="left", title_style="bold",
                 box=box.SIMPLE_HEAD)
    for column in section.columns:
        made.add_column(column, overflow="fold")
    for row in section.rows[:_MOST_ROWS]:
        made.add_row(*(Text(cell) for cell in row))
    if len(section.rows) > _MOST_ROWS:
        made.add_row(Text(f"… {len(section.rows) - _MOST_ROWS} more"))
    return made


def drawing(explanation: Explanation) -> RenderableType:
    """What rich prints: the summary, then a table for each kind of detail."""
    return Group(
        Text(f"weft: {explanation.name}", style="bold"),
        *(Text(line) for line in explanation.summary()),
        *(_table(section) for section in explanation.sections()),
    )


def render(explanation: Explanation, console: Console | None = None) -> None:
    """Print it."""
    (console or Console()).print(drawing(explanation))
