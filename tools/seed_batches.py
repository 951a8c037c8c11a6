"""Runs a fuzzer's seeds in batches, each in a process of its own, and counts what happened.

Place: below `tools.fuzz_failures` and `tools.fuzz_life`, which say how one seed is tried::

    python -m tools.fuzz_life --seeds 0:2000 --jobs 16

A worker is the same command with `--worker`. It prints a line of JSON after each seed, so that a
seed that crashes or hangs is known: it is reported, and a new process goes on behind it.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, final

Tried = Callable[[int, argparse.Namespace, "Counter[str]"], str]
"""Tries a seed: says what differs, or nothing, and counts what happened in the tally."""

_OWN_OPTIONS: Final = ("seeds", "jobs", "batch", "worker")


def parser(description: str | None) -> argparse.ArgumentParser:
    """A command line with the options that all fuzzers share."""
    options = argparse.ArgumentParser(description=(description or "").split("\n")[0])
    options.add_argument("--seeds", default="0:100", help="first:end")
    options.add_argument("--jobs", type=int, default=1, help="processes at a time")
    options.add_argument("--batch", type=int, default=25, help="seeds of a process")
    options.add_argument("--limit", type=float, default=120,
                         help="seconds for a seed: one that takes longer hangs")
    options.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return options


def main(module: str, options: argparse.Namespace, tried: Tried) -> int:
    """Try all seeds and print a table; the exit status tells whether something differs."""
    first, _, end = options.seeds.partition(":")
    seeds = range(int(first), int(end or int(first) + 1))
    if options.worker:
        return _work(seeds, options, tried)
    command = [sys.executable, "-m", module, "--worker", *_passed_on(options)]
    batches = [seeds[i:i + options.batch] for i in range(0, len(seeds), options.batch)]
    outcomes, tally = Counter[str](), Counter[str]()
    with ThreadPoolExecutor(options.jobs) as pool:
        for results in pool.map(lambda batch: _run(command, batch, options.limit), batches):
            for result in results:
                outcomes[result.outcome] += 1
                tally.update(result.tally)
                if result.problem:
                    print(f"seed {result.seed} {result.outcome}: {result.problem}", flush=True)
    print(_table(len(seeds), outcomes, tally))
    return outcomes["same"] < len(seeds)


def _passed_on(options: argparse.Namespace) -> Iterator[str]:
    for name, value in vars(options).items():
        if name not in _OWN_OPTIONS:
            yield f"--{name}={value}"


def _table(n_seeds: int, outcomes: Counter[str], tally: Counter[str]) -> str:
    rows = [("seeds", n_seeds), *outcomes.most_common(), *tally.most_common()]
    return "\n".join(f"{count:8} {name}" for name, count in rows)


@final
@dataclass(frozen=True, slots=True)
class _Result:
    seed: int
    outcome: str
    problem: str = ""
    tally: dict[str, int] = field(default_factory=dict)


def _work(seeds: range, options: argparse.Namespace, tried: Tried) -> int:
    for seed in seeds:
        faulthandler.dump_traceback_later(0.9 * options.limit)  # where it hangs
        tally = Counter[str]()
        problem = tried(seed, options, tally)
        print(json.dumps([seed, problem, tally]), flush=True)
    return 0


def _run(command: list[str], seeds: range, limit: float) -> list[_Result]:
    """The results of a batch, in as many processes as it takes."""
    results: list[_Result] = []
    while len(results) < len(seeds):
        rest = seeds[len(results):]
        results += _run_until_it_ends([*command, f"--seeds={rest.start}:{rest.stop}"], rest, limit)
    return results


def _run_until_it_ends(command: list[str], seeds: range, limit: float) -> list[_Result]:
    """The results of one process; the last one says how it ended, if it ended too early."""
    results = []
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stderr is not None
    errors: list[str] = []
    reader = threading.Thread(target=lambda: errors.extend(process.stderr or ()))
    reader.start()
    clock = _start_clock(process, limit)
    for line in process.stdout:
        if not line.startswith("["):  # what a program prints
            continue
        clock.cancel()
        seed, problem, tally = json.loads(line)
        results.append(_Result(seed, "differs" if problem else "same", problem, tally))
        clock = _start_clock(process, limit)
    status = process.wait()
    late = not clock.is_alive()
    clock.cancel()
    reader.join()
    if len(results) < len(seeds):
        outcome = "is too late" if late else "crashes"
        shown = errors[:20] if late else errors[-4:]
        problem = f"status {status}; " + "".join(shown).strip()
        results.append(_Result(seeds[len(results)], outcome, problem))
    return results


def _start_clock(process: subprocess.Popen[str], limit: float) -> threading.Timer:
    clock = threading.Timer(limit, process.kill)
    clock.start()
    return clock
