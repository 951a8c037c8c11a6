"""Random models at random sizes: whenever the guards accept a call, the artifact is right.

    python -m tools.fuzz_shapes --seeds 0-250 [--backend inductor] [--limit SECONDS] [--sizes 6]

Each seed draws a model (`tools/fuzz_models.py`), inference or training, ``dynamic=True`` or the
default policy, and sizes: 0, 1, primes, powers of two, then the sizes at the borders of the guards
that the first calls made. Values, gradients, buffers, strides and errors are compared with eager's;
where eager is not exact itself, both with eager's in double precision.
"""

from __future__ import annotations

import argparse
import copy
import random
import re
import time
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, final

import torch

import weft
from tools.fuzz_models import WIDTH, Drawn, draw
from weft.diagnostics import events

Tensor = torch.Tensor
_LENGTHS: Final = [2, 3, 4, 5, 7, 8, 11, 13, 16, 17, 32]
_LARGEST: Final = 40
"""Guards' borders beyond this are not tried: models with products of sizes grow large."""

_EAGERS_ERRORS: Final = (RuntimeError, IndexError, ValueError, ZeroDivisionError)


@final
@dataclass(frozen=True)
class Case:
    """What a seed draws."""

    seed: int
    kind: str
    model: Drawn
    training: bool
    dynamic: bool | None
    rng: random.Random

    @classmethod
    def drawn(cls, seed: int) -> Case:
        rng = random.Random(seed)
        torch.manual_seed(seed)
        kind = "image" if rng.random() < 0.25 else "sequence"
        model = draw(rng, kind)
        training = rng.random() < 0.5
        return cls(seed, kind, model.train(training), training,
                   True if rng.random() < 0.7 else None, rng)

    def input(self, batch: int, length: int) -> Tensor:
        if self.kind == "sequence":
            return torch.randn(batch, length, WIDTH)
        return torch.randn(batch, 4, length, self.rng.choice([length, 1, 3, 6, 9]))

    def first_inputs(self, count: int) -> Iterator[Tensor]:
        """An ordinary size first, then any."""
        yield self.input(self.rng.choice([2, 3, 5]), self.rng.choice(_LENGTHS))
        for _ in range(count - 1):
            ordinary = self.rng.random() < 0.85
            yield self.input(self.rng.choice([0, 1, 2, 3, 5, 7]),
                             self.rng.choice(_LENGTHS) if ordinary else self.rng.choice([0, 1]))

    def border_inputs(self, constants: set[int], count: int) -> Iterator[Tensor]:
        """Sizes beside the numbers that stand in the guards."""
        borders = sorted({n + d for n in constants for d in (-1, 0, 1) if 0 <= n + d <= _LARGEST})
        for n in self.rng.sample(borders, min(count, len(borders))):
            yield self.input(self.rng.choice([2, 3, n]), n)


@final
class Runner:
    """Runs a model from the same state each time, with or without gradients."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.state = copy.deepcopy(case.model.state_dict())

    def __call__(self, run: Any, given: Tensor) -> list[Tensor | None] | Exception:
        model, training = self.case.model, self.case.training
        model.load_state_dict(self.state)
        model.zero_grad(set_to_none=True)
        x = given.clone().requires_grad_(training)
        try:
            with torch.set_grad_enabled(training):
                y = run(x)
                results = [y.detach()]
                if training:
                    weights = torch.linspace(-1, 1, max(1, y.numel()))[: y.numel()].view(y.shape)
                    (y * weights).sum().backward()
                    results += [x.grad, *(p.grad for p in model.parameters())]
        except _EAGERS_ERRORS as error:
            return error
        return [*results, *(b.clone() for b in model.buffers())]


def layout(x: Tensor) -> list[tuple[int, int]]:
    """Sizes and strides; steps along a dimension of one element lead nowhere."""
    strides = x.stride() if x.numel() else x.shape
    return [(n, 0 if n == 1 else s) for n, s in zip(x.shape, strides, strict=True)]


def difference(actual: list[Tensor | None], expected: list[Tensor | None]) -> str:
    """What differs first, or nothing."""
    for i, (a, e) in enumerate(zip(actual, expected, strict=True)):
        if a is None or e is None:
            if a is not e:
                return f"result {i}: {'none' if a is None else 'some'}, not as eager"
            continue
        if (a.dtype, layout(a)) != (e.dtype, layout(e)):
            return f"result {i}: {a.dtype} {layout(a)}, eager {e.dtype} {layout(e)}"
        try:
            torch.testing.assert_close(a, e, rtol=2e-3, atol=2e-3, equal_nan=True)
        except AssertionError as error:
            return f"result {i}: {' '.join(str(error).split())[:150]}"
    return ""


def is_as_exact(actual: list[Tensor | None], expected: list[Tensor | None],
                exact: list[Tensor | None]) -> bool:
    """Whether all results are about as near to those in double precision as eager's are."""
    def error(x: Tensor, wanted: Tensor) -> float:
        return float((x.double() - wanted.double()).nan_to_num().abs().max())

    return all(
        error(a, wanted) <= 2 * error(e, wanted) + 1e-5 and layout(a) == layout(e)
        for a, e, wanted in zip(actual, expected, exact, strict=True)
        if a is not None and e is not None and wanted is not None and a.numel())


def problem(actual: list[Tensor | None] | Exception,
            expected: list[Tensor | None] | Exception) -> str:
    """How a compiled call differs from eager's, or nothing."""
    if isinstance(actual, Exception):
        if type(actual) is type(expected):
            return ""
        return f"raises {type(actual).__name__}: {' '.join(str(actual).split())[:200]}"
    if isinstance(expected, Exception):
        return f"eager raises {type(expected).__name__}: {str(expected)[:100]}"
    return difference(actual, expected)


def constants_of(seen: list[events.Event]) -> set[int]:
    """The whole numbers in the conditions on sizes that were guarded."""
    texts = (row[-1] for event in seen if event.kind == "symbols" for row in event.symbols)
    return {int(n) for text in texts for n in re.findall(r"(?<![\w.])\d{1,4}(?![\w.])", text)}


def examine(seed: int, *, backend: str, sizes: int, tally: Counter[str]) -> list[str]:
    """The model of one seed at its sizes: a line for each call that differs."""
    case = Case.drawn(seed)
    weft.reset()
    compiled = weft.compile(case.model, backend=backend, dynamic=case.dynamic)
    run, problems = Runner(case), []
    in_double = replace(case, model=copy.deepcopy(case.model).double())
    run_in_double = Runner(in_double)

    def compare(x: Tensor) -> None:
        expected, actual = run(case.model, x), run(compiled, x)
        found = problem(actual, expected)
        if found and isinstance(actual, list) and isinstance(expected, list):
            exact = run_in_double(in_double.model, x.double())
            if isinstance(exact, list) and is_as_exact(actual, expected, exact):
                tally.update(inexact=1)
                found = ""
        tally.update(calls=1, errors=isinstance(expected, Exception), problems=bool(found))
        if found:
            problems.append(f"seed {seed} {case.kind} {case.model.names} "
                            f"{'training' if case.training else 'inference'} "
                            f"dynamic={case.dynamic} {tuple(x.shape)}: {found}")

    with events.collect() as seen:
        for x in case.first_inputs(sizes):
            compare(x)
        for x in case.border_inputs(constants_of(seen), sizes // 2):
            compare(x)
    problems += [f"seed {seed} {case.model.names}: fallback {event.fields}"
                 for event in seen if event.kind == "fallback"]
    stats = weft.stats()
    tally.update(models=1, graphs=stats["graphs"], breaks=stats["graph_breaks"])
    return problems


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", default="0-250", help="one seed, or the first and one past")
    parser.add_argument("--backend", default="inductor")
    parser.add_argument("--sizes", type=int, default=6, help="sizes of each model before borders")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds in all")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    weft.config.strict = True
    first, _, end = arguments.seeds.partition("-")
    start, tally = time.monotonic(), Counter[str]()
    for seed in range(int(first), int(end or int(first) + 1)):
        if time.monotonic() - start > arguments.limit:
            break
        for line in examine(seed, backend=arguments.backend, sizes=arguments.sizes, tally=tally):
            print(line, flush=True)
    print(dict(tally), f"{time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
