"""Collectives of torch.distributed inside compiled code: one process here, two in
`test_two_processes`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import weft

pytestmark = [
    pytest.mark.skipif(not dist.is_available(), reason="no torch.distributed"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_an_all_gather_inside_an_autograd_function_was_dropped() -> None:
    import torch.distributed.nn.functional as functional

    def f(x: torch.Tensor) -> torch.Tensor:
        gathered = torch.cat(functional.all_gather(x))  # type: ignore[no-untyped-call]
        return (gathered * functional.all_reduce(x)).sum()  # type: ignore[no-untyped-call]

    x = torch.randn(4, 8, requires_grad=True)
    expected = torch.autograd.grad(f(x), x)
    for _ in range(2):
        torch.testing.assert_close(torch.autograd.grad(weft.compile(f)(x), x), expected)


class Reduced(torch.autograd.Function):
    """Megatron's: sums over processes in one direction, or both."""

    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        whole = torch.empty_like(x)
        dist.all_gather_into_tensor(whole, x)
        dist.all_reduce(whole, op=dist.ReduceOp.MAX)
        dist.broadcast(whole, 0)
        mixed = torch.empty_like(x)
        dist.all_to_all_single(mixed, whole)
        return mixed

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def]
        part = torch.empty_like(gradient)
        dist.reduce_scatter_tensor(part, gradient.contiguous())
        return part


def test_collectives_that_write_to_their_arguments_are_in_the_graph() -> None:
    torch.compiler.allow_in_graph(Reduced)

    def f(x: torch.Tensor) -> torch.Tensor:
        return (Reduced.apply(x * 2) * x).sum()  # type: ignore[no-untyped-call]

    x = torch.randn(4, 8, requires_grad=True)
    weft.reset()
    expected = f(x), *torch.autograd.grad(f(x), x)
    y = weft.compile(f, fullgraph=True)(x)
    torch.testing.assert_close((y, *torch.autograd.grad(y, x)), expected)
    assert weft.stats()["uncompiled_graphs"] == 0


def test_two_processes() -> None:
    program = Path(__file__).parent / "two_processes.py"
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True,
                          timeout=300, check=False)
    assert done.returncode == 0, done.stderr


def same(f: Callable[..., Any], *args: Any) -> None:
    """The function captured whole gives the same."""
    expected = f(*args)
    compiled = weft.compile(f, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(*args), expected)


def test_functional_collectives_broke_the_graph() -> None:
    import torch.distributed._functional_collectives as functional

    def f(x: torch.Tensor, group: Any) -> tuple[torch.Tensor, ...]:
        summed = functional.all_reduce(x, "sum", group)
        return summed.sin(), functional.all_gather_tensor(x, 0, group) * group.size()

    same(f, torch.randn(4, 8), dist.group.WORLD)


def test_collectives_of_the_program_broke_the_graph() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * dist.get_world_size()
        dist.all_reduce(y, op=dist.ReduceOp.MAX)
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, y)
        dist.broadcast(y, 0)
        whole, mixed = torch.empty_like(x), torch.empty_like(x)
        dist.reduce_scatter_tensor(whole, x)
        dist.all_to_all_single(mixed, x)
        dist.all_reduce(x * 2)  # unused, but the other processes wait for it
        return y, torch.cat(parts), whole, mixed

    same(f, torch.randn(4, 8))


@pytest.mark.filterwarnings("ignore:c10d")
def test_gradients_pass_a_collective_as_if_it_were_not_there() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 3
        dist.all_reduce(y)
        return (torch.autograd.grad((y * 2).sum(), x)[0], y)  # type: ignore[return-value]

    same(f, torch.randn(4, requires_grad=True))


def test_tensor_parallel_modules_broke_the_graph() -> None:
    from torch.distributed.tensor import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cpu", (1,))
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    same(model, torch.randn(3, 4))


def test_distributed_tensors_of_symbolic_sizes_failed_in_their_class() -> None:
    from torch.distributed.tensor import (
        DTensor,
        Replicate,
        Shard,
        distribute_tensor,
        init_device_mesh,
    )

    mesh = init_device_mesh("cpu", (1,))
    w = distribute_tensor(torch.randn(8, 4), mesh, [Shard(1)])

    def f(x: torch.Tensor) -> torch.Tensor:
        y = DTensor.from_local(x, mesh, [Replicate()], run_check=False) @ w
        return y.redistribute(mesh, [Replicate()]).to_local() + 1

    compiled = weft.compile(f, fullgraph=True)
    for n in (3, 4, 5):
        x = torch.randn(n, 8)
        torch.testing.assert_close(compiled(x), f(x))


@pytest.mark.parametrize("order", ["compiled inside", "compiled outside"])
def test_ddp_sends_buckets_while_other_gradients_are_computed(
    order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All gradients came at the end of the backward, and all buckets were sent there."""
    from weft.aot.training.backward_stages import Pieces

    def sent(bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        happened.append("sent")
        future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    def computed(pieces: Pieces) -> Any:
        happened.append("computed")
        return following(pieces)

    happened: list[str] = []
    following = Pieces.next
    monkeypatch.setattr(Pieces, "next", computed)
    model = torch.nn.Sequential(*[torch.nn.Linear(384, 384) for _ in range(4)])
    wrapper = torch.nn.parallel.DistributedDataParallel(
        weft.compile(model) if order == "compiled inside" else model, bucket_cap_mb=0.5)
    wrapper.register_comm_hook(None, lambda state, bucket: sent(bucket))
    compiled = wrapper if order == "compiled inside" else weft.compile(wrapper)
    x = torch.randn(2, 384)
    for _ in range(3):  # buckets are made anew in the second step
        happened.clear()
        expected = torch.autograd.grad(model(x).square().mean(), [*model.parameters()])
        compiled(x).square().mean().backward()
        torch.testing.assert_close([p.grad for p in model.parameters()], [*expected])
        wrapper.zero_grad()
    assert happened.index("sent") < len(happened) - 1 - happened[::-1].index("computed")
