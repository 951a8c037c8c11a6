"""Sums, products and extrema at computed places: the same bits as eager's on one thread."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import weft
from tests.codegen.compiling import check, compiled
from tests.codegen.symbolic import compiled_dynamic

aten = torch.ops.aten
X = torch.linspace(-3, 3, 60).view(3, 4, 5)
AT = torch.tensor([2, 0, 2, 2, 1, 0, 2])
ROWS = torch.linspace(-1, 2, 7 * 20).view(7, 4, 5)


def line(n: int, size: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    return (torch.arange(n) ** 2 % size).to(dtype)


CASES: dict[str, Any] = {
    "rows": (lambda x, i, y: x.index_add(0, i, y.exp()), X, AT, ROWS),
    "columns": (lambda x, i, y: x.index_add(-1, i, y), X, line(9, 5), torch.randn(3, 4, 9)),
    "32-bit index": (lambda x, i, y: x.index_add(1, i, y), X, line(6, 4, torch.int32),
                     torch.randn(3, 6, 5)),
    "a line": (lambda x, i, y: x.index_add(0, i, y), torch.zeros(3), line(100, 3),
               torch.randn(100)),
    "alpha goes to ATen": (lambda x, i, y: x.index_add(0, i, y, alpha=2), X, AT, ROWS),
    "transposed operand": (lambda x, i, y: x.t().index_add(0, i, y), torch.randn(6, 9),
                           line(4, 9), torch.randn(4, 6)),
    "integers and doubles": (
        lambda x, i, y: (x.int().index_add(0, i, y.int()), x.double().index_add(0, i, y.double()),
                         (x * 9).to(torch.uint8).index_add(0, i, (y * 99).to(torch.uint8))),
        X, AT, ROWS),
    "half types go to ATen": (lambda x, i, y: x.bfloat16().index_add(0, i, y.bfloat16()), X, AT,
                              ROWS),
    "fewer indices than source": (lambda x, i, y: x.scatter_add(1, i, y), X,
                                  torch.randint(0, 4, (2, 6, 3)), torch.randn(3, 7, 4)),
    "expanded index": (lambda x, i, y: x.scatter_add(0, i[:, None, None].expand(7, 4, 5), y), X,
                       AT, ROWS),
    "histogram": (lambda i: torch.zeros(4, dtype=torch.long).scatter_add(0, i, i + 1),
                  line(50, 4)),
    "negative positions": (
        lambda x, i, y: x.index_put((i, i - 1), y[:, 0], accumulate=True), X, AT, ROWS),
    "broadcast positions": (
        lambda x, i, j, y: x.index_put((i[:, None], j), y, accumulate=True), X, AT,
        torch.tensor([1, -1]), torch.randn(7, 1, 5)),
    "positions apart": (
        lambda x, i, y: aten.index_put(x, (i, None, i), y, True), X, AT, torch.randn(7, 4)),
    "later dimension": (
        lambda x, i, y: aten.index_put(x, (None, i), y, True), X, AT, torch.randn(3, 7, 5)),
    "one number": (lambda x, i, y: x.index_put((i,), y, accumulate=True), X, AT,
                   torch.tensor(0.3)),
    "embedding's gradient": (
        lambda g, i: (aten.embedding_dense_backward(g, i, 9, 2, False),
                      aten.embedding_dense_backward(g, i, 9, -1, False),
                      aten.embedding_dense_backward(g, i, 9, -1, True)),
        torch.randn(4, 6, 5), line(24, 9).view(4, 6)),
    "read at the places": (lambda x, i, y: x.index_add(0, i, y)[i] * 2, X, AT, ROWS),
    "two sums of one source": (
        lambda x, i, y: (x.index_add(0, i, y), x.index_add(0, 2 - i, y * y), y + 1), X, AT, ROWS),
    "sum of a sum": (lambda x, i, y: x.index_add(0, i, y).index_add(0, i, y * 2), X, AT, ROWS),
    "source is a sum": (lambda x, i, y: x[0, 0].index_add(0, i % 5, y.sum((1, 2))), X, AT, ROWS),
    "empty": (lambda x, i, y: x.index_add(0, i[:0], y[:0]), X, AT, ROWS),
}


@pytest.mark.parametrize("name", CASES)
def test_changed_places(name: str) -> None:
    function, *inputs = CASES[name]
    check(function, *inputs, oracle=True)


def test_sums_have_eagers_bits() -> None:
    exact = {n: case for n, case in CASES.items() if n not in ("rows", "source is a sum")}

    def all_of_them(*inputs):
        given = iter(inputs)
        return [f(*[next(given) for _ in own]) for f, *own in exact.values()]

    check(all_of_them, *[x for _, *own in exact.values() for x in own], rtol=0, atol=0)


@pytest.mark.parametrize("reduce", ["sum", "prod", "mean", "amax", "amin"])
def test_scatter_reduce(reduce: str) -> None:
    def function(x, i, y):
        rows = i[0, :, 0][:, None].expand(6, 5)
        return [
            made for include in (True, False) for made in (
                x.scatter_reduce(1, i, y, reduce, include_self=include),
                (x * 5).int().scatter_reduce(1, i, (y * 5).int(), reduce, include_self=include),
                x[0].scatter_reduce(0, rows, y[0], reduce, include_self=include),
            )
        ]

    y = torch.randn(3, 6, 5)
    y[1, 2, 3] = torch.nan
    artifact = check(function, X, torch.randint(0, 4, (3, 6, 5)), y)
    assert not artifact.extern_ops


def test_the_source_is_computed_as_it_is_added() -> None:
    def layer(x, i, j, w):
        return torch.zeros_like(x).index_add(0, j, F.relu(x[i]) * w[:, None])

    edges = torch.randint(0, 50, (2, 300))
    artifact = check(layer, torch.randn(50, 24), *edges, torch.rand(300))
    assert len(artifact.kernels) == 2  # zeros, and the sum


def test_places_outside_raise_what_a_gather_raises() -> None:
    call, _ = compiled(lambda x, i, y: x.index_add(0, i, y), X, AT, ROWS)
    with pytest.raises(IndexError):
        call([X.clone(), AT + 1, ROWS])


def test_a_tensor_of_the_caller_is_changed_in_place() -> None:
    def function(x, i, y):
        x.index_add_(0, i, y.exp())
        return x * 2

    x, expected = X.clone(), X.clone()
    torch.testing.assert_close(weft.compile(function)(x, AT, ROWS), function(expected, AT, ROWS))
    torch.testing.assert_close(x, expected)


def test_many_sizes() -> None:
    def function(x, i, y):
        total = x.index_add(0, i, y.relu())
        most = x.scatter_reduce(0, i[:, None].expand_as(y), y, "amax", include_self=False)
        return total, most, x[:, 0].scatter_add(0, i, y[:, 1].abs())

    def inputs(rows: int, points: int, columns: int) -> list[torch.Tensor]:
        at = torch.randint(0, rows, (points,))
        return [torch.randn(rows, columns), at, torch.randn(points, columns)]

    sizes = {0: {0, 1}, 1: {0}, 2: {0, 1}}
    with torch.no_grad():
        call, artifact = compiled_dynamic(function, inputs(5, 30, 8), sizes, oracle=False)
        assert not artifact.extern_ops
        for example in (inputs(5, 30, 8), inputs(3, 77, 19), inputs(9, 2, 3)):
            for result, wanted in zip(call(list(example)), function(*example), strict=True):
                torch.testing.assert_close(result, wanted, rtol=0, atol=0)


def test_gradients() -> None:
    def layer(x, w, i, j):
        y = F.embedding(i, w, padding_idx=1) * x[j]
        picked = y.gather(1, (i[:, None] % 4).expand(-1, 3))
        return torch.zeros(6, 4).index_add(0, j, y).tanh().sum() + picked.sin().sum()

    torch.manual_seed(0)
    x, w = torch.randn(6, 4, requires_grad=True), torch.randn(5, 4, requires_grad=True)
    i, j = line(40, 5), torch.randint(0, 6, (40,))
    expected = torch.autograd.grad(layer(x, w, i, j), (x, w))
    results = torch.autograd.grad(weft.compile(layer)(x, w, i, j), (x, w))
    torch.testing.assert_close(results, expected)


def test_threads_share_rows_and_lines() -> None:
    """Each row is one thread's, each line of a scatter along lines too: sums keep their order."""

    def function(x, y, i, j, k):
        rows = x.index_add(0, i, y.relu())
        squares = y * y
        both = x.index_add(0, i, squares), x.index_add(0, j, squares), squares + 1
        dots = x[:, 0].index_add(0, i, (x[j] * y).sum(1))
        return rows, *both, dots, x.scatter_add(1, k, y[: len(x)])

    torch.manual_seed(0)
    i, j = torch.randint(0, 500, (2, 6000))
    inputs = [torch.randn(500, 40), torch.randn(6000, 40), i, j, torch.randint(0, 40, (500, 40))]
    before = torch.get_num_threads()
    call, _ = compiled(function, *inputs)
    results = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            results.append(call(list(inputs)))
            with pytest.raises(IndexError):
                call([*inputs[:2], i + 1, *inputs[3:]])
    finally:
        torch.set_num_threads(before)
    for one, several, wanted in zip(*results, function(*inputs), strict=True):
        torch.testing.assert_close(one, several, rtol=0, atol=0)
        torch.testing.assert_close(one, wanted)
