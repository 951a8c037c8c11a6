"""Writes docs/graph-breaks.md from the registry of graph breaks.

Place in the pipeline: a maintenance tool; a test checks that the page is current::

    python -m tools.graph_breaks_page            # rewrites the page
"""

from __future__ import annotations

from pathlib import Path

from weft.capture.core.breaks import BREAKS

PAGE = Path(__file__).parent.parent / "docs" / "graph-breaks.md"

_INTRODUCTION = """\
# Graph breaks

<!-- made by `python -m tools.graph_breaks_page` from `weft/capture/core/breaks.py` -->

Where a program does something that cannot be captured, weft ends the graph, lets Python do that one
operation, and goes on capturing behind it. `weft.explain(f)(*args)` and
`WEFT_LOGS=graph_breaks` show each break with its id, the line and the calls that led there;
`fullgraph=True` makes it an error. The ids are stable between versions.
"""


def page() -> str:
    """The text of the page."""
    parts = [_INTRODUCTION]
    for kind in BREAKS.values():
        parts.append(f"## {kind.id}\n\n{kind.explanation}\n\n*What to do*: {kind.hint}.\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
