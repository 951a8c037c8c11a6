"""Custom operators in compiled graphs: with gradients, and writing to their arguments."""

import pytest
import torch

import weft
from weft.diagnostics import events


@torch.library.custom_op("weft_tests::add_number", mutates_args={"x"})
def add_number(x: torch.Tensor, k: float) -> None:
    x.add_(k)


@torch.library.custom_op("weft_tests::double", mutates_args=())
def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2


double.register_fake(torch.empty_like)
double.register_autograd(lambda ctx, g: g * 2)


@torch.library.custom_op("weft_tests::split_sum", mutates_args={"total", "count"})
def split_sum(x: torch.Tensor, total: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
    total.add_(x.sum(0))
    count.add_(x.size(0))
    return x - 1


split_sum.register_fake(lambda x, total, count: torch.empty_like(x))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_writes_are_seen(backend: str) -> None:
    def f(x, total):
        y = x.sin()
        add_number(y[1:], 2.0)
        count = torch.zeros((), dtype=torch.int64)
        z = split_sum(double(y), total, count)
        add_number(x, 1.0)
        return z + x, count, total * 2

    given, wanted = ([torch.linspace(0, 1, 12).view(4, 3), torch.ones(3)] for _ in range(2))
    with weft.config.patch(strict=True), events.collect() as seen:
        found = weft.compile(f, backend=backend)(*given)
    torch.testing.assert_close(found, f(*wanted))
    torch.testing.assert_close(given, wanted)
    assert sum(e.kind == "aot" for e in seen) == 1
    assert not any(e.kind == "uncompiled" for e in seen)


def test_gradients() -> None:
    def f(x):
        y = x * 3
        add_number(y.detach(), 2.0)
        return (double(y.sin()) * y).sum()

    x, peer = (torch.linspace(0, 1, 12).requires_grad_() for _ in range(2))
    weft.compile(f)(x).backward()
    f(peer).backward()
    torch.testing.assert_close(x.grad, peer.grad)
