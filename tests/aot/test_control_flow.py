"""torch.cond through capture and aot: both sides, gradients, several branches, dynamic sizes."""

import pytest
import torch

import weft


@pytest.fixture(autouse=True)
def _fresh(fresh):
    yield


def make(weights):
    first, second = weights

    def f(x):
        y = x.sin() + 1
        z = torch.cond(x.mean() > 0, lambda y: y @ first, lambda y: (y @ second).cos(), (y,))
        z = torch.cond(z.sum() > 0, lambda z: z * 2, lambda z: z - 1, (z,))
        return z.sin() + y, z.mean()

    return f


def eager(weights):
    first, second = weights

    def f(x):
        y = x.sin() + 1
        z = y @ first if x.mean() > 0 else (y @ second).cos()
        z = z * 2 if z.sum() > 0 else z - 1
        return z.sin() + y, z.mean()

    return f


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("gradients", [False, True])
def test_cond(gradients: bool, dynamic: bool) -> None:
    torch.manual_seed(0)
    weights = [torch.randn(4, 4, requires_grad=True) for _ in range(2)]
    compiled = weft.compile(make(weights), backend="aot_eager", fullgraph=True, dynamic=dynamic)
    wanted = eager(weights)
    for n, sign in ((3, 1), (3, -1), (5, -1), (5, 1)):
        x = (torch.randn(n, 4).abs() * sign).requires_grad_(gradients)
        with torch.set_grad_enabled(gradients):
            found, expected = compiled(x), wanted(x)
        for f, e in zip(found, expected, strict=True):
            torch.testing.assert_close(f, e)
        if not gradients:
            continue
        sums = [sum(r.sum() for r in results) for results in (found, expected)]
        inputs = [x, *weights]
        pairs = [torch.autograd.grad(s, inputs, allow_unused=True) for s in sums]
        for f, e in zip(*pairs, strict=True):
            assert (f is None) == (e is None)
            if f is not None:
                torch.testing.assert_close(f, e)
