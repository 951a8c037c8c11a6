"""Compares two recordings: which texts are the same, which but for names, and which differ.

Place in the pipeline: the last step of a replay; reads what `recording.py` has written::

    print(compare(Path("/tmp/before"), Path("/tmp/after")).text(lines=40))

Names do not count where they are consistently others: those of variables, parameters and functions
that a text defines, those of weft's own modules, and the numbers of buffers (`buf3`). Operators,
functions of C++ and Triton, attributes and numbers count.
"""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

SAME: Final = "same"
RENAMED: Final = "other names"
DIFFERENT: Final = "different"
MISSING: Final = "on one side only"
VERDICTS: Final = (SAME, RENAMED, DIFFERENT, MISSING)


@dataclass
class Comparison:
    """Verdicts by (program, text), and the unified diffs of texts that differ."""

    verdicts: dict[tuple[str, str], str] = field(default_factory=dict)
    diffs: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    @property
    def is_neutral(self) -> bool:
        """Whether nothing but names differs, in at least one text."""
        return bool(self.verdicts) and {*self.verdicts.values()} <= {SAME, RENAMED}

    def text(self, lines: int) -> str:
        """The diffs, so many lines of each, and a table of all texts."""
        return "\n".join([*self._differences(lines), *self._table()])

    def _differences(self, lines: int) -> Iterator[str]:
        for place, diff in self.diffs.items():
            yield f"== {'/'.join(place)}: {self.verdicts[place]} =="
            yield from diff[:lines]
            if len(diff) > lines:
                yield f"… {len(diff) - lines} more lines"
            yield ""

    def _table(self) -> Iterator[str]:
        counts = Counter((kind, verdict) for (_, kind), verdict in self.verdicts.items())
        kinds = sorted({kind for _, kind in self.verdicts})
        rows = [("text", *VERDICTS), *((k, *(str(counts[k, v]) for v in VERDICTS)) for k in kinds)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        programs = {program for program, _ in self.verdicts}
        changed = {program for program, _ in self.diffs}
        yield f"{len(programs)} programs, {len(changed)} of them differ" + "".join(
            f"\n  {program}" for program in sorted(changed))


def compare(before: Path, after: Path) -> Comparison:
    """Compare the recordings in two folders."""
    result = Comparison()
    old, new = _texts(before), _texts(after)
    for place in sorted({*old, *new}):
        verdict = _verdict(old.get(place), new.get(place))
        result.verdicts[place] = verdict
        if verdict in (DIFFERENT, MISSING):
            result.diffs[place] = [*difflib.unified_diff(
                old.get(place, "").splitlines(), new.get(place, "").splitlines(),
                str(before), str(after), lineterm="")]
    return result


def _texts(folder: Path) -> dict[tuple[str, str], str]:
    return {(str(file.parent.relative_to(folder)), file.stem): file.read_text()
            for file in folder.rglob("*.txt")}


def _verdict(old: str | None, new: str | None) -> str:
    if old is None or new is None:
        return MISSING
    if old == new:
        return SAME
    return RENAMED if differ_in_names(old, new) else DIFFERENT


# -- names ----------------------------------------------------------------------------------------

_TOKEN: Final = re.compile(r"[A-Za-z_]\w*|\d[\w.]*|\n[ \t]*|[^\w\s]")
_DEFINED: Final = re.compile(
    r"(?<![.\w])([A-Za-z_]\w*)(?:\[[^\]\n]*\])? = |\bfor (\w+) in\b|^# (\w+): ", re.MULTILINE)
_PARAMETERS: Final = re.compile(r"\bdef (\w+)\(([^)]*)\)")
_OWN_PATH: Final = re.compile(r"\bweft(?:[._]\w+)+")
_NUMBERED: Final = re.compile(r"(buf|in|empty)\d+")


def differ_in_names(old: str, new: str) -> bool:
    """Whether the texts are the same, but for names that are consistently others."""
    tokens, others = _TOKEN.findall(old), _TOKEN.findall(new)
    if len(tokens) != len(others):
        return False
    own = _own_names(old), _own_names(new)
    pairs = {*zip(tokens, others, strict=True)}
    if not all(token == other or _may_differ(token, other, *own) for token, other in pairs):
        return False
    names = [(token, other) for token, other in pairs if token.isidentifier()]
    return len({token for token, _ in names}) == len({other for _, other in names}) == len(names)


def _may_differ(token: str, other: str, own: set[str], own_of_other: set[str]) -> bool:
    if not (token.isidentifier() and other.isidentifier()):
        return False
    if token in own and other in own_of_other:
        return True
    kind, kind_of_other = _NUMBERED.fullmatch(token), _NUMBERED.fullmatch(other)
    return kind is not None and kind_of_other is not None and kind[1] == kind_of_other[1]


def _own_names(text: str) -> set[str]:
    """The names that the text defines, and those of weft's own modules and functions."""
    names = {name for names in _DEFINED.findall(text) for name in names}
    for function, parameters in _PARAMETERS.findall(text):
        names |= {function, *re.findall(r"[A-Za-z_]\w*", parameters)}
    for path in _OWN_PATH.findall(text):
        names |= {path, *path.split(".")}
    return names
