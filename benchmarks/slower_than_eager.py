"""What is slower than eager, or needs more memory: a generated sweep of calls on CPUs.

    python -m benchmarks.slower_than_eager --jobs 2                    # all cases: hours
    python -m benchmarks.slower_than_eager --short                     # every 40th
    python -m benchmarks.slower_than_eager --only call:,operator:cat   # beginnings of names
    python -m benchmarks.record slower-than-eager -- slower_than_eager --jobs 2

Operators of op_db in three sizes, blocks, and kinds of calls (`eager_cases.py`); inference and
training; float32 and bfloat16. Both take turns in one process, on one thread, by its processor
time, and the median ratio of the rounds counts. A case that seems slower is measured again, with
more rounds. Cases run in processes of their own, some dozens in each, so that a crash is a row.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import geometric_mean
from typing import Any, Final

SLOW: Final = (1.05, 1.2, 1.5)
BRIEF: Final = 50.0
"""Microseconds below which a call's fixed cost counts."""
MORE_MEMORY: Final = 1.05
ROUNDS: Final = 9
MORE_ROUNDS: Final = 31
SAMPLE_SECONDS: Final = 0.0015
TOLD: Final = 60
TOGETHER: Final = 30
MOST_SECONDS: Final = 120.0
RESULT: Final = "row: "
Row = dict[str, Any]


# -- one case --------------------------------------------------------------------------------------


def thunk(case: Any, function: Callable[..., Any], train: bool) -> Callable[[], Any]:
    """One call, with gradients into the arguments if it trains."""
    import torch

    if not train:
        def infer() -> Any:
            with torch.no_grad():
                return function(*case.args, **case.kwargs)

        return infer
    inputs = case.gradient_inputs()

    def step() -> Any:
        for t in inputs:
            t.grad = None
        results = differentiable(function(*case.args, **case.kwargs))
        torch.autograd.backward(results, tangents)
        return results

    results = differentiable(function(*case.args, **case.kwargs))
    tangents = [torch.ones_like(t) for t in results]
    return step


def differentiable(result: Any) -> list[Any]:
    """The tensors in a result that have a gradient; a small call's time should be the call's."""
    import torch

    from weft.diagnostics.accuracy import tensors

    if isinstance(result, torch.Tensor):
        return [result]
    return [t for t in tensors(result) if t.requires_grad]


def measure(name: str) -> Row | None:
    """The row of a case; None if eager refuses it."""
    import torch

    import weft
    from benchmarks.eager_cases import build
    from weft.diagnostics.memory import peak_memory

    case = build(name)
    if case is None:
        return None
    train = name.endswith(":training")
    weft.reset()
    try:
        eager = thunk(case, case.function, train)
        eager()
    except (RuntimeError, NotImplementedError):
        return None
    start = time.perf_counter()
    compiled = thunk(case, weft.compile(case.function), train)
    compiled()
    first = time.perf_counter() - start
    calls = {"weft": compiled, "eager": eager}
    seconds, ratio = _compared(calls)
    peaks = {compiler: peak_memory(call, "cpu") for compiler, call in calls.items()}
    return {
        "name": name, "ratio": ratio, "first": round(first, 2),
        "us": {compiler: round(1e6 * s, 2) for compiler, s in seconds.items()}, "bytes": peaks,
        "threads": torch.get_num_threads(),
    }


def _compared(calls: dict[str, Callable[[], Any]]) -> tuple[dict[str, float], float]:
    """Seconds of both, and weft's part of eager's; measured again while it seems too much."""
    from weft.diagnostics.timing import interleaved, ratio

    for rounds in (ROUNDS, MORE_ROUNDS, MORE_ROUNDS):
        times = interleaved(calls, rounds=rounds, sample_seconds=SAMPLE_SECONDS, budget_seconds=4,
                            clock=time.thread_time)
        part = ratio(times, "weft", "eager")
        if part <= SLOW[0]:
            break
    return {compiler: t.median for compiler, t in times.items()}, round(part, 3)


def worker(names: Iterable[str]) -> None:
    """Measure these cases, and print a row for each."""
    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for name in names:
        print(RESULT + json.dumps({"name": name, "began": True}), flush=True)
        try:
            row = measure(name)
        except Exception as error:  # a case that fails is a row
            row = {"name": name, "error": f"{type(error).__name__}: {error}"[:200]}
        print(RESULT + json.dumps(row or {"name": name, "refused": True}), flush=True)


# -- the coordinator -------------------------------------------------------------------------------


def chosen(only: str, every: int) -> list[str]:
    """The names of the cases to be measured, those that belong together far apart."""
    from benchmarks.eager_cases import names

    return [name for name in names() if name.startswith(tuple(only.split(",")))][::every]


def run_all(cases: Sequence[str], jobs: int) -> list[Row]:
    """The rows of all cases, by `jobs` processes at a time."""
    shares = [cases[i : i + TOGETHER] for i in range(0, len(cases), TOGETHER)]
    with tempfile.TemporaryDirectory(prefix="weft-slower-") as folder, \
            ThreadPoolExecutor(jobs) as pool:
        return list(itertools.chain.from_iterable(
            pool.map(lambda share: list(run_share(share, folder)), shares)))


def run_share(cases: Sequence[str], folder: str) -> Iterator[Row]:
    """The rows of some cases; what ends the process is the row of its case, and the rest go on."""
    while cases:
        rows, reason = _in_a_process(cases, folder)
        yield from (row for row in rows if "began" not in row)
        done = len(rows) // 2
        if reason and done < len(cases):
            yield _told({"name": cases[done], "error": reason})
            done += 1
        cases = cases[done:] if reason else ()


def _in_a_process(cases: Sequence[str], folder: str) -> tuple[list[Row], str]:
    """The rows that a process printed, and why it ended early."""
    command = [sys.executable, "-m", "benchmarks.slower_than_eager", "--worker", *cases]
    rows: list[Row] = []
    environment = {**os.environ, "WEFT_CACHE_DIR": folder, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                          env=environment) as process:
        assert process.stdout is not None
        watch = _Watch(process)
        for line in process.stdout:
            watch.wind()
            if line.startswith(RESULT):
                rows.append(json.loads(line.removeprefix(RESULT)))
                if "began" not in rows[-1]:
                    _told(rows[-1])
        watch.stop()
    status = process.returncode
    reason = watch.reason or (f"the process ended with {status}" if status else "")
    return rows, reason


class _Watch:
    """Ends a process that prints nothing for too long."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.reason = ""
        self.wind()

    def wind(self) -> None:
        """Begin anew."""
        self.stop()
        self.timer = threading.Timer(MOST_SECONDS, self._end)
        self.timer.start()

    def stop(self) -> None:
        """Watch no longer."""
        if hasattr(self, "timer"):
            self.timer.cancel()

    def _end(self) -> None:
        self.reason = f"no result in {MOST_SECONDS:.0f} s"
        self.process.kill()


def _told(row: Row) -> Row:
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


# -- the report ------------------------------------------------------------------------------------


def report(rows: Sequence[Row]) -> str:
    """Counts, geometric means, and the worst cases."""
    measured = [row for row in rows if "ratio" in row]
    lines = ["| cases | number | mean | " + " | ".join(f"> {limit}" for limit in SLOW) + " |",
             "|---" * (3 + len(SLOW)) + "|"]
    lines += [_counts(name, group) for name, group in _groups(measured) if group]
    worst = sorted(measured, key=lambda row: -row["ratio"])
    lines += ["", "| slowest | weft / eager | weft µs | eager µs |", "|---|---|---|---|"]
    lines += [f"| {r['name']} | {r['ratio']:.2f} | {r['us']['weft']:.1f} | {r['us']['eager']:.1f} |"
              for r in worst[:TOLD] if r["ratio"] > SLOW[1]]
    larger = [row for row in measured if _memory(row) > MORE_MEMORY]
    lines += ["", f"more memory than {MORE_MEMORY} of eager's: {len(larger)}"]
    lines += [f"{row['name']}: {_memory(row):.2f} of {row['bytes']['eager']} bytes"
              for row in sorted(larger, key=lambda row: -_memory(row))[:TOLD]]
    failed = [row for row in rows if "error" in row]
    lines += [f"failed: {len(failed)}", *(f"{row['name']}: {row['error']}" for row in failed)]
    return "\n".join(lines)


def _groups(rows: Sequence[Row]) -> Iterator[tuple[str, list[Row]]]:
    yield "all", [*rows]
    for part in ("operator:", "block:", "call:", ":small:", ":medium:", ":large:", ":float32:",
                 ":bfloat16:", ":inference", ":training"):
        yield part.strip(":"), [row for row in rows if part in f"{row['name']}"]
    brief = [row for row in rows if row["us"]["eager"] < BRIEF]
    for mode in ("inference", "training"):
        yield f"{mode}, eager < {BRIEF:.0f} µs", [r for r in brief if r["name"].endswith(mode)]


def _counts(name: str, rows: Sequence[Row]) -> str:
    ratios = [row["ratio"] for row in rows]
    slow = [str(sum(r > limit for r in ratios)) for limit in SLOW]
    return f"| {name} | {len(rows)} | {geometric_mean(ratios):.3f} | {' | '.join(slow)} |"


def _memory(row: Row) -> float:
    """Weft's peak as a part of eager's, where a page more or less does not matter."""
    peaks: dict[str, int] = row["bytes"]
    more: int = peaks["weft"] - peaks["eager"]
    return 1.0 if more <= 4096 else peaks["weft"] / max(peaks["eager"], 1)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="beginnings of names, separated by commas")
    parser.add_argument("--every", type=int, default=1, help="every n-th case")
    parser.add_argument("--short", action="store_true", help="every 40th case")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--worker", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker is not None:
        worker(options.worker)
        return 0
    rows = run_all(chosen(options.only, 40 if options.short else options.every), options.jobs)
    print(report(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
