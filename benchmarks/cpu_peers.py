"""Inference on CPUs beside what a user would pick for it: PyTorch, OpenVINO, ONNX Runtime.

    python -m benchmarks.cpu_peers                                  # every model, batch 1 and 4
    python -m benchmarks.cpu_peers --only mobilenet-v2,bert --batches 8
    python -m benchmarks.cpu_peers --peers eager,openvino,weft --rounds 20
    python -m benchmarks.cpu_peers --threads 1 --clock cpu          # on a machine with other work

Each runtime has a process of its own for each model (their pools of threads would disturb each
other), and they measure blocks of calls in turn, so that drift of the machine cancels. The table
has the milliseconds of a call, the fastest of the others, and weft's share of its time. A result
that is not eager's to float32's rounding, a runtime that is not installed or cannot take a model
is said below the table, and does not compete.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any, Final

from benchmarks.peer_models import MODELS
from benchmarks.peers import PEERS
from benchmarks.runner import fresh_caches

ROOT: Final = Path(__file__).resolve().parent.parent
TOLERANCE: Final = 2e-3
"""The largest relative difference from eager's result that is rounding."""
BLOCK_SECONDS: Final = 0.15
MOST_CALLS: Final = 200


@dataclass
class Contender:
    """A runtime's process, and what it measured."""

    name: str
    process: subprocess.Popen[str]
    about: dict[str, Any] = field(default_factory=dict)
    times: list[float] = field(default_factory=list)
    calls: int = 1

    def answer(self) -> Any:
        """What it prints next."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"failed": f"ended with {self.process.wait()}"}

    def measure(self) -> list[float]:
        """The seconds of each call of a block."""
        assert self.process.stdin is not None
        print(self.calls, file=self.process.stdin, flush=True)
        times: list[float] = self.answer()
        return times

    def begin(self) -> None:
        """Wait for its first result, and choose how many calls a block has."""
        self.about = self.answer()
        if self.failure is None:
            seconds = median(self.measure() + self.measure())
            self.calls = max(1, min(MOST_CALLS, round(BLOCK_SECONDS / seconds)))

    @property
    def failure(self) -> str | None:
        """Why it does not compete."""
        if "failed" in self.about:
            return str(self.about["failed"])
        error = self.about["error"]
        return None if error <= TOLERANCE else f"another result, relative error {error:.1e}"

    @property
    def milliseconds(self) -> float:
        return 1000 * median(self.times)


@dataclass(frozen=True)
class Row:
    """One model at one batch size: milliseconds and seconds of the first call by runtime."""

    name: str
    milliseconds: dict[str, float]
    first: dict[str, float]
    failures: dict[str, str]

    @property
    def best(self) -> str | None:
        """The fastest of the others."""
        others = {k: v for k, v in self.milliseconds.items() if k != "weft"}
        return min(others, key=others.__getitem__, default=None)

    @property
    def ratio(self) -> float | None:
        if self.best is None or "weft" not in self.milliseconds:
            return None
        return self.milliseconds["weft"] / self.milliseconds[self.best]


def compare(
    name: str, batch: int, peers: Sequence[str], rounds: int, threads: int, clock: str
) -> Row:
    """Prepare each runtime, one after another, then let them measure in turn."""
    with ExitStack() as stack:
        environment = stack.enter_context(fresh_caches())
        environment["OMP_NUM_THREADS"] = str(threads)
        contenders = []
        for peer in peers:
            arguments = [name, str(batch), peer, str(threads), clock]
            contender = _start(stack, arguments, environment)
            contender.begin()
            contenders.append(contender)
        able = [c for c in contenders if c.failure is None]
        for k in range(rounds):
            for contender in able[k % len(able):] + able[: k % len(able)]:
                contender.times += contender.measure()
        return Row(
            f"{name}, {batch}", {c.name: c.milliseconds for c in able},
            {c.name: c.about["first"] for c in able},
            {c.name: c.failure for c in contenders if c.failure is not None})


def _start(stack: ExitStack, arguments: list[str], environment: dict[str, str]) -> Contender:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.peer_worker", *arguments], cwd=ROOT, env=environment,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    stack.enter_context(process)
    stack.callback(process.kill)
    return Contender(arguments[2], process)


def table(rows: Sequence[Row], peers: Sequence[str]) -> str:
    """All rows as Markdown, the summary, and who did not compete."""
    heads = ["model, batch", *(f"{p} ms" for p in peers), "best other", "weft / best",
             *(f"first {p} s" for p in peers if p != "eager")]
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    for row in rows:
        cells = [row.name, *(_number(row.milliseconds.get(p)) for p in peers), row.best or "",
                 _number(row.ratio), *(_number(row.first.get(p)) for p in peers if p != "eager")]
        lines.append("| " + " | ".join(cells) + " |")
    ratios = [row.ratio for row in rows if row.ratio is not None]
    if ratios:
        lines.append(f"\nweft / best: geometric mean {geometric_mean(ratios):.2f} of {len(ratios)}"
                     f", largest {max(ratios):.2f}\n")
    lines += [f"{row.name}: {peer}: {why}" for row in rows for peer, why in row.failures.items()]
    return "\n".join(lines)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _names(text: str, known: Sequence[str]) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in known]
    if unknown:
        raise argparse.ArgumentTypeError(f"no {unknown}; there are {', '.join(known)}")
    return names


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=lambda t: _names(t, list(MODELS)), default=list(MODELS),
                        help="models, separated by commas")
    parser.add_argument("--peers", type=lambda t: _names(t, list(PEERS)), default=list(PEERS))
    parser.add_argument("--batches", type=lambda t: [int(n) for n in t.split(",")], default=[1, 4])
    parser.add_argument("--rounds", type=int, default=15, help="blocks of each runtime")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--clock", choices=["cpu", "wall"], default="wall",
                        help="cpu: processor time, which other processes do not lengthen")
    options = parser.parse_args(arguments)
    rows = []
    for name in options.only:
        for batch in options.batches:
            rows.append(compare(name, batch, options.peers, options.rounds, options.threads,
                                options.clock))
            print(table(rows[-1:], options.peers), file=sys.stderr, flush=True)
    print(table(rows, options.peers))


if __name__ == "__main__":
    main(sys.argv[1:])
