"""Functions of torch whose Python and C forms share a name, and single operators found wrong."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from tests.capture.harness import check

X = torch.randn(4, 6)


def test_functions_with_a_c_function_of_the_same_name():
    def f(x):
        a, b = torch.broadcast_tensors(x, x[:1])
        c = torch.einsum("ij,kj->ik", a, b)
        d = torch.split(c, 2, dim=1)
        e = torch.meshgrid(d[0][:, 0], d[1][0], indexing="ij")
        return torch.cdist(x, x), torch.norm(x, dim=1), torch.tensordot(x, x, 2), e

    check(f, (X,), graphs=1)


def test_losses():
    def f(x):
        far, near = F.smooth_l1_loss(x, x * 2), F.huber_loss(x, -x)
        return F.mse_loss(x, x + 1), far, F.l1_loss(x, x), near

    check(f, (X,), graphs=1)


def test_unpacking_with_a_star():
    def f(x):
        first, *rest = torch.split(x, [1, 2, 1])
        return first, rest, torch.stack(torch.unbind(x, 1))

    check(f, (X,), graphs=1)
