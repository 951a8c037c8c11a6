"""What symbolic sizes cost: kernels for all sizes beside kernels for one, interleaved.

    python -m benchmarks.dynamic_speed [--device cuda] [--only NAME] [--rounds 60] [--torch]

Columns: milliseconds of a call compiled static, compiled after a call of another size (the changed
dimensions symbolic) and with ``dynamic=True`` (all symbolic); then static time / dynamic time for
both, where 1.00 is no cost; on a GPU the same two ratios of the kernels alone (what the profiler
says of the device, without the host's share of a call); and with ``--torch`` those of
torch.compile's calls.
``--clock cpu``: time of one thread (a busy machine).
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch.profiler import ProfilerActivity, profile

import weft
from benchmarks.cases import is_gpu

KERNEL_TURNS = 5
"""Profiles of each function; the first ones of a process are slow."""

Inputs = tuple[Any, ...]
Case = tuple[Callable[..., Any], Callable[[int], Inputs]]
"""A program, and its arguments for a scale (1: as measured, 2: another size)."""


def _rotated(x: torch.Tensor) -> torch.Tensor:
    left, right = x.chunk(2, dim=-1)
    return torch.cat((-right, left), dim=-1)


def _rms_rotary(x: Any, w: Any, cos: Any, sin: Any) -> torch.Tensor:
    normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w
    heads = normed.view(*x.shape[:-1], -1, cos.shape[-1])
    return heads * cos + _rotated(heads) * sin


def cases(device: str) -> dict[str, Case]:
    """The micro cases: length, rows or batch vary."""
    big = 8 if is_gpu(device) else 1

    def rand(*size: int) -> torch.Tensor:
        return torch.randn(*size, device=device)

    weight, bias, wide = rand(1024), rand(1024), rand(64)
    labels = torch.randint(0, 8000, (2048 * big,), device=device)
    return {
        "mean over a length": (lambda x: x.mean(dim=1), lambda s: (rand(16 * big, 256 * s, 256),)),
        "mean over rows": (lambda x: x.mean(dim=1), lambda s: (rand(1024 * big, 1024 * s),)),
        "softmax": (lambda x: x.softmax(-1), lambda s: (rand(1024 * big, 1024 * s),)),
        "layer norm, GELU": (
            lambda x, r, w, b: F.gelu(F.layer_norm(x + r, (x.shape[-1],), w, b)),
            lambda s: (rand(1024 * s * big, 1024), rand(1024 * s * big, 1024), weight, bias)),
        "RMS norm, rotary": (
            _rms_rotary,
            lambda s: (rand(2 * big, 256 * s, 1024), weight, rand(256 * s, 1, 64),
                       rand(256 * s, 1, 64))),
        "cross-entropy": (
            F.cross_entropy,
            lambda s: (rand(256 * s * big, 8000), labels[: 256 * s * big])),
        "attention": (
            lambda q, k, v: (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1) @ v,
            lambda s: (rand(4 * big, 8, 128 * s, 64), rand(4 * big, 8, 128 * s, 64),
                       rand(4 * big, 8, 128 * s, 64))),
        "pointwise": (
            lambda x, y: (x.relu() + x.sigmoid()) * y.tanh() - x * 0.5,
            lambda s: (rand(1024 * big, 1024 * s), rand(1024 * big, 1024 * s))),
        "broadcast add": (
            lambda x, y, w: (x + y[:, None]) * w,
            lambda s: (rand(64 * big, 128 * s, 64), rand(64 * big, 64), wide)),
        "cat, relu": (
            lambda x, y: torch.cat([x, y], 1).relu(),
            lambda s: (rand(512 * big, 512 * s), rand(512 * big, 300 * s))),
        "transpose, add": (
            lambda x, y: x.t() + y,
            lambda s: (rand(1024 * s, 1024 * big), rand(1024 * big, 1024 * s))),
        "sum to rows": (lambda x: x.sum(0), lambda s: (rand(1024 * s * big, 1024),)),
        "batch norm, relu": (
            lambda x, w, b: F.batch_norm(x, w.abs(), w.abs(), w, b).relu(),
            lambda s: (rand(8 * s * big, 64, 28, 28), wide, wide)),
        "pad, add": (
            lambda x: F.pad(x, (1, 1, 1, 1)) + 1,
            lambda s: (rand(16 * big, 16, 32 * s, 64),)),
    }


def _bert(device: str) -> Case:
    import transformers

    config = transformers.BertConfig(num_hidden_layers=4)
    model = transformers.BertModel(config).eval().to(device)
    return (lambda ids: model(ids).last_hidden_state,
            lambda s: (torch.randint(0, 30000, (2, 128 * s), device=device),))


def _variants(case: Case, compiler: Callable[..., Any]) -> Iterator[Callable[[], Any]]:
    """The program for these sizes only, for the sizes that changed, and for all."""
    program, make = case
    args = make(1)
    for settings, calls in (({"dynamic": False}, [args]), ({}, [make(2), args]),
                            ({"dynamic": True}, [make(2), args])):
        def own(*given: Any) -> Any:  # torch.compile keeps one cache per code object
            return program(*given)

        compiled = compiler(own, **settings)
        for call in calls:
            compiled(*call)
        yield lambda compiled=compiled: compiled(*args)


def _turns(count: int, rounds: int) -> Iterator[int]:
    """The numbers of all functions in each round, which another one begins."""
    for turn in range(rounds):
        for index in range(count):
            yield (index + turn) % count


def _seconds(
    functions: list[Callable[[], Any]], rounds: int, device: str, clock: Callable[[], float]
) -> list[float]:
    """Median seconds of a call of each, their calls taking turns."""
    sync = torch.cuda.synchronize if is_gpu(device) else lambda: None
    times: list[list[float]] = [[] for _ in functions]
    for at in _turns(len(functions), rounds):
        sync()
        start = clock()
        functions[at]()
        sync()
        times[at].append(clock() - start)
    return [statistics.median(values[len(values) // 10:]) for values in times]


def _kernel_seconds(functions: list[Callable[[], Any]], rounds: int) -> list[float]:
    """Median seconds that a GPU works for a call of each, some calls at a time taking turns."""
    times: list[list[float]] = [[] for _ in functions]
    for at in _turns(len(functions), KERNEL_TURNS):
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as profiler:
            for _ in range(rounds):
                functions[at]()
            torch.cuda.synchronize()
        micros = sum(event.self_device_time_total for event in profiler.key_averages())
        times[at].append(micros / 1e6 / rounds)
    return [statistics.median(values) for values in times]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--torch", action="store_true", help="torch.compile's ratio too")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall")
    arguments = parser.parse_args()
    clock = time.perf_counter
    if arguments.clock == "cpu":
        clock = time.thread_time
        torch.set_num_threads(1)
    chosen: dict[str, Case] = {**cases(arguments.device), "BERT": _bert(arguments.device)}
    print(f"{'case':22} {'static ms':>10} {'changed':>9} {'all':>9} {'ratio':>7} {'ratio':>7}")
    ratios: list[float] = []
    kernel_ratios: list[float] = []
    with torch.no_grad():
        for name, case in chosen.items():
            if arguments.only not in name:
                continue
            weft.reset()
            functions = list(_variants(case, weft.compile))
            fixed, changed, every = _seconds(
                functions, arguments.rounds, arguments.device, clock)
            ratios += [fixed / changed, fixed / every]
            text = (f"{name:22} {1e3 * fixed:10.4f} {1e3 * changed:9.4f} {1e3 * every:9.4f} "
                    f"{fixed / changed:7.2f} {fixed / every:7.2f}")
            if is_gpu(arguments.device):
                own = _kernel_seconds(functions, arguments.rounds // 2)
                kernel_ratios += [own[0] / own[1], own[0] / own[2]]
                text += (f"   kernels {1e6 * own[0]:6.2f} us "
                         f"{own[0] / own[1]:.2f} {own[0] / own[2]:.2f}")
            if arguments.torch:
                torch._dynamo.reset()
                peer = _seconds(
                    list(_variants(case, torch.compile)), arguments.rounds, arguments.device, clock)
                text += f"   torch {peer[0] / peer[1]:.2f} {peer[0] / peer[2]:.2f}"
            print(text, flush=True)
    for what, values in (("call", ratios), ("kernels", kernel_ratios)):
        if values:
            mean = statistics.geometric_mean(values)
            print(f"{what}: least ratio {min(values):.2f}, geometric mean {mean:.2f}")


if __name__ == "__main__":
    main()
