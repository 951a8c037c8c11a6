"""Collectives of torch.distributed inside compiled code: one process here, two in
`test_two_processes`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

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
