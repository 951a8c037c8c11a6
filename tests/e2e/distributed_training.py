"""Run by `test_distributed.py`: training over two processes, eager against compiled.

Prints a line of JSON for each way of wrapping: graphs, breaks, and recompiles after the second
step. The losses of each process must be those of eager.
"""

from __future__ import annotations

import json
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import (
    DTensor,
    Replicate,
    Shard,
    distribute_tensor,
    init_device_mesh,
)
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import weft

Compile = Callable[[Any], Any]
STEPS = 3


class Block(nn.Module):
    """A perceptron behind a norm, with a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.tanh(self.up(self.norm(x))))  # type: ignore[no-any-return]


class Model(nn.Module):
    """A layer, two blocks, a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)
        self.blocks = nn.ModuleList(Block(8) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)  # type: ignore[no-any-return]


# -- ways to wrap ----------------------------------------------------------------------------------


def sharded(model: Any) -> Any:
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def sharded_around_compiled(model: Any, compiled: Compile) -> Any:
    for i, block in enumerate(model.blocks):
        model.blocks[i] = fully_shard(compiled(block))
    return fully_shard(model)


def compiled_around_sharded(model: Any, compiled: Compile) -> Any:
    for i, block in enumerate(model.blocks):
        model.blocks[i] = compiled(fully_shard(block))
    return fully_shard(model)


def sharded_in_place(model: Any, compiled: Compile) -> Any:
    if compiled is weft.compile:
        for block in model.blocks:
            weft.compile_inplace(block, fullgraph=True)
    return sharded(model)


def in_parts(model: Any) -> Any:
    """Tensor parallelism."""
    mesh = init_device_mesh("cpu", (2,))
    for block in model.blocks:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


def whole(model: Any, compiled: Compile) -> Any:
    """All of a wrapper without a break."""
    wrapper = DistributedDataParallel(model)
    return weft.compile(wrapper, fullgraph=True) if compiled is weft.compile else wrapper


WAYS: dict[str, Callable[[Any, Compile], Any]] = {
    "compile(DDP)": lambda m, c: c(DistributedDataParallel(m)),
    "compile(DDP), unused parameters": lambda m, c: c(
        DistributedDataParallel(m, find_unused_parameters=True)),
    "compile(DDP), static graph": lambda m, c: c(DistributedDataParallel(m, static_graph=True)),
    "compile(DDP, fullgraph)": whole,
    "DDP(compile)": lambda m, c: DistributedDataParallel(c(m)),
    "compile(FSDP2)": lambda m, c: c(sharded(m)),
    "FSDP2(compile)": lambda m, c: fully_shard(c(m)),
    "FSDP2 of compiled blocks": sharded_around_compiled,
    "compiled blocks of FSDP2": compiled_around_sharded,
    "FSDP2 of blocks compiled in place": sharded_in_place,
    "compile(FSDP1)": lambda m, c: c(
        FullyShardedDataParallel(m, device_id=torch.device("cpu"), use_orig_params=True)),
    "compile(tensor parallel)": lambda m, c: c(in_parts(m)),
}


def batches(way: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    rank = 0 if "tensor" in way else dist.get_rank()
    generator = torch.Generator().manual_seed(rank)
    return [(torch.randn(8, 4, generator=generator), torch.randn(8, 2, generator=generator))
            for _ in range(2)]


def without_sync(model: Any, index: int) -> Any:
    """A context (or a setting) in which gradients are added up, but not sent."""
    if hasattr(model, "set_requires_gradient_sync"):
        model.set_requires_gradient_sync(index == 1)
        return nullcontext()
    adds = index == 0 and hasattr(model, "no_sync") and not getattr(model, "static_graph", False)
    return model.no_sync() if adds else nullcontext()


def step_of(model: Any, way: str, compiled: Compile) -> Callable[[], list[float]]:
    """A training step over two batches, whose gradients are added up; its losses."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = batches(way)

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    run = compiled(loss_of) if "step" in way else loss_of

    def step() -> list[float]:
        losses = []
        for index, (x, y) in enumerate(data):
            with without_sync(model, index):
                losses.append(run(x, y).item())
        optimizer.step()
        optimizer.zero_grad()
        return losses

    return step


def trained(way: str, compiled: Compile) -> tuple[Any, list[list[float]], dict[str, int]]:
    torch.manual_seed(0)
    wrap = WAYS.get(way, lambda m, c: DistributedDataParallel(m))
    model = wrap(Model(), compiled)
    step = step_of(model, way, compiled)
    losses = [step() for _ in range(2)]
    early = weft.stats()["recompiles"]
    losses += [step() for _ in range(STEPS - 2)]
    stats = weft.stats()
    return model, losses, {
        "graphs": stats["graphs"], "breaks": stats["graph_breaks"],
        "late recompiles": stats["recompiles"] - early,
        "failures": stats["fallbacks"] + stats["uncompiled_graphs"],
    }


def check_way(way: str, folder: Path) -> dict[str, int]:
    eager, expected, _ = trained(way, lambda model: model)
    weft.reset()
    model, losses, counts = trained(way, weft.compile)
    torch.testing.assert_close(
        losses, expected, rtol=1e-5, atol=1e-6, msg=f"{way}: {losses}, not {expected}")
    if "FSDP1" not in way:  # whose sharded tensors cannot be compared without a GPU
        check_checkpoint(model, eager, folder / way.replace(" ", ""))
    return counts


def check_checkpoint(model: Any, eager: Any, folder: Path) -> None:
    """A compiled model's checkpoint has eager's keys and values, and loads into both."""
    state = get_model_state_dict(model)
    assert sorted(state) == sorted(get_model_state_dict(eager))
    dcp.save(state, checkpoint_id=folder)
    saved = {name: value.clone() for name, value in state.items()}
    for other in (model, eager):
        with torch.no_grad():
            for parameter in other.parameters():
                parameter.zero_()
        loaded = get_model_state_dict(other)
        dcp.load(loaded, checkpoint_id=folder)
        set_model_state_dict(other, loaded)
        for name, value in get_model_state_dict(other).items():
            assert torch.equal(local(value), local(saved[name])), name


def local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


# -- functions -------------------------------------------------------------------------------------


def asynchronous(x: torch.Tensor, mesh: Any) -> Any:
    y, parts = x * 2, torch.empty(2 * len(x), 3)
    works = [dist.all_reduce(y, async_op=True),
             dist.all_gather_into_tensor(parts, x, async_op=True)]
    z = x.sin()
    for work in works:
        if work is not None:
            work.wait()
    return y + z, parts


def handles(x: torch.Tensor, mesh: Any) -> Any:
    y = x * 2
    work = dist.all_reduce(y, async_op=True)
    assert isinstance(work, dist.Work)
    return y, work


def distributed_inside(x: torch.Tensor, mesh: Any) -> Any:
    uneven = distribute_tensor(x, mesh, [Shard(0)])
    columns = distribute_tensor(x * 2, mesh, [Shard(-1)], src_data_rank=None)
    copied = distribute_tensor(x + dist.get_rank(), mesh, [Replicate()], src_data_rank=1)
    return (uneven * 2).full_tensor(), columns.to_local(), columns.full_tensor(), copied.to_local()


def received(results: tuple[Any, ...]) -> list[torch.Tensor]:
    """The tensors among results, once what is under way has come."""
    for result in results:
        if isinstance(result, dist.Work):
            assert result.wait()
            assert result.is_completed()
            assert torch.equal(result.get_future().wait()[0], results[0])
    return [result for result in results if isinstance(result, torch.Tensor)]


def check_functions() -> None:
    mesh = init_device_mesh("cpu", (2,))
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(dist.get_rank()))
    for function in (asynchronous, handles, distributed_inside):
        expected = received(function(x, mesh))
        compiled = weft.compile(function, fullgraph=True)
        for _ in range(2):
            torch.testing.assert_close(received(compiled(x, mesh)), expected)


def work(rank: int, folder: str, ways: list[str]) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    for way in ways or (*WAYS, "step around DDP"):
        counts = check_way(way, Path(folder))
        if rank == 0:
            print(json.dumps([way, counts]), flush=True)
    check_functions()
    if rank == 0:
        print(json.dumps(["functions", {}]), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        mp.spawn(work, (directory, sys.argv[1:]), nprocs=2)  # type: ignore[no-untyped-call]
