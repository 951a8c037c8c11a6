"""The lives of random models: events in random order, on a compiled model and an eager twin.

    python -m tools.fuzz_life --seeds 0:700 --jobs 16 [--events 40] [--backend aot_eager]

Each seed draws a model, how it is compiled (wrapped or in place), and events
(`tools/life_events.py`): calls in all modes, hooks, freezing, swaps of parts, other types and
states, pruning, copies, exceptions between calls. After each event the results, exceptions, what
hooks saw, and all parameters, buffers and gradients are compared.
"""

from __future__ import annotations

import argparse
import copy
import random
import warnings
from collections import Counter
from typing import Any, Final

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

import weft
from tools import seed_batches
from tools.life_events import WEIGHTS, WIDTH, Net, Side

_TOLERANCE: Final = {"rtol": 2e-3, "atol": 2e-4}
_COARSE: Final = {"rtol": 5e-2, "atol": 5e-2}
"""Of results in bfloat16; their gradients, and what optimizers make of these, differ as much."""


def _twins(rng: random.Random, backend: str) -> tuple[Side, Side]:
    norms = [nn.LayerNorm(WIDTH), nn.BatchNorm1d(WIDTH), nn.BatchNorm1d(WIDTH, momentum=None),
             nn.Identity()]
    model = Net(rng.sample(norms, 2), tied=rng.random() < 0.3)
    twin = copy.deepcopy(model)
    if rng.random() < 0.6:
        return Side(model, lambda m: m), Side(twin, lambda m: weft.compile(m, backend=backend))
    return (Side(model, lambda m: m),
            Side(twin, lambda m: weft.compile_inplace(m, backend=backend)))


def _observe(side: Side, event: Any, seed: int) -> Any:
    torch.manual_seed(seed)
    try:
        return event(side, random.Random(seed))
    except Exception as error:  # noqa: BLE001  what the program would see
        return error


def _forget_gradients(side: Side) -> None:
    """Drop what a backward left that failed on its way: eager's goes as far as it can."""
    side.model.zero_grad(set_to_none=True)
    side.log.clear()


def _state(side: Side) -> dict[str, Any]:
    """All that the program can see of the model."""
    state: dict[str, Any] = {}
    for name, tensor in (*side.model.named_parameters(), *side.model.named_buffers()):
        state[name] = tensor
        state[name + ".grad"] = tensor.grad if tensor.is_leaf else None
    for name, module in side.model.named_modules():
        state[name + ".training"] = module.training
    state["log"] = list(side.log)
    return state


def _differ(actual: Any, expected: Any, tolerance: dict[str, float]) -> str:
    """How one value differs from eager's, or nothing."""
    if not isinstance(expected, torch.Tensor) or not isinstance(actual, torch.Tensor):
        same = type(actual) is type(expected) and (
            isinstance(expected, Exception) or actual == expected)
        return "" if same else f"{actual!r:.300}, eager {expected!r:.300}"
    facts = [(t.dtype, tuple(t.shape), t.requires_grad, t.is_inference(), t.is_leaf)
             for t in (actual, expected)]
    if facts[0] != facts[1]:
        return f"{facts[0]}, eager {facts[1]}"
    try:
        torch.testing.assert_close(actual, expected, equal_nan=True, **tolerance)
    except AssertionError as error:
        return " ".join(str(error).split())[:200]
    return ""


def _difference(actual: Any, expected: Any, tolerance: dict[str, float]) -> str:
    """What of the results differs first, or nothing."""
    pairs = tree_leaves(actual), tree_leaves(expected)
    if len(pairs[0]) != len(pairs[1]):
        return f"{actual!r:.300}, eager {expected!r:.300}"
    return next(filter(None, (_differ(a, e, tolerance) for a, e in zip(*pairs, strict=True))), "")


def _states_differ(actual: dict[str, Any], expected: dict[str, Any], tolerance: dict[str, float]
                   ) -> str:
    if list(actual) != list(expected):
        return f"state has {sorted(set(actual) ^ set(expected))}"
    return next((f"{name}: {text}" for name in expected
                 if (text := _difference(actual[name], expected[name], tolerance))), "")


def live(seed: int, *, events: int, backend: str, tally: Counter[str]) -> str:
    """One life; what went wrong first, or nothing."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    weft.reset()
    eager, compiled = _twins(rng, backend)
    kinds, weights = list(WEIGHTS), list(WEIGHTS.values())
    tolerance, history = _TOLERANCE, []
    for number in range(events):
        event, event_seed = rng.choices(kinds, weights)[0], rng.randrange(10**6)
        history.append(event.__name__)
        expected, actual = (_observe(side, event, event_seed) for side in (eager, compiled))
        tally[event.__name__] += 1
        tally["raised"] += isinstance(expected, Exception)
        if "autocast" in event.__name__ or "bfloat16" in repr(expected):
            tolerance = _COARSE
        if isinstance(expected, Exception) and isinstance(actual, Exception):
            _forget_gradients(eager)
            _forget_gradients(compiled)
        problem = (_difference(actual, expected, tolerance)
                   or _states_differ(_state(compiled), _state(eager), tolerance))
        if problem:
            return (f"seed {seed}, event {number} {event.__name__} (its seed {event_seed}): "
                    f"{problem}; after {', '.join(history[-8:-1])}")
    stats = weft.stats()
    tally["graphs"] += stats["graphs"]
    tally["unfit guards"] += stats["unfit_guards"]
    return ""


def _try(seed: int, options: argparse.Namespace, tally: Counter[str]) -> str:
    return live(seed, events=options.events, backend=options.backend, tally=tally)


def main() -> int:
    """The command line; the exit status tells whether a life differs."""
    parser = seed_batches.parser(__doc__)
    parser.add_argument("--events", type=int, default=40)
    parser.add_argument("--backend", default="aot_eager")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    with weft.config.patch(strict=True):
        return seed_batches.main("tools.fuzz_life", options, _try)


if __name__ == "__main__":
    raise SystemExit(main())
