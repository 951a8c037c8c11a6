"""Run by `test_ranks.py`, as one of three ranks: `ranks_program.py RANK PORT FOLDER`.

Each function below `SCENARIOS` runs in ranks 0 and 1; a line of JSON has what was compiled and
loaded there, and whether results were eager's. At the end rank 2 is killed while it compiles, and
then rank 0, which holds the group's store.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import weft
from weft.capture.compiler import FrameCompiler
from weft.store import ranks

RANK, PORT, FOLDER = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
Compile = Callable[[Any], Any]
Calls = tuple[Callable[[Compile], Any], list[tuple[Any, ...]]]
"""What makes the function, with a compiler or without, and the arguments of its calls."""


def equal(x: torch.Tensor) -> torch.Tensor:
    return x * 2 + 1


def evenly() -> Calls:
    return lambda compile: compile(equal), [(torch.ones(3),), (torch.zeros(3),)]


def rows(x: torch.Tensor) -> torch.Tensor:
    return x.sum(0) * x.shape[0]


def unevenly() -> Calls:
    sizes = [(8, 6), (7, 5), (9, 9), (4, 8)]
    return lambda compile: compile(rows), [(torch.rand(size[RANK], 3),) for size in sizes]


def first_only(x: torch.Tensor) -> torch.Tensor:
    return x - 1


def second_only(x: torch.Tensor) -> torch.Tensor:
    return x - 2


def with_other_code() -> Calls:
    own = [first_only, second_only][RANK]
    return lambda compile: compile(own), [(torch.ones(3),)]


def numbered(x: torch.Tensor) -> torch.Tensor:
    return x + 10 * dist.get_rank() + dist.get_world_size()


def by_rank() -> Calls:
    return lambda compile: compile(numbered), [(torch.ones(3),)]


class Vocabulary(nn.Module):
    """The part of an embedding that this rank has."""

    def __init__(self) -> None:
        super().__init__()
        self.start = 4 * dist.get_rank()
        self.weight = nn.Parameter(torch.arange(4.0) + self.start)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        is_here = (tokens >= self.start) & (tokens < self.start + 4)
        return torch.where(is_here, self.weight[(tokens - self.start).clamp(0, 3)], 0.0)


def with_offsets() -> Calls:
    return lambda compile: compile(Vocabulary()), [(torch.arange(8),)]


class Layer(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


def layers() -> Calls:
    return lambda compile: nn.Sequential(*(compile(Layer(factor)) for factor in (1.5, 2.5, 3.5))), [
        (torch.ones(3),)]


def training() -> Calls:
    def make(compile: Compile) -> Callable[[torch.Tensor], Any]:
        torch.manual_seed(RANK)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        compiled = compile(model)

        def step(x: torch.Tensor) -> Any:
            with torch.enable_grad():
                return torch.autograd.grad(compiled(x).square().sum(), model.parameters())[0]

        return step

    return make, [(torch.ones(3, 4),), (torch.zeros(3, 4),)]


class Halves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.linear(x)
        return y[:, :4].sin(), y[:, 4:].cos()


def with_two_results() -> Calls:
    """Which tangents the backward gets is known when it runs."""
    def make(compile: Compile) -> Callable[[torch.Tensor], Any]:
        torch.manual_seed(RANK)
        model = Halves()
        compiled = compile(model)

        def step(x: torch.Tensor) -> Any:
            with torch.enable_grad():
                first, second = compiled(x)
                return torch.autograd.grad((first * second).sum(), model.parameters())[0]

        return step

    return make, [(torch.ones(3, 4),), (torch.zeros(3, 4),)]


def elsewhere(x: torch.Tensor) -> torch.Tensor:
    return x * 5


def on_another_disk() -> Calls:
    return lambda compile: compile(elsewhere), [(torch.ones(3),)]


def hashed(x: torch.Tensor) -> torch.Tensor:
    return x + hash("of this process") % 7


def not_storable() -> Calls:
    return lambda compile: compile(hashed), [(torch.ones(3),)]


SCENARIOS = (evenly, unevenly, with_other_code, by_rank, with_offsets, layers, training,
             with_two_results, on_another_disk, not_storable)


def run(scenario: Callable[[], Calls]) -> dict[str, Any]:
    weft.reset()
    weft.config.cache_dir = f"{FOLDER}/{RANK}" if scenario is on_another_disk else FOLDER
    make, calls = scenario()
    compiled = make(lambda function: weft.compile(function, backend="aot_eager"))
    function = make(lambda function: function)
    is_right, after = True, 0
    with torch.no_grad(), warnings.catch_warnings(record=True) as issued:
        warnings.simplefilter("always")
        for number, args in enumerate(calls):
            is_right &= torch.allclose(compiled(*args), function(*args))
            dist.barrier(PAIR)
            if number == 1:
                after = weft.stats()["graphs"]
    stats = weft.stats()
    return {"scenario": scenario.__name__, "rank": RANK, "right": is_right,
            "captures": stats["graphs"], "late": stats["graphs"] - after,
            "backwards": stats.get("backwards_stored", 0),
            "loaded": stats.get("entries_loaded", 0), "warnings": len(issued)}


def dying(x: torch.Tensor) -> torch.Tensor:
    return x + 3


def survive(store: Any) -> None:
    """Rank 2 takes the slot and dies; rank 0 meets that; then the store is gone for rank 1."""
    ranks.DEAD = 1.5
    if RANK == 2:
        FrameCompiler._compile_or_skip = lambda *_, **__: (  # type: ignore[method-assign]
            store.set("taken", "yes"), os.kill(os.getpid(), signal.SIGKILL))
    if RANK == 0:
        store.wait(["taken"])
    if RANK == 1:
        store.wait(["survived"])
        parent = int(store.get("pid of rank 0"))
        os.kill(parent, signal.SIGKILL)
    weft.reset()
    with torch.no_grad(), warnings.catch_warnings(record=True) as issued:
        warnings.simplefilter("always")
        for function in (dying, equal if RANK == 1 else first_only):
            compiled = weft.compile(function, backend="aot_eager")
            is_right = bool(torch.equal(compiled(torch.ones(5, 5)), function(torch.ones(5, 5))))
    print(json.dumps({"scenario": "survive", "rank": RANK, "right": is_right,
                      "warnings": [str(one.message) for one in issued]}), flush=True)
    if RANK == 0:
        store.set("pid of rank 0", str(os.getpid()))
        store.set("survived", "yes")
        signal.pause()


if __name__ == "__main__":
    dist.init_process_group("gloo", rank=RANK, world_size=3,
                            init_method=f"tcp://127.0.0.1:{PORT}")
    PAIR = dist.new_group([0, 1])
    weft.config.cache_dir, weft.config.store_entries = FOLDER, True
    if RANK < 2:
        for each in SCENARIOS:
            print(json.dumps(run(each)), flush=True)
    dist.barrier()
    survive(ranks.default_group_store())
    os._exit(0)
