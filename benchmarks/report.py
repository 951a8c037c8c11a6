"""Writes results: a Markdown table for people, JSON for programs."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import torch

from benchmarks.runner import Plan, Result
from weft.version import __version__

Cell = Callable[[Result], float | None]


def _first(compiler: str, table: str = "first") -> Cell:
    return lambda r: getattr(r, table).get(compiler, {}).get("first_call")


def _memory(compiler: str) -> Cell:
    def cell(r: Result) -> float | None:
        found = r.first.get(compiler, {}).get("peak_memory")
        return None if found is None else found / 2**20

    return cell


def _steady(key: str, compiler: str, scale: float = 1.0) -> Cell:
    def cell(r: Result) -> float | None:
        found = r.steady.get(key, {}).get(compiler)
        return None if found is None else found * scale

    return cell


def _ratio(a: Cell, b: Cell) -> Cell:
    def cell(r: Result) -> float | None:
        top, bottom = a(r), b(r)
        return top / bottom if top is not None and bottom else None

    return cell


def _bandwidth(r: Result) -> float | None:
    """TB/s of the fewest bytes that the work must move."""
    seconds = r.steady.get("median", {}).get("weft")
    moved = r.steady.get("min_bytes")
    return moved / seconds / 1e12 if moved and seconds else None


FIRST: dict[str, tuple[Cell, str]] = {
    "torch cold s": (_first("torch"), ".2f"),
    "weft cold s": (_first("weft"), ".2f"),
    "weft / torch": (_ratio(_first("weft"), _first("torch")), ".2f"),
    "torch warm s": (_first("torch", "warm"), ".2f"),
    "weft warm s": (_first("weft", "warm"), ".2f"),
    "warm weft / torch": (_ratio(_first("weft", "warm"), _first("torch", "warm")), ".2f"),
}
STEADY: dict[str, tuple[Cell, str]] = {
    "eager ms": (_steady("median", "eager", 1e3), ".4g"),
    "torch ms": (_steady("median", "torch", 1e3), ".4g"),
    "weft ms": (_steady("median", "weft", 1e3), ".4g"),
    "torch / eager": (_steady("ratio_to_eager", "torch"), ".2f"),
    "weft / eager": (_steady("ratio_to_eager", "weft"), ".2f"),
    "weft / torch": (_steady("ratio_to_torch", "weft"), ".2f"),
    "weft TB/s": (_bandwidth, ".3g"),
}
QUALITY: dict[str, tuple[Cell, str]] = {
    "error eager": (_steady("error", "eager"), ".1e"),
    "error torch": (_steady("error", "torch"), ".1e"),
    "error weft": (_steady("error", "weft"), ".1e"),
    "peak MiB eager": (_memory("eager"), ".1f"),
    "peak MiB torch": (_memory("torch"), ".1f"),
    "peak MiB weft": (_memory("weft"), ".1f"),
}
TABLES = {
    "First call": FIRST,
    "Steady state": STEADY,
    "Numerical error (of the largest value, against float64) and peak memory of a call": QUALITY,
}


def mean(values: Iterable[float | None]) -> float | None:
    """The geometric mean of what was measured."""
    present = [v for v in values if v is not None and v > 0]
    return geometric_mean(present) if present else None


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def table(title: str, columns: dict[str, tuple[Cell, str]], results: list[Result]) -> str:
    """One Markdown table; ratios end in their geometric mean."""
    lines = [f"### {title}", "", _row(["case", *columns]),
             _row(["---", *("---:" for _ in columns)])]
    lines += [_row([r.name, *(_cell(cell(r), form) for cell, form in columns.values())])
              for r in results]
    if any("/" in name for name in columns):
        means = [_cell(mean(cell(r) for r in results), form)
                 if "/" in name and "TB" not in name else ""
                 for name, (cell, form) in columns.items()]
        lines.append(_row(["geometric mean", *means]))
    return "\n".join(lines)


def machine(plan: Plan) -> dict[str, Any]:
    """What the figures were measured on."""
    gpu = torch.cuda.get_device_name() if plan.device.startswith("cuda") else None
    return {
        "weft": __version__, "torch": torch.__version__, "python": sys.version.split()[0],
        "platform": platform.platform(), "processor": platform.machine(),
        "cores": len(os.sched_getaffinity(0)), "gpu": gpu,
        "simd": torch.backends.cpu.get_cpu_capability(),
    }


def markdown(results: list[Result], plan: Plan, command: str, notes: dict[str, Any]) -> str:
    """The whole report."""
    about = ", ".join(f"{k} {v}" for k, v in {**machine(plan), **notes}.items() if v is not None)
    parts = [f"## `{command}`", about,
             *(table(title, columns, results) for title, columns in TABLES.items())]
    failed = [f"- {r.name}, {who}: {why.splitlines()[-1] if why else 'no message'}"
              for r in results for who, why in r.failures.items()]
    if failed:
        parts.append("### Failed\n\n" + "\n".join(failed))
    return "\n\n".join(parts) + "\n"


def write(
    folder: Path, results: list[Result], plan: Plan, command: str, notes: dict[str, Any]
) -> tuple[Path, Path]:
    """results.md and results.json in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    text, data = folder / "results.md", folder / "results.json"
    text.write_text(markdown(results, plan, command, notes))
    data.write_text(json.dumps(
        {"command": command, "machine": machine(plan), "notes": notes, "plan": asdict(plan),
         "results": [asdict(r) for r in results]}, indent=1))
    return text, data
