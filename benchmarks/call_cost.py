"""``python -m benchmarks.call_cost``: microseconds of a call beyond its arithmetic.

Eager, torch.compile and weft, interleaved in one process on one thread, tensors of a few elements.
Rows "guards" run with a backend that computes nothing, so that what is left is checking that the
compiled code still fits, and getting to it and back. The least of all rounds counts: what other
programs take of the machine only adds::

    python -m benchmarks.call_cost --rounds 40
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import weft
from weft.diagnostics.timing import interleaved

Call = Callable[[], Any]


def _layers(n: int) -> nn.Module:
    """n x (Linear, ReLU): 2 n parameters."""
    return nn.Sequential(*[m for _ in range(n) for m in (nn.Linear(8, 8), nn.ReLU())]).eval()


def _three(fn: Callable[..., Any], *args: Any) -> dict[str, Call]:
    """The call eagerly and through both compilers, compiled already."""
    calls: dict[str, Call] = {"eager": lambda: fn(*args)}
    for name, made in (("torch.compile", torch.compile(fn)), ("weft", weft.compile(fn))):
        calls[name] = lambda made=made: made(*args)
    return _warm(calls)


def _guards_only(fn: Callable[..., Any], *calls_args: tuple[Any, ...], **options: Any
                 ) -> dict[str, Call]:
    """Both compilers with a backend that gives one prepared result."""
    with torch.no_grad():
        result = [fn(*calls_args[-1])]

    def backend(gm: Any, inputs: Any) -> Callable[..., Any]:
        return lambda *args: result

    calls: dict[str, Call] = {}
    for name, compiler in (("torch.compile", torch.compile), ("weft", weft.compile)):
        made = compiler(fn, backend=backend, **options)
        for args in calls_args[:-1]:
            made(*args)
        calls[name] = lambda made=made: made(*calls_args[-1])
    return _warm(calls)


def _warm(calls: dict[str, Call]) -> dict[str, Call]:
    for call in calls.values():
        for _ in range(3):
            call()
    return calls


def cases() -> Iterator[tuple[str, dict[str, Call]]]:
    """A name and what is timed; made one after the other, since modes are set around them."""
    x, rows = torch.randn(4), torch.randn(2, 8)
    with torch.no_grad():
        yield "x + 1", _three(lambda x: x + 1, x)
        yield "24 x (Linear 8, ReLU)", _three(_layers(24), rows)
        yield "guards, 4 parameters", _guards_only(_layers(2), (rows,))
        yield "guards, 400 parameters", _guards_only(_layers(200), (rows,))
        sizes = [(torch.randn(n, 8),) for n in (3, 5, 7)]
        yield "guards, symbolic size", _guards_only(lambda x: x.sum(0) * x.shape[0], *sizes)
    yield "x + 1, requires grad", _three(lambda x: x + 1, x.clone().requires_grad_())
    yield "24 x (Linear 8, ReLU), requires grad", _three(_layers(24), rows)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    table = Table("call", "eager µs", "torch.compile µs", "weft µs", "weft / torch.compile",
                  box=None)
    for name, calls in cases():
        times = interleaved(calls, rounds=options.rounds, sample_seconds=0.001)
        best = {k: min(times[k].samples) * 1e6 for k in calls}
        eager = f"{best['eager']:.2f}" if "eager" in best else "-"
        table.add_row(name, eager, f"{best['torch.compile']:.2f}", f"{best['weft']:.2f}",
                      f"{best['weft'] / best['torch.compile']:.2f}")
    Console(width=110).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
