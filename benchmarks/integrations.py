"""What compiles of programs of libraries, by torch.compile and with weft in its place.

    python -m benchmarks.integrations                 # print the table
    python -m benchmarks.integrations --write         # and put it into docs/using/integrations.md
    python -m benchmarks.integrations --only pyro     # programs whose library or text has "pyro"

Each program (`benchmarks.integration_programs`) runs a few steps in a process of its own with empty
caches, without and with compilation. Needs the extra `integrations`; programs of libraries that are
not there keep the line that the page has for them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

import torch

import weft
from benchmarks.integration_programs import PROGRAMS, Step

PAGE: Final = Path(__file__).parent.parent / "docs" / "using" / "integrations.md"
_TABLE: Final = re.compile(r"(<!-- integrations -->\n).*?(<!-- end of integrations -->)", re.DOTALL)
_HEAD: Final = ("| library | program | | graphs | breaks | recompiles | largest difference |\n"
                "|---|---|---|---|---|---|---|\n")
_STEPS: Final = 4
_SECONDS: Final = 900


def _counts(compiler: str) -> list[int]:
    """Graphs, breaks and recompiles so far."""
    if compiler == "weft":
        counted = weft.stats()
        return [counted["graphs"], counted["graph_breaks"], counted["recompiles"]]
    from torch._dynamo import utils
    again = [m for m in utils.get_compilation_metrics() if m.recompile_reason is not None]
    return [utils.counters["stats"]["unique_graphs"],
            sum(utils.counters["graph_break"].values()), len(again)]


def _run(name: tuple[str, str], compiler: str) -> None:
    """Run one program with a compiler, and print its counts and its difference from eager."""
    expected = _steps(PROGRAMS[name](compiled=False))
    if compiler == "weft":
        weft.install()
    result = _steps(PROGRAMS[name](compiled=True))
    difference = max(abs(a - b) / max(1.0, abs(a)) for a, b in zip(expected, result, strict=True))
    print(json.dumps([*_counts(compiler), difference]))


def _steps(step: Step) -> list[float]:
    numbers = []
    for _ in range(_STEPS):
        torch.manual_seed(0)
        numbers += step()
    return numbers


def _measured(name: tuple[str, str], compiler: str) -> list[str]:
    """The cells of one program and compiler: counts, difference, or what went wrong."""
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {
            "WEFT_CACHE_DIR": cache, "TORCHINDUCTOR_CACHE_DIR": cache, "OMP_NUM_THREADS": "1"}
        try:
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.integrations", "--run", *name, compiler],
                env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            return [f"more than {_SECONDS} s", "", "", ""]
    if done.returncode:
        print(done.stderr[-2000:], file=sys.stderr)
        return ["an error", "", "", ""]
    *counts, difference = json.loads(done.stdout.splitlines()[-1])
    return [*map(str, counts), "0" if difference == 0 else f"{difference:.0e}"]


def _row(name: tuple[str, str], compiler: str) -> str:
    return "| " + " | ".join([*name, compiler, *_measured(name, compiler)]) + " |\n"


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.integrations")
    parser.add_argument("--run", nargs=3, metavar=("LIBRARY", "PROGRAM", "COMPILER"))
    parser.add_argument("--only", default="")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    if arguments.run:
        *name, compiler = arguments.run
        _run((name[0], name[1]), compiler)
        return
    known = dict.fromkeys(line + "\n" for line in _table(PAGE.read_text()).splitlines()[2:])
    rows = {tuple(row.split(" | ")[:3]): row for row in known}
    for name in PROGRAMS:
        if arguments.only in " ".join(name):
            for compiler in ("weft", "torch.compile"):
                row = _row(name, compiler)
                rows[tuple(row.split(" | ")[:3])] = row
                print(row, end="", flush=True)
    if arguments.write:
        order = [(f"| {library}", program) for library, program in PROGRAMS]
        table = _HEAD + "".join(row for _, row in sorted(
            rows.items(), key=lambda item: order.index((item[0][0], item[0][1]))))
        PAGE.write_text(_TABLE.sub(lambda m: m[1] + table + m[2], PAGE.read_text()))


def _table(page: str) -> str:
    """The table that the page has, without its markers."""
    match = _TABLE.search(page)
    return "" if match is None else match[0].removeprefix(match[1]).removesuffix(match[2])


if __name__ == "__main__":
    main()
