"""``python -m benchmarks.warm_start``: the first call of a process, by what earlier ones have left.

Each first call is in a process of its own, for eager, torch.compile and weft (entries on disk):

- cold: with empty caches;
- warm: a second process with the same caches;
- elsewhere: the caches copied, for a copy of the sources in another folder and another home.

The model has run eagerly before. Seconds are from `compile` to the end of the first call, and what
the second call takes. weft's own
stages are listed beside; entries that were not kept say why::

    python -m benchmarks.warm_start --models bert,bert-training
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, Final

from rich.console import Console
from rich.table import Table

import weft
from benchmarks.runner import ROOT, WorkerFailed
from benchmarks.worker import COMPILERS, build
from weft.diagnostics import events
from weft.diagnostics.accuracy import relative_error, tensors
from weft.diagnostics.timing import seconds, waiter

MODELS: Final = "bert,llama,resnet50,bert-training"
SITUATIONS: Final = ("cold", "warm", "elsewhere")
STAGES: Final = {
    "load": ("load",),
    "capture": ("capture", "guards"),
    "aot": ("aot", "passes", "partition"),
    "lower": ("lower",),
    "schedule": ("schedule",),
    "compile": ("codegen", "cpp_compile", "triton_compile"),
    "store": ("store",),
}
"""The table's columns, and the stages that each adds up."""

_SOURCES: Final = ("src", "benchmarks")


# -- one process -----------------------------------------------------------------------------------


def measure(compiler: str, name: str, device: str) -> dict[str, Any]:
    """The first call in this process, and what weft did in it."""
    warnings.simplefilter("ignore")
    work = build(name, device)
    wait = waiter(device)
    expected = [t.detach().clone() for t in tensors(work.bind(work.fn)())]
    wait()
    start = perf_counter()
    call = work.bind(COMPILERS[compiler](work.fn, None))
    actual = tensors(call())
    wait()
    first = perf_counter() - start
    stats = weft.stats()
    return {
        "first": first, "second": seconds(call, 1, wait),
        "error": relative_error([t.detach() for t in actual], expected),
        "stages": stats["compile_seconds"],
        "entries": {kind: stats.get(f"entries_{kind}", 0)
                    for kind in ("loaded", "stored", "not_stored")},
        "reasons": Counter(str(event.reason) for kind in ("not_stored", "not_loaded")
                           for event in events.history(kind)),
    }


# -- all processes ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """A copy of the sources, with a home and caches."""

    sources: Path
    home: Path

    def environ(self) -> dict[str, str]:
        """What a process there sees."""
        caches = self.home / "caches"
        usual = {name: value for name, value in os.environ.items()
                 if name != "PYTHONDONTWRITEBYTECODE"}  # installed packages have byte code
        return {
            **usual, "HOME": str(self.home), "USER": self.home.name,
            "LOGNAME": self.home.name, "TMPDIR": str(self.home),
            "PYTHONPATH": os.pathsep.join(str(self.sources / part) for part in ("src", "")),
            "WEFT_STORE_ENTRIES": "1", "WEFT_CACHE_DIR": str(caches / "weft"),
            "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
            "TRITON_CACHE_DIR": str(caches / "triton"),
            "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error",
        }

    def moved(self, folder: Path) -> Place:
        """Sources and caches copied into a folder, for another user."""
        other = Place(folder / "checkout", folder / "another")
        for part in _SOURCES:
            shutil.copytree(self.sources / part, other.sources / part, dirs_exist_ok=True)
        shutil.rmtree(other.home, ignore_errors=True)
        shutil.copytree(self.home / "caches", other.home / "caches")
        return other


def in_process(place: Place, arguments: list[str], timeout: float) -> dict[str, Any]:
    """What a new process at that place measures."""
    command = [sys.executable, "-m", "benchmarks.warm_start", "--worker", *arguments]
    try:
        done = subprocess.run(command, cwd=place.sources, env=place.environ(), text=True,
                              capture_output=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired as error:
        raise WorkerFailed(f"no result within {timeout:.0f} s") from error
    if done.returncode:
        raise WorkerFailed(done.stderr.strip()[-400:])
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


@dataclass(frozen=True)
class Row:
    """One first call."""

    model: str
    compiler: str
    situation: str
    result: dict[str, Any]

    def stage(self, column: str) -> float:
        """Seconds of a column's stages."""
        return sum(float(self.result["stages"].get(stage, 0)) for stage in STAGES[column])

    def cells(self) -> list[str]:
        """The table's row."""
        own = [f"{self.stage(column):.3f}" if self.compiler == "weft" else "" for column in STAGES]
        entries = self.result["entries"]
        counts = f"{entries['loaded']} / {entries['stored']} / {entries['not_stored']}"
        return [self.model, self.compiler, self.situation, f"{self.result['first']:.2f}",
                f"{self.result['second']:.3f}", *own,
                counts if self.compiler == "weft" else "", f"{self.result['error']:.0e}"]


def rows_of(model: str, compiler: str, options: argparse.Namespace, tell: Console) -> list[Row]:
    """A compiler's first calls of one model; what fails is told and left out."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="weft-warm-") as name:
        place = Place(ROOT, Path(name) / "user")
        place.home.mkdir()
        for situation in SITUATIONS if compiler != "eager" else ("cold",):
            if situation == "elsewhere":
                place = place.moved(Path(name))
            try:
                result = in_process(place, [compiler, model, options.device], options.timeout)
            except WorkerFailed as error:
                tell.print(f"{model}: {compiler}, {situation} failed: {error}")
                break
            rows.append(Row(model, compiler, situation, result))
            tell.print(*rows[-1].cells())
    return rows


def all_rows(options: argparse.Namespace, tell: Console) -> list[Row]:
    """Those of all models, compiler by compiler; none is begun after the budget."""
    rows, end = [], perf_counter() + options.budget
    for compiler in options.compilers.split(","):
        for model in options.models.split(","):
            if perf_counter() < end:
                rows += rows_of(model, compiler, options, tell)
            else:
                tell.print(f"{model}: {compiler} left out")
    order = options.models.split(",")
    return sorted(rows, key=lambda row: order.index(row.model))


def table(rows: list[Row]) -> Table:
    """All first calls."""
    shown = Table("model", "compiler", "caches", "first s", "second s", *STAGES,
                  "loaded / stored / not", "error", box=None, pad_edge=False)
    for row in rows:
        shown.add_row(*row.cells())
    return shown


def summary(rows: list[Row]) -> list[str]:
    """For each model: weft's warm first call beside torch.compile's, and its own time in it."""
    seen = {(row.model, row.compiler, row.situation): row for row in rows}
    lines = []
    for model in dict.fromkeys(row.model for row in rows):
        for situation in SITUATIONS:
            ours = seen.get((model, "weft", situation))
            theirs = seen.get((model, "torch", situation))
            if ours is not None and theirs is not None:
                own = sum(map(ours.stage, STAGES))
                ratio = ours.result["first"] / theirs.result["first"]
                lines.append(f"{model}, {situation}: {ratio:.2f} of torch.compile's first call, "
                             f"{own:.2f} s of weft's own")
    return lines


def reasons(rows: list[Row]) -> list[str]:
    """Why entries were not kept or not used."""
    return [f"{row.model}, {row.situation}: {reason}"
            for row in rows if row.compiler == "weft" for reason in row.result["reasons"]]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=MODELS)
    parser.add_argument("--compilers", default="eager,weft,torch")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds for one process")
    parser.add_argument("--budget", type=float, default=3600.0, help="seconds for everything")
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        print(json.dumps(measure(*options.worker)))
        return 0
    tell = Console(stderr=True, highlight=False, markup=False)
    rows = all_rows(options, tell)
    console = Console(width=150, highlight=False, markup=False)
    console.print(table(rows))
    for line in ["", *summary(rows), *reasons(rows)]:
        console.print(line)
    return 0 if rows else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
