"""What changed since a variant was compiled: why a guard fails, in the user's words.

Place in the pipeline: made by capture at a miss, shown by logs, `weft.explain` and warnings::

    Change(guard="n == 3", source="n", aspect="value", old="3", new="4", line="train.py:7 in f",
           hint="...")
    str(change)                     # "'n' was 3, now 4"
    summary([change, other])        # ["'n' was 3, 4, now 5"]: what kept changing
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, final

MOST_VALUES: Final = 12


@final
@dataclass(frozen=True, slots=True)
class Change:
    """A failing guard: its text, the place in the user's words, the value then and now."""

    guard: str
    source: str
    """Such as ``self.layers[3].eps``; empty for what belongs to no place (global modes, sizes)."""
    aspect: str
    """The aspect that changed: "value", "dtype", "size", ... or, without a source, a phrase."""
    old: str
    new: str
    """Empty where `old` is a condition that does not hold."""
    line: str
    """The user's line that asked for the guard, or empty."""
    hint: str
    """What would avoid the recompile."""

    def __str__(self) -> str:
        return _sentence(self, self.old)

    def details(self) -> list[str]:
        """Lines that follow the sentence in a log."""
        asked = f" (asked for at {self.line})" if self.line else ""
        return [f"guard: {self.guard}{asked}", f"avoid it: {self.hint}"]


def _sentence(change: Change, old: str) -> str:
    if not change.new:
        return f"{change.aspect} {old} does not hold"
    if not change.source:
        return f"{change.aspect}: was {old}, now {change.new}"
    if change.aspect == "value":
        return f"'{change.source}' was {old}, now {change.new}"
    return f"'{change.source}' {change.aspect} mismatch: expected {old}, got {change.new}"


def summary(changes: Iterable[Change]) -> list[str]:
    """One sentence for each thing that changed, with all its values.

    `changes` start with those since the latest variant; the sentences list values from the oldest
    on.
    """
    groups: dict[tuple[str, str], list[Change]] = {}
    for change in changes:
        groups.setdefault((change.source, change.aspect), []).append(change)
    return [
        _sentence(group[0], _join([c.old for c in reversed(group)])) for group in groups.values()
    ]


def _join(values: list[str]) -> str:
    seen = list(dict.fromkeys(values))
    more = len(seen) - MOST_VALUES
    return ", ".join(seen[:MOST_VALUES]) + (f", … {more} more" if more > 0 else "")
