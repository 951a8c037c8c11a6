"""One measurement in a process of its own; prints its result as the last line, in JSON.

    python -m benchmarks.worker first bert weft cpu
    python -m benchmarks.worker steady bert eager,torch,weft cpu --rounds 20

``first``: seconds of the first call and peak memory of the later ones. ``steady``: seconds per call
of all compilers, alternating, and their numerical error against float64.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections.abc import Callable
from time import perf_counter, process_time
from typing import Any

import torch

import weft
from benchmarks.cases import Workload, all_cases, is_gpu
from weft.diagnostics.accuracy import as_float64, relative_error, tensors
from weft.diagnostics.memory import peak_memory
from weft.diagnostics.timing import Clock, interleaved, ratio, waiter

Compiler = Callable[[Callable[..., Any], str | None], Callable[..., Any]]

COMPILERS: dict[str, Compiler] = {
    "eager": lambda fn, mode: fn,
    "torch": lambda fn, mode: torch.compile(fn, mode=mode),
    "weft": lambda fn, mode: weft.compile(fn, mode=mode),
}
CLOCKS: dict[str, Clock] = {"wall": perf_counter, "cpu": process_time}
SEED = 1234


def build(name: str, device: str) -> Workload:
    """The case's workload: the same in every process."""
    torch.manual_seed(SEED)
    work = all_cases()[name].build(device)
    torch.set_grad_enabled(work.grad)
    return work


# -- numerical error -----------------------------------------------------------------------------


def reference(work: Workload) -> list[torch.Tensor] | None:
    """The result in float64, or None where the workload builds its own step."""
    if work.step is not None:
        return None
    wide = Workload(as_float64(work.fn), as_float64(work.args), as_float64(dict(work.kwargs)),
                    grad=work.grad)
    try:
        return [t.detach() for t in tensors(wide.bind(wide.fn)())]
    except RuntimeError:  # an operator without float64
        return None


def errors_of(work: Workload, calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Each compiler's error; against eager where there is no float64 result."""
    results = {name: [t.detach().clone() for t in tensors(call())] for name, call in calls.items()}
    expected = reference(work) or results["eager"]
    return {name: relative_error(result, expected) for name, result in results.items()}


# -- the two measurements ------------------------------------------------------------------------


def first(name: str, compiler: str, device: str, mode: str | None) -> dict[str, Any]:
    """Seconds from `compile` to the end of the first call, and memory of later ones."""
    work = build(name, device)
    wait = waiter(device)
    if is_gpu(device):
        (torch.ones(64, 64, device=device) @ torch.ones(64, 64, device=device)).sum().item()
    wait()
    start = perf_counter()
    call = work.bind(COMPILERS[compiler](work.fn, mode))
    call()
    wait()
    seconds = perf_counter() - start
    call()
    result: dict[str, Any] = {"first_call": seconds, "peak_memory": peak_memory(call, device)}
    if compiler == "weft":
        result["stats"] = weft.stats()
    return result


def steady(
    name: str, compilers: list[str], device: str, mode: str | None, rounds: int, budget: float,
    clock: Clock,
) -> dict[str, Any]:
    """Seconds per call of each compiler, in turn, and errors."""
    work = build(name, device)
    calls = {c: work.bind(COMPILERS[c](work.fn, mode)) for c in compilers}
    for call in calls.values():
        call()
        call()
    errors = errors_of(work, calls)
    times = interleaved(calls, device=device, rounds=rounds, budget_seconds=budget,
                        sample_seconds=0.02 if is_gpu(device) else 0.005, clock=clock)
    return {
        "median": {c: t.median for c, t in times.items()},
        "spread": {c: t.spread for c, t in times.items()},
        "ratio_to_eager": {c: ratio(times, c, "eager") for c in compilers},
        "ratio_to_torch": {c: ratio(times, c, "torch") for c in compilers if "torch" in times},
        "error": errors,
        "min_bytes": work.min_bytes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["first", "steady"])
    parser.add_argument("case")
    parser.add_argument("compilers")
    parser.add_argument("device")
    parser.add_argument("--mode")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--budget", type=float, default=15.0)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--clock", choices=sorted(CLOCKS), default="wall")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.what == "first":
        result = first(options.case, options.compilers, options.device, options.mode)
    else:
        result = steady(options.case, options.compilers.split(","), options.device, options.mode,
                        options.rounds, options.budget, CLOCKS[options.clock])
    print(json.dumps(result))


if __name__ == "__main__":
    main()
