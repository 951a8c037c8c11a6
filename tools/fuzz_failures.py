"""Random programs that draw, write, guess and fail: compiled, they leave what eager leaves.

    python -m tools.fuzz_failures --seeds 0:2000 --jobs 16 [--backend eager,inductor] [--show=1]

Each seed writes a program (`tests/capture/failing_programs.py`), which is called six times, eagerly
and compiled, from equal states. After each call all that a program can see is compared. `--show=1`
prints the programs that differ.
"""

from __future__ import annotations

import argparse
import warnings
from collections import Counter

import weft
from tests.capture.failing_programs import Program, difference
from tools import seed_batches


def _try(seed: int, options: argparse.Namespace, tally: Counter[str]) -> str:
    problems = []
    for backend in options.backend.split(","):
        try:
            problem = difference(seed, backend)
        except Exception as error:  # noqa: BLE001  a failure inside weft is reported as well
            problem = f"{type(error).__name__}: {error}"
        tally[f"graphs of {backend}"] += weft.stats()["graphs"]
        tally[f"differ with {backend}"] += bool(problem)
        if problem:
            problems.append(f"{backend}: {problem[:400]}")
    if problems and options.show:
        problems.append(Program(seed).source())
    return "\n".join(problems)


def main() -> int:
    """The command line; the exit status tells whether a seed differs."""
    parser = seed_batches.parser(__doc__)
    parser.add_argument("--backend", default="eager", help="names, with commas between")
    parser.add_argument("--show", type=int, default=0, help="print the programs")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    with weft.config.patch(fallback_random=True, suppress_errors=False):
        return seed_batches.main("tools.fuzz_failures", options, _try)


if __name__ == "__main__":
    raise SystemExit(main())
