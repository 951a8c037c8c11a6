"""while_loop, map and scan, captured whole."""

from __future__ import annotations

import torch
from torch._higher_order_ops.map import map as map_over
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

import weft

X = torch.randn(3, 4)


def captured(function, *args):
    weft.reset()
    with torch.no_grad():
        out = weft.compile(function, backend="eager", fullgraph=True)(*args)
    assert weft.stats()["graphs"] == 1
    return out


def test_while_loop():
    scale = torch.full((3, 4), 2.0)

    def f(x):
        n = torch.zeros((), dtype=torch.int64)
        return while_loop(lambda n, y: n < 5, lambda n, y: (n + 1, y * scale + x), (n, x))

    n, y = captured(f, X)
    expected = X
    for _ in range(5):
        expected = expected * scale + X
    assert n.item() == 5 and torch.allclose(y, expected)


def test_map():
    out = captured(lambda x: map_over(lambda row, k: row.sin() * k, x, 3.0), X)
    assert torch.allclose(out, X.sin() * 3)


def test_scan():
    def f(x):
        return scan(lambda carry, row: (carry + row, carry * 2), torch.zeros(4), x, dim=0)

    last, ys = captured(f, X)
    carry, rows = torch.zeros(4), []
    for row in X:
        rows.append(carry * 2)
        carry = carry + row
    assert torch.allclose(last, carry) and torch.allclose(ys, torch.stack(rows))
