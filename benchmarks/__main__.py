"""``python -m benchmarks``: choose cases, run them, write the report."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from benchmarks import report
from benchmarks.cases import Case, all_cases, is_gpu
from benchmarks.runner import Plan, Result, run_case
from weft.diagnostics.timing import interleaved

QUICK = ("bert", "resnet50", "mlp-norms", "pointwise", "softmax", "norm-gelu", "rms-rotary",
         "add-one", "linear-relu-200")


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="cases:\n" + "\n".join(f"  {c.name:20} {c.about}" for c in all_cases().values()))
    parser.add_argument("cases", nargs="*", help="names or kinds (model, training, micro, "
                        "overhead); all without")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compilers", default="eager,torch,weft")
    parser.add_argument("--mode", help="mode= of both compilers")
    parser.add_argument("--quick", action="store_true", help="a few cases, fewer rounds")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--budget", type=float, default=15.0, help="seconds of measuring a case")
    parser.add_argument("--threads", type=int, default=0, help="of torch; 0: its default")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds for one worker")
    parser.add_argument("--no-warm", action="store_true", help="leave out warm first calls")
    parser.add_argument("--no-first", action="store_true", help="leave out first calls and memory")
    parser.add_argument("--clock", choices=["wall", "cpu"], default="wall",
                        help="cpu: the process's own time (a busy machine, one thread)")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    return parser.parse_args(arguments)


def chosen(names: list[str], quick: bool) -> list[Case]:
    """Cases by name or kind, in the registry's order."""
    known = all_cases()
    kinds = {c.kind for c in known.values()}
    unknown = [n for n in names if n not in known and n not in kinds]
    if unknown:
        raise SystemExit(f"no case named {', '.join(unknown)}; there are {', '.join(known)}")
    wanted = set(names) or set(QUICK if quick else known)
    return [c for c in known.values() if c.name in wanted or c.kind in wanted]


def copy_bandwidth(device: str) -> float | None:
    """TB/s of a copy on the GPU: the limit for memory-bound work."""
    if not is_gpu(device):
        return None
    source = torch.empty(2**30, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    times = interleaved({"copy": lambda: target.copy_(source)}, device=device,
                        sample_seconds=0.02)
    return round(2 * source.numel() / times["copy"].median / 1e12, 2)


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    console = Console(stderr=True, highlight=False)
    plan = Plan(
        device=options.device, compilers=tuple(options.compilers.split(",")), mode=options.mode,
        rounds=8 if options.quick else options.rounds,
        budget=5.0 if options.quick else options.budget, threads=options.threads,
        timeout=options.timeout, warm=not options.no_warm, clock=options.clock,
        first=not options.no_first)
    notes: dict[str, Any] = {"copy TB/s": copy_bandwidth(plan.device)}
    command = " ".join(["python -m benchmarks", *arguments])
    results: list[Result] = []
    for one in chosen(options.cases, options.quick):
        with console.status(one.name) as status:
            results.append(run_case(one.name, one.kind, plan, status.update))
        console.print(f"done: {one.name}", *results[-1].failures)
        report.write(options.out, results, plan, command, notes)  # what is done is kept
    print(report.markdown(results, plan, command, notes))
    return 1 if any(r.failures for r in results) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
