"""Run by `test_collectives.py`: programs over two processes, eager against compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh

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


PROGRAMS = (redistributed, partial_sums, sums_of_all)


def check(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.set_num_threads(1)
    for program in PROGRAMS:
        f, args = program()
        expected = f(*args)
        compiled = weft.compile(f)
        for _ in range(2):
            torch.testing.assert_close(compiled(*args), expected, msg=program.__name__)
        dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(check, (f"{folder}/store",), nprocs=2)  # type: ignore[no-untyped-call]
