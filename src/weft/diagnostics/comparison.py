"""What `weft.benchmark` returns: a table for people, plain values for programs.

Place in the pipeline: a result; drawn with rich, which only this needs::

    comparison = weft.benchmark(f, (x,))
    print(comparison)                       # a notebook shows it as a table, too
    comparison["weft"].median               # seconds
    comparison.to_dict()                    # for JSON
"""

from __future__ import annotations

import io
import platform
from dataclasses import dataclass
from html import escape
from typing import Any, Final, final

import torch
from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from weft.diagnostics.timing import Timing, ratio
from weft.version import __version__

_WIDTH: Final = 110
_COLUMNS: Final = ("", "first call", "median", "spread", "speed-up", "peak memory", "error")


@final
@dataclass(frozen=True, slots=True)
class Measurement:
    """One way to run the program: seconds, bytes, relative error; or why it failed."""

    name: str
    first_call: float | None
    timing: Timing
    peak_memory: int | None
    error: float | None
    failure: str = ""

    @property
    def median(self) -> float:
        """Seconds of a call."""
        return self.timing.median


@final
@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """The measurements of one program.

    error_against: what errors were measured against: "float64", "eager", or why nothing.
    """

    name: str
    device: str
    rows: tuple[Measurement, ...]
    error_against: str
    backward: bool = False

    def __getitem__(self, name: str) -> Measurement:
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)

    def speedup(self, name: str, over: str = "eager") -> float | None:
        """How many times as fast as another row it is: the median over the rounds."""
        times = {row.name: row.timing for row in self.rows if row.timing.samples}
        return 1 / ratio(times, name, over) if name in times and over in times else None

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values: seconds, bytes, ratios."""
        return {
            "name": self.name, "device": self.device, "backward": self.backward,
            "error_against": self.error_against, "machine": machine(self.device),
            "rows": [self._row(row) for row in self.rows],
        }

    def _row(self, row: Measurement) -> dict[str, object]:
        measured = bool(row.timing.samples)
        return {
            "name": row.name, "first_call": row.first_call,
            "median": row.median if measured else None,
            "spread": row.timing.spread if measured else None,
            "samples": list(row.timing.samples), "speedup": self.speedup(row.name),
            "peak_memory": row.peak_memory, "error": row.error, "failure": row.failure or None,
        }

    @property
    def title(self) -> str:
        """What was measured, and on what."""
        what = "forward and backward" if self.backward else "calls"
        return f"{self.name}: {what}, {machine(self.device)['processor']}"

    @property
    def _note(self) -> str:
        return f"error: largest difference, of the largest value, against {self.error_against}"

    def _cells(self) -> list[tuple[str, ...]]:
        return [self._cells_of(row) for row in self.rows]

    def _cells_of(self, row: Measurement) -> tuple[str, ...]:
        if not row.timing.samples:
            return (row.name, row.failure, *([""] * (len(_COLUMNS) - 2)))
        speedup = self.speedup(row.name)
        return (
            row.name, "-" if row.first_call is None else seconds_text(row.first_call),
            seconds_text(row.median), f"{row.timing.spread:.0%}" if row.timing.spread else "-",
            "-" if speedup is None else f"{speedup:.2f} x",
            "-" if row.peak_memory is None else bytes_text(row.peak_memory),
            "-" if row.error is None else f"{row.error:.1e}")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        table = Table(title=Text(self.title), title_justify="left", title_style="bold",
                      box=box.SIMPLE_HEAD, caption=Text(self._note), caption_justify="left")
        for column in _COLUMNS:
            table.add_column(column, justify="right" if column else "left")
        for cells in self._cells():
            table.add_row(*map(Text, cells))
        yield table

    def __str__(self) -> str:
        text = io.StringIO()
        Console(file=text, width=_WIDTH).print(self)
        return "\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """The table in a notebook."""
        head = "".join(f"<th>{escape(column)}</th>" for column in _COLUMNS)
        body = "".join(
            f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
            for cells in self._cells())
        return (f"<table><caption>{escape(self.title)}</caption><thead><tr>{head}</tr></thead>"
                f"<tbody>{body}</tbody></table><p><small>{escape(self._note)}</small></p>")


def machine(device: str) -> dict[str, Any]:
    """What figures were measured on."""
    gpu = torch.cuda.get_device_name() if device == "cuda" else None
    return {
        "processor": gpu or f"{torch.get_num_threads()} CPU threads", "gpu": gpu,
        "threads": torch.get_num_threads(), "torch": torch.__version__, "weft": __version__,
        "python": platform.python_version(), "platform": platform.platform(),
    }


def seconds_text(seconds: float) -> str:
    """A time in a unit that people can read."""
    if seconds >= 1:
        return f"{seconds:.3g} s"
    if seconds >= 1e-3:
        return f"{seconds * 1e3:.3g} ms"
    return f"{seconds * 1e6:.3g} µs"


def bytes_text(count: int) -> str:
    """A number of bytes in a unit that people can read."""
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if abs(size) < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} GiB"
