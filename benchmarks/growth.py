"""Does the time of a compilation grow faster than the program? Families of programs at n, 2n, ….

    python -m benchmarks.growth                        # all families at 250 and 500
    python -m benchmarks.growth --sizes 500,1000,2000 --only inputs,stack
    python -m benchmarks.growth --most 2.5             # exit status 1 if a ratio is larger

Every program is compiled in a process of its own (forked from one that has compiled a small program
already), with an empty cache, on one thread. The ratios are of processor time, weft's and its
compilers', which depends on other work of the machine less than the time that passes. The stages
are those of `weft.stats()["compile_seconds"]`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, final

import torch

import weft


@final
@dataclass(frozen=True)
class Program:
    """A function and its arguments; `trained`: the gradients of its result are computed too."""

    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    trained: bool = False

    def run(self) -> None:
        """Compile and call it."""
        result = weft.compile(self.function)(*self.args)
        if self.trained:
            result.sum().backward()


Builder = Callable[[int], Program]
FAMILIES: Final[dict[str, Builder]] = {}
STAGES: Final = ("capture", "guards", "aot", "passes", "partition", "lower", "schedule", "codegen",
                 "cpp_compile")
LEAST_SECONDS: Final = 0.3
"""Times below are noise: no ratio is taken of them."""


def family(build: Builder) -> Builder:
    """Register a family: the function and the arguments for each n."""
    FAMILIES[build.__name__] = build
    return build


def _rows(n: int, size: int = 16, *, grad: bool = False) -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(size, requires_grad=grad) for _ in range(n))


# -- pieces of a program ---------------------------------------------------------------------------


@family
def inputs(n: int) -> Program:
    def add_all(*xs: torch.Tensor) -> torch.Tensor:
        total = xs[0]
        for x in xs[1:]:
            total = total + x
        return total

    return Program(add_all, _rows(n))


@family
def inputs_unlike(n: int) -> Program:
    def add_sums(*xs: torch.Tensor) -> torch.Tensor:
        total = xs[0].sum()
        for x in xs[1:]:
            total = total + x.exp().sum()
        return total

    return Program(add_sums, tuple(torch.randn(2 + i % 50) for i in range(n)))


@family
def chain(n: int) -> Program:
    def repeat(x: torch.Tensor) -> torch.Tensor:
        for i in range(n):
            x = x * 1.01 + 0.5 if i % 3 else x.tanh()
        return x

    return Program(repeat, _rows(1))


@family
def chain_unlike(n: int) -> Program:
    steps: list[Callable[[torch.Tensor], torch.Tensor]] = [
        torch.sin, torch.tanh, torch.sigmoid, torch.relu, torch.neg, torch.abs, torch.square,
        torch.exp, torch.cos, torch.erf, torch.floor, torch.atan, lambda x: x + 1,
        lambda x: x * 0.5, lambda x: x - x.mean(), lambda x: x.softmax(-1), lambda x: x.flip(0),
        lambda x: x.cumsum(0), lambda x: torch.where(x > 0, x, -x), lambda x: x.clamp(-3, 3)]

    def repeat(x: torch.Tensor) -> torch.Tensor:
        for i in range(n):
            x = steps[(i * 7 + i // 20) % len(steps)](x)
        return x

    return Program(repeat, _rows(1))


@family
def diamonds(n: int) -> Program:
    def repeat(x: torch.Tensor) -> torch.Tensor:
        for _ in range(n):
            x = x.relu() - x.sigmoid()
        return x

    return Program(repeat, _rows(1))


@family
def side_by_side(n: int) -> Program:
    def add_terms(x: torch.Tensor) -> torch.Tensor:
        total = x
        for i in range(n):
            total = total + (x * i).sin()
        return total

    return Program(add_terms, _rows(1))


@family
def outputs(n: int) -> Program:
    def scaled(x: torch.Tensor) -> list[torch.Tensor]:
        return [x * i for i in range(n)]

    return Program(scaled, _rows(1))


@family
def outputs_of_inputs(n: int) -> Program:
    def each(*xs: torch.Tensor) -> list[torch.Tensor]:
        return [x.exp() + 1 for x in xs]

    return Program(each, _rows(n))


@family
def matmuls(n: int) -> Program:
    def repeat(x: torch.Tensor) -> torch.Tensor:
        for _ in range(n):
            x = (x @ x).tanh()
        return x

    return Program(repeat, (torch.randn(8, 8),))


# -- concatenation ---------------------------------------------------------------------------------


@family
def stack_of_inputs(n: int) -> Program:
    def stack(*xs: torch.Tensor) -> torch.Tensor:
        return torch.stack(xs) + 1

    return Program(stack, _rows(n))


@family
def stack(n: int) -> Program:
    def stack_terms(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x + i for i in range(n)])

    return Program(stack_terms, _rows(1))


@family
def stack_last(n: int) -> Program:
    def stack_terms(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([x * i for i in range(n)], -1).sum(-1)

    return Program(stack_terms, _rows(1))


@family
def cat(n: int) -> Program:
    def join(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x.exp() * i for i in range(n)]).relu()

    return Program(join, _rows(1))


@family
def cat_of_cats(n: int) -> Program:
    def grow(x: torch.Tensor) -> torch.Tensor:
        for i in range(n // 10):
            x = torch.cat([x[:8] * i, x + 1])
        return x

    return Program(grow, _rows(1))


# -- views and mutations ---------------------------------------------------------------------------


@family
def views(n: int) -> Program:
    def rows_of(x: torch.Tensor) -> torch.Tensor:
        total = x[0]
        for i in range(1, n):
            total = total + x[i]
        return total

    return Program(rows_of, (torch.randn(n, 16),))


@family
def views_of_views(n: int) -> Program:
    def turn(x: torch.Tensor) -> torch.Tensor:
        for _ in range(n):
            x = x.t().reshape(16, 4).unsqueeze(0).squeeze(0)
        return x + 1

    return Program(turn, (torch.randn(16, 4),))


@family
def unbound(n: int) -> Program:
    def rows_of(x: torch.Tensor) -> torch.Tensor:
        return torch.stack([row.sin() for row in x.unbind(0)])

    return Program(rows_of, (torch.randn(n, 16),))


@family
def mutations(n: int) -> Program:
    def repeat(x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        for i in range(n):
            x.mul_(1.01).add_(i)
        return x

    return Program(repeat, _rows(1))


@family
def written_rows(n: int) -> Program:
    def fill(x: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(n, 16)
        for i in range(n):
            out[i] = x * i
        return out

    return Program(fill, _rows(1))


@family
def split(n: int) -> Program:
    def pieces(x: torch.Tensor) -> list[torch.Tensor]:
        return [piece * 2 for piece in x.split(1)]

    return Program(pieces, (torch.randn(n, 16),))


@family
def split_and_joined(n: int) -> Program:
    def pieces(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([piece.sin() for piece in x.chunk(n, 1)][::-1], 1)

    return Program(pieces, (torch.randn(4, n * 2),))


@family
def written_slices(n: int) -> Program:
    def fill(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for i in range(n):
            x[i, i % 8: i % 8 + 4] += y[i % 16]
        return x.sum(0)

    return Program(fill, (torch.randn(n, 16), torch.randn(16)))


@family
def written_elements(n: int) -> Program:
    def fill(x: torch.Tensor) -> None:
        for i in range(n):
            x[i] = i * 0.5

    return Program(fill, (torch.randn(n),))


@family
def written_inputs(n: int) -> Program:
    def update(*xs: torch.Tensor) -> None:
        for x in xs:
            x.mul_(0.9).add_(1)

    return Program(update, _rows(n))


# -- python ----------------------------------------------------------------------------------------


@weft.disable
def outside() -> None:
    """A call that breaks the graph."""


@family
def breaks(n: int) -> Program:
    def repeat(x: torch.Tensor) -> torch.Tensor:
        for _ in range(n // 10):
            x = x + 1
            outside()
        return x

    return Program(repeat, _rows(1))


@family
def guards(n: int) -> Program:
    table = {f"key{i}": float(i) for i in range(n)}

    def add_values(x: torch.Tensor) -> torch.Tensor:
        total = 0.0
        for value in table.values():
            total += value
        return x + total

    return Program(add_values, _rows(1))


@family
def lists(n: int) -> Program:
    def collect(x: torch.Tensor) -> list[Any]:
        items: list[Any] = []
        for i in range(n):
            items.append({"i": i, "half": i / 2})
            items = [*items[-5:], x]
        return items

    return Program(collect, _rows(1))


@family
def global_names(n: int) -> Program:
    lines = "".join(f"    x = x + g{i} * h{i}\n" for i in range(n // 2))
    names: dict[str, Any] = {f"g{i}": float(i) for i in range(n // 2)}
    names |= {f"h{i}": torch.randn(16) for i in range(n // 2)}
    exec(f"def read(x):\n{lines}    return x\n", names)
    return Program(names["read"], _rows(1))


@family
def lines(n: int) -> Program:
    names: dict[str, Any] = {}
    text = "".join(f"    if k > {i}:\n        x{i + 1} = x{i} + {i}\n" for i in range(n))
    exec(f"def lines(x0, k):\n{text}    return x{n}\n", names)
    return Program(names["lines"], (*_rows(1), n))


@family
def attributes(n: int) -> Program:
    class Counter:
        """Something with many attributes, all read and written."""

    counter = Counter()
    for i in range(n):
        setattr(counter, f"a{i}", float(i))

    def count(x: torch.Tensor) -> torch.Tensor:
        for i in range(n):
            value = getattr(counter, f"a{i}")
            x = x + value
            setattr(counter, f"a{i}", value + 1)
        return x

    return Program(count, _rows(1))


@family
def nested_dictionaries(n: int) -> Program:
    tree = {f"a{i}": {f"b{j}": {"x": torch.randn(4), "k": j} for j in range(10)}
            for i in range(n // 10)}

    def scale(tree: Any) -> Any:
        return {key: scale(value) if isinstance(value, dict) else value * 2
                for key, value in tree.items()}

    return Program(scale, (tree,))


@family
def deep_dictionary(n: int) -> Program:
    table: dict[str, Any] = {"x": torch.randn(4)}
    for _ in range(n // 20):
        table = {"x": torch.randn(4), "rest": table}

    def add_all(table: dict[str, Any]) -> torch.Tensor:
        total = table["x"]
        while "rest" in table:
            table = table["rest"]
            total = total + table["x"]
        return total

    return Program(add_all, (table,))


@family
def closures(n: int) -> Program:
    def scaled(k: float, inner: Callable[[torch.Tensor], torch.Tensor]
               ) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda x: inner(x) * k

    function: Callable[[torch.Tensor], torch.Tensor] = torch.sin
    for i in range(n // 20):
        function = scaled(i, function)
    return Program(function, _rows(1))


@family
def calls(n: int) -> Program:
    def inner(x: torch.Tensor, k: int) -> torch.Tensor:
        return x + 1 if k % 2 else x * 2

    def outer(x: torch.Tensor) -> torch.Tensor:
        for i in range(n):
            x = inner(x, i)
        return x

    return Program(outer, _rows(1))


@family
def symbols(n: int) -> Program:
    def add_sums(*xs: torch.Tensor) -> torch.Tensor:
        total = xs[0].sum()
        for x in xs[1:]:
            total = total + x.sum() * x.shape[0]
        return total

    xs = tuple(torch.randn(10 + i) for i in range(n // 4))
    for x in xs:
        weft.mark_dynamic(x, 0)
    return Program(add_sums, xs)


@family
def symbolic_chain(n: int) -> Program:
    def repeat(x: torch.Tensor) -> torch.Tensor:
        for _ in range(n // 4):
            x = torch.cat([x[1:], x[:1]]) + x.shape[0]
        return x

    x = torch.randn(64)
    weft.mark_dynamic(x, 0)
    return Program(repeat, (x,))


# -- reductions, models, training ------------------------------------------------------------------


@family
def reductions(n: int) -> Program:
    def normalise(x: torch.Tensor) -> torch.Tensor:
        for _ in range(n):
            x = x - x.mean(-1, keepdim=True)
        return x

    return Program(normalise, (torch.randn(4, 32),))


@family
def reductions_side_by_side(n: int) -> Program:
    def add_sums(x: torch.Tensor) -> torch.Tensor:
        total = x[0].sum()
        for i in range(n):
            total = total + (x * i).amax(0).sum()
        return total

    return Program(add_sums, (torch.randn(4, 32),))


@family
def softmaxes(n: int) -> Program:
    def repeat(x: torch.Tensor) -> torch.Tensor:
        for _ in range(n // 4):
            x = x.softmax(-1) * 3
        return x

    return Program(repeat, (torch.randn(4, 32),))


@family
def scatters(n: int) -> Program:
    def repeat(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        for _ in range(n // 4):
            x = x.index_add(0, i, x[i]).tanh()
        return x

    return Program(repeat, (torch.randn(16, 4), torch.randint(16, (8,))))


@family
def trained_chain(n: int) -> Program:
    def repeat(x: torch.Tensor) -> torch.Tensor:
        for _ in range(n // 2):
            x = (x * 1.1).sin()
        return x

    return Program(repeat, _rows(1, grad=True), trained=True)


@family
def trained_inputs(n: int) -> Program:
    def multiply(*xs: torch.Tensor) -> torch.Tensor:
        total = xs[0]
        for x in xs[1:]:
            total = total * x.exp()
        return total

    return Program(multiply, _rows(n // 2, grad=True), trained=True)


@family
def trained_stack(n: int) -> Program:
    def stack_terms(*xs: torch.Tensor) -> torch.Tensor:
        return torch.stack([x.exp() for x in xs]).sin()

    return Program(stack_terms, _rows(n // 2, grad=True), trained=True)


@family
def trained_views(n: int) -> Program:
    def rows_of(x: torch.Tensor) -> torch.Tensor:
        total = x[0]
        for i in range(1, n // 2):
            total = total * x[i]
        return total

    return Program(rows_of, (torch.randn(n // 2, 16, requires_grad=True),), trained=True)


@family
def trained_layers(n: int) -> Program:
    depth = n // 10
    layers = [torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.GELU())
              for _ in range(depth)]
    return Program(torch.nn.Sequential(*layers), (torch.randn(4, 8),), trained=True)


@family
def one_layer(n: int) -> Program:
    layer = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.GELU())

    def repeat(x: torch.Tensor) -> torch.Tensor:
        for _ in range(n):
            x = layer(x)
        return x

    return Program(repeat, (torch.randn(4, 8),))


@family
def trained_written_rows(n: int) -> Program:
    def fill(x: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(n // 2, 16)
        for i in range(n // 2):
            out[i] = x * i
        return out

    return Program(fill, _rows(1, grad=True), trained=True)


@family
def trained_split(n: int) -> Program:
    def pieces(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([piece.sin() for piece in x.split(1)][::-1])

    return Program(pieces, (torch.randn(n // 2, 16, requires_grad=True),), trained=True)


@family
def trained_outputs(n: int) -> Program:
    def scaled(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(x * i for i in range(n // 2))

    @weft.disable
    def total(pieces: tuple[torch.Tensor, ...]) -> torch.Tensor:
        return torch.stack(pieces)

    return Program(lambda x: total(scaled(x)), _rows(1, grad=True), trained=True)


@family
def parameters(n: int) -> Program:
    class Scaled(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scales = torch.nn.ParameterList(torch.randn(16) for _ in range(n // 2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for scale in self.scales:
                x = x * scale
            return x

    return Program(Scaled(), _rows(1), trained=True)


@family
def modules(n: int) -> Program:
    class Add(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    return Program(torch.nn.Sequential(*(Add() for _ in range(n))), _rows(1))


@family
def optimizer(n: int) -> Program:
    weights = [torch.randn(16, requires_grad=True) for _ in range(n // 4)]
    for weight in weights:
        weight.grad = torch.randn(16)
    adam = torch.optim.Adam(weights)
    return Program(adam.step)


@family
def recurrence(n: int) -> Program:
    cell = torch.nn.GRUCell(8, 8)

    def run(x: torch.Tensor) -> torch.Tensor:
        state = x
        for _ in range(n // 10):
            state = cell(x, state)
        return state

    return Program(run, (torch.randn(4, 8),), trained=True)


# -- measuring -------------------------------------------------------------------------------------


@final
@dataclass(frozen=True)
class Result:
    """Seconds of one compilation: weft's processor time, the compilers', and stages' time."""

    own: float
    compilers: float
    stages: dict[str, float]
    error: str = ""

    @property
    def seconds(self) -> float:
        return self.own + self.compilers


def _used(who: int) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def _measure(build: Builder, n: int) -> dict[str, Any]:
    program = build(n)
    before = [_used(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    with tempfile.TemporaryDirectory(prefix="weft-growth-") as folder:
        weft.config.cache_dir = folder
        try:
            program.run()
        except Exception:
            return {"own": 0, "compilers": 0, "stages": {}, "error": traceback.format_exc(limit=-3)}
    after = [_used(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    own, compilers = (b - a for a, b in zip(before, after, strict=True))
    return {"own": own, "compilers": compilers, "stages": weft.stats()["compile_seconds"]}


def measured(name: str, n: int, limit: int) -> Result:
    """One program of a family, compiled in a child process."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(read)
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        with os.fdopen(write, "w") as pipe:
            json.dump(_measure(FAMILIES[name], n), pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    status = os.waitpid(child, 0)[1]
    if not text or status:
        return Result(0, 0, {}, f"no result in {limit} s of processor time (status {status})")
    return Result(**json.loads(text))


def _warm_up() -> None:
    def small(x: torch.Tensor) -> torch.Tensor:
        return (torch.stack([x.exp(), x]) + 1).sum()

    weft.compile(small)(torch.randn(16, requires_grad=True)).backward()
    weft.reset()


def _row(name: str, sizes: list[int], limit: int) -> float:
    """Print a family's seconds at each size; the largest ratio of neighbours."""
    worst, last = 0.0, None
    for n in sizes:
        result = measured(name, n, limit)
        ratio = ""
        if result.error:
            worst = float("inf")
            ratio = result.error.strip().splitlines()[-1]
        elif last is not None and last.seconds >= LEAST_SECONDS:
            growth = result.seconds / last.seconds
            worst = max(worst, growth)
            ratio = f"x {growth:.2f}  " + " ".join(
                f"{stage}:{seconds:.2f}({seconds / max(last.stages.get(stage, 0), 0.01):.1f})"
                for stage, seconds in result.stages.items() if stage in STAGES and seconds > 0.2)
        print(f"{name:24} {n:6} {result.own:8.2f} {result.compilers:8.2f}  {ratio}", flush=True)
        last = result
    return worst


def main() -> int:
    """Measure the families that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", default="250,500", help="n, separated by commas")
    parser.add_argument("--only", default="", help="families, separated by commas")
    parser.add_argument("--most", type=float, default=2.5, help="the largest ratio that is allowed")
    parser.add_argument("--limit", type=int, default=200, help="seconds of processor time for one")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="weft-growth-") as folder:
        weft.config.cache_dir = folder
        _warm_up()
    sizes = [int(n) for n in options.sizes.split(",")]
    names = options.only.split(",") if options.only else list(FAMILIES)
    start = time.perf_counter()
    print(f"{'family':24} {'n':>6} {'weft s':>8} {'g++ s':>8}")
    worst = {name: _row(name, sizes, options.limit) for name in names}
    above = {name: ratio for name, ratio in worst.items() if ratio > options.most}
    print(f"{len(names)} families, {len(above)} above {options.most}: {above}; "
          f"{time.perf_counter() - start:.0f} s")
    return bool(above)


if __name__ == "__main__":
    sys.exit(main())
