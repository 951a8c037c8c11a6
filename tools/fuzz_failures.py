"""Random programs that draw, write, guess and fail: compiled, they leave what eager leaves.

    python -m tools.fuzz_failures --seeds 0-2000 [--backend eager,inductor] [--show]

Each seed writes a program (`tests/capture/failing_programs.py`), which is called six times, eagerly
and compiled, from equal states. After each call all that a program can see is compared. `--show`
prints the programs.
"""

from __future__ import annotations

import argparse
import warnings

import weft
from tests.capture.failing_programs import Program, run_seeds


def main() -> int:
    """Try the seeds; the exit status tells whether one differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="0-100", help="first-last")
    parser.add_argument("--backend", default="eager", help="names, with commas between")
    parser.add_argument("--show", action="store_true", help="print the programs")
    options = parser.parse_args()
    first, _, last = options.seeds.partition("-")
    seeds = range(int(first), int(last or int(first) + 1))
    warnings.simplefilter("ignore")
    for seed in seeds if options.show else ():
        print(Program(seed).source())
    backends = tuple(options.backend.split(","))
    with weft.config.patch(fallback_random=True, suppress_errors=False):
        wrong = run_seeds(seeds, backends, lambda text: print(text, flush=True))
    print(f"{wrong} of {len(seeds) * len(backends)} differ")
    return wrong > 0


if __name__ == "__main__":
    raise SystemExit(main())
