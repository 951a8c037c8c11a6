"""Measures callables against each other, alternating, so that drift of the machine cancels.

Place in the pipeline: independent; used by `weft demo` and `benchmarks`::

    times = interleaved({"eager": lambda: f(x), "weft": lambda: g(x)})
    times["weft"].median / times["eager"].median

After a warm-up, each round runs every callable once, in turn, and waits for GPU work. Short calls
are repeated within a round until one sample lasts `sample_seconds`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median, quantiles
from time import perf_counter
from typing import Any, final

import torch

Thunk = Callable[[], Any]
Clock = Callable[[], float]


@final
@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds per call; one sample for each round."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.samples)

    @property
    def spread(self) -> float:
        """Interquartile range divided by the median: how much to trust it."""
        if len(self.samples) < 4:
            return 0.0
        low, _, high = quantiles(self.samples, n=4)
        return (high - low) / self.median


def _no_wait() -> None:
    """There is no GPU work to wait for."""


def waiter(device: str) -> Callable[[], None]:
    """A function that waits until a device has done all its work."""
    return torch.cuda.synchronize if device.startswith("cuda") else _no_wait


def seconds(
    call: Thunk, repeat: int = 1, wait: Callable[[], None] = _no_wait, clock: Clock = perf_counter
) -> float:
    """Seconds per call over `repeat` calls."""
    wait()
    start = clock()
    for _ in range(repeat):
        call()
    wait()
    return (clock() - start) / repeat


def _repeats(call: Thunk, wait: Callable[[], None], sample_seconds: float) -> int:
    """How often to call so that a sample is long enough for the clock."""
    once = seconds(call, 1, wait)
    while once < sample_seconds / 20:  # too short to measure alone: warm code is even faster
        n = max(2, int(sample_seconds / 10 / max(once, 1e-9)))
        again = seconds(call, n, wait)
        if again >= once * 0.9:
            once = again
            break
        once = again
    return max(1, round(sample_seconds / max(once, 1e-9)))


def interleaved(
    calls: Mapping[str, Thunk], *, device: str = "cpu", rounds: int = 20, warmup: int = 3,
    sample_seconds: float = 0.002, budget_seconds: float = 20.0, clock: Clock = perf_counter,
) -> dict[str, Timing]:
    """Seconds per call of each, measured in turn for `rounds` rounds or until the budget ends.

    clock: `time.process_time` for CPU time, which other programs disturb less.
    """
    wait = waiter(device)
    for call in calls.values():
        for _ in range(warmup):
            call()
    repeats = {name: _repeats(call, wait, sample_seconds) for name, call in calls.items()}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    end = perf_counter() + budget_seconds
    for done in range(rounds):
        if done >= 3 and perf_counter() > end:
            break
        for name, call in calls.items():
            samples[name].append(seconds(call, repeats[name], wait, clock))
    return {name: Timing(tuple(s)) for name, s in samples.items()}


def ratio(times: Mapping[str, Timing], of: str, to: str) -> float:
    """The time of `of` divided by that of `to`: the median of the ratios of each round."""
    pairs = zip(times[of].samples, times[to].samples, strict=True)
    return median(a / b for a, b in pairs)
