"""The lines of a kernel's source text, indented.

Place in the pipeline: the writers of `cpp/` and `triton/` share one `SourceText` for each text::

    text = SourceText("  ", braces=True)
    with text.block("for (;;)"):
        text.line("break;")         # for (;;) {⏎  break;⏎}
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import final


@final
class SourceText:
    """Lines at a depth of blocks; blocks of C++ have braces, those of Python none."""

    def __init__(self, indentation: str, *, depth: int = 0, braces: bool) -> None:
        self.lines: list[str] = []
        self._indentation, self._depth, self._braces = indentation, depth, braces

    def line(self, text: str) -> None:
        """Append a line at the present depth."""
        self.lines.append(self._indentation * self._depth + text)

    @contextmanager
    def block(self, head: str, end: str = "") -> Iterator[None]:
        """What is appended inside belongs to the block that `head` opens; `end` follows its brace.
        """
        self.line(f"{head} {{" if self._braces else head)
        self._depth += 1
        yield
        self._depth -= 1
        if self._braces:
            self.line("}" + end)
