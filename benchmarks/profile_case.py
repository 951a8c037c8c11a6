"""Where the time of a case goes: kernels by time, and the host's share of a call.

    python -m benchmarks.profile_case --device cuda vit gpt2
    python -m benchmarks.profile_case --device cpu --mode default bert --sources

Prints for each case: host time of a call (without waiting), time of a call, the slowest kernels,
and with --sources the call sequence and kernels that weft generated.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

import weft
from benchmarks.cases import all_cases
from weft.diagnostics import events

REPEATS = 20


def main() -> None:
    """Profile each named case."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--mode")
    parser.add_argument("--rows", type=int, default=12)
    parser.add_argument("--sources", action="store_true")
    parser.add_argument("--python", action="store_true", help="cProfile of the host side")
    parser.add_argument("cases", nargs="+")
    arguments = parser.parse_args()
    for name in arguments.cases:
        profile(name, arguments)


def profile(name: str, arguments: argparse.Namespace) -> None:
    """Compile the case, run it, print the tables."""
    work = all_cases()[name].build(arguments.device)
    gradients = contextlib.nullcontext() if work.grad else torch.no_grad()
    with gradients:
        with events.collect() as seen:
            call = work.bind(weft.compile(work.fn, mode=arguments.mode))
            for _ in range(4):
                call()
        if arguments.sources:
            for event in seen:
                if event.kind == "output_code":
                    print(event.source)
        host, whole = _times(call, arguments.device)
        print(f"## {name}: call {whole * 1e3:.3f} ms, host {host * 1e3:.3f} ms, {_counts()}")
        if arguments.python:
            _host_profile(call)
        _kernels(call, arguments)


def _counts() -> str:
    stats = weft.stats()
    return ", ".join(
        f"{k} {stats[k]}" for k in ("graphs", "graph_breaks", "kernels", "extern_calls")
    )


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def _times(call: Callable[[], Any], device: str) -> tuple[float, float]:
    """Median seconds until the call returns, and until its work is done."""
    host, whole = [], []
    for _ in range(REPEATS):
        _wait(device)
        start = time.perf_counter()
        call()
        host.append(time.perf_counter() - start)
        _wait(device)
        whole.append(time.perf_counter() - start)
    return statistics.median(host), statistics.median(whole)


def _kernels(call: Callable[[], Any], arguments: argparse.Namespace) -> None:
    gpu = arguments.device.startswith("cuda")
    kinds = [torch.profiler.ProfilerActivity.CPU]
    kinds += [torch.profiler.ProfilerActivity.CUDA] * gpu
    with torch.profiler.profile(activities=kinds) as result:
        for _ in range(3):
            call()
        _wait(arguments.device)
    key = "self_cuda_time_total" if gpu else "self_cpu_time_total"
    print(
        result.key_averages().table(sort_by=key, row_limit=arguments.rows, max_name_column_width=60)
    )


def _host_profile(call: Callable[[], Any]) -> None:
    import cProfile
    import pstats

    profiler = cProfile.Profile()
    profiler.enable()
    for _ in range(10):
        call()
    profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(15)


if __name__ == "__main__":
    main()
