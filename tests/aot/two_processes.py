"""Run by `test_collectives.py`: programs over two processes, eager against compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import weft


def redistributed() -> tuple[Callable[..., Any], list[Any]]:
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    w = distribute_tensor(torch.randn(8, 16), mesh, [Shard(1)])

    def f(x: torch.Tensor) -> torch.Tensor:
        whole = DTensor.from_local(x, mesh, [Replicate()], run_check=False)
        return (whole @ w).relu().redistribute(mesh, [Replicate()]).to_local() + 1

    return f, [torch.randn(4, 8)]


def partial_sums() -> tuple[Callable[..., Any], list[Any]]:
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    x = distribute_tensor(torch.randn(4, 8), mesh, [Shard(1)])
    w = distribute_tensor(torch.randn(8, 16), mesh, [Shard(0)])

    def f(x: DTensor, w: DTensor) -> torch.Tensor:
        y = x @ w
        return y.full_tensor() * 2 + y.redistribute(mesh, [Shard(0)]).full_tensor()

    return f, [x, w]


def sums_of_all() -> tuple[Callable[..., Any], list[Any]]:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * (dist.get_rank() + 1)
        dist.all_reduce(y)
        parts = [torch.empty_like(x) for _ in range(2)]
        dist.all_gather(parts, x + dist.get_rank())
        return y * 2, torch.cat(parts)

    return f, [torch.ones(2, 4)]


def tensor_parallel_step() -> tuple[Callable[..., Any], list[Any]]:
    mesh = init_device_mesh("cpu", (2,))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    inner = {}

    def f(x: torch.Tensor) -> tuple[Any, ...]:
        forward = inner.get("compiled", model)
        model.zero_grad()
        forward(x).square().mean().backward()
        return tuple(p.grad.full_tensor() for p in model.parameters())

    f.compile_inside = lambda: inner.update(  # type: ignore[attr-defined]
        compiled=weft.compile(model))
    return f, [torch.randn(4, 8)]


PROGRAMS = (tensor_parallel_step, redistributed, partial_sums, sums_of_all)


def check(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.set_num_threads(1)
    for program in PROGRAMS:
        f, args = program()
        expected = f(*args)
        weft.reset()
        compile_inside = getattr(f, "compile_inside", None)
        compiled = weft.compile(f) if compile_inside is None else f
        if compile_inside is not None:
            compile_inside()
        for _ in range(2):
            torch.testing.assert_close(compiled(*args), expected, msg=program.__name__)
        assert weft.stats()["uncompiled_graphs"] == 0, program.__name__
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(check, (f"{folder}/store",), nprocs=2)  # type: ignore[no-untyped-call]
