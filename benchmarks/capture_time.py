"""``python -m benchmarks.capture_time``: seconds that the front end takes, `backend="eager"`.

Fresh processes, weft's and torch.compile's in turn. In each: import, run the model eagerly, then
time the first compiled call (cold: everything that the compiler loads itself), a second one after a
reset (loaded), and what an ordinary call takes, which is subtracted::

    python -m benchmarks.capture_time --models bert,resnet50 --rounds 5
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.cases import all_cases

COMPILERS: Final = ("weft", "torch")


def _compile(compiler: str) -> tuple[Callable[..., Any], Callable[[], None]]:
    """The compiler's `compile` and its reset."""
    if compiler == "weft":
        import weft

        return weft.compile, weft.reset
    import torch._dynamo

    return torch.compile, torch._dynamo.reset


def _timed(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def measure(compiler: str, name: str) -> dict[str, float]:
    """Seconds of capture in this process: cold, and again."""
    torch.set_num_threads(1)
    work = all_cases()[name].build("cpu")
    compile_function, reset = _compile(compiler)
    with torch.no_grad():
        eager = work.bind(work.fn)
        eager()
        usual = min(_timed(eager) for _ in range(3))
        cold = _timed(work.bind(compile_function(work.fn, backend="eager"))) - usual
        reset()
        again = _timed(work.bind(compile_function(work.fn, backend="eager"))) - usual
    return {"cold": cold, "again": again}


def _in_fresh_process(compiler: str, name: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.capture_time", "--worker", compiler, "--models",
               name]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="bert,resnet50,gpt2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worker", choices=COMPILERS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    names = options.models.split(",")
    if options.worker:
        print(json.dumps(measure(options.worker, names[0])))
        return 0
    table = Table("model", "capture", "weft s", "torch.compile s", "ratio", box=None)
    for name in names:
        seen: dict[str, list[dict[str, float]]] = {c: [] for c in COMPILERS}
        for _ in range(options.rounds):
            for compiler in COMPILERS:
                seen[compiler].append(_in_fresh_process(compiler, name))
        for kind in ("cold", "again"):
            ours, theirs = (statistics.median(r[kind] for r in seen[c]) for c in COMPILERS)
            table.add_row(name, kind, f"{ours:.3f}", f"{theirs:.3f}", f"{ours / theirs:.2f}")
    Console(width=100).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
