"""Operators against eager: one line each, through the C++ target; and op_db through the oracle."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import weft
from tests.codegen.compiling import check, compiled
from weft._torch import tree_flatten
from weft.codegen.cpp.plan import make_plan

X, Y = torch.linspace(-3, 3, 60).view(3, 4, 5), torch.linspace(0.1, 2, 60).view(3, 4, 5)
INTS = torch.arange(-30, 30).view(3, 4, 5)
IMAGE = torch.linspace(-1, 1, 2 * 4 * 6 * 6).view(2, 4, 6, 6)

CASES: dict[str, Any] = {
    "add alpha": (lambda x, y: torch.add(x, y, alpha=2), X, Y),
    "rsub": (lambda x: 1 - x, X),
    "integer division": (lambda x: (x // 7, x % 7, x.fmod(7)), INTS),
    "true division of integers": (lambda x: x / 4, INTS),
    "promotion": (lambda x, i: x + i, X, INTS),
    "comparison with promotion": (lambda x, i: (x < i, i >= 1.5), X, INTS),
    "pow": (lambda y: (y**2, y**0.5, y**-1, y**3.7, 2**y), Y),
    "clamp": (lambda x: (x.clamp(-1, 1), x.clamp(min=0), x.clamp(max=0)), X),
    "where": (lambda x, y: torch.where(x > 0, x, y), X, Y),
    "masked_fill": (lambda x: x.masked_fill(x > 0, float("-inf")), X),
    "activations": (lambda x: (F.gelu(x), F.silu(x), F.elu(x), F.softplus(x), F.hardswish(x)), X),
    "gelu far from and at zero": (
        lambda x: (F.gelu(x), F.gelu(x.double())), torch.tensor([-1e30, -99.0, -13.1, -0.0, 1e30])),
    "rrelu": (lambda x: (F.rrelu(x), F.rrelu(x, 0.5, 1.0)), X),
    "tanh gelu": (lambda x: F.gelu(x, approximate="tanh"), X),
    "hardswish that overflows": (lambda x: F.hardswish(x * 1e38), X),
    "nan_to_num": (lambda x: torch.nan_to_num(x / 0), X),
    "broadcast": (lambda x, y: x + y, torch.randn(3, 1, 5), torch.randn(4, 1)),
    "scalar tensor": (lambda x, y: x * y, X, torch.tensor(2.5)),
    "sum": (lambda x: (x.sum(), x.sum(0), x.sum((0, 2), keepdim=True)), X),
    "mean of a strided dimension": (lambda x: x.mean(1), X),
    "extrema": (lambda x: (x.amax(1), x.amin(-1, keepdim=True), x.max(), x.min()), X),
    "max with index": (lambda x: x.max(1), X),
    "argmax": (lambda x: (x.argmax(), x.argmin(2)), X),
    "first position of NaN and infinities": (
        lambda x: (x.argmax(1), x.argmin(1), x.bool().int().argmax(1)),
        torch.tensor([[1.0, torch.nan, torch.nan], [-torch.inf] * 3, [0, torch.inf, torch.inf]])),
    "norms of all orders": (
        lambda y: [torch.linalg.vector_norm(y, p, 1) for p in (0, 1, 3, 0.5, 2.5, -1, -2)], Y),
    "any all": (lambda x: ((x > 1).any(1), (x > -9).all()), X),
    "integer sum": (lambda i: (i.sum(1), i.prod(0)), INTS % 3),
    "var": (lambda x: (x.var(1), x.std(2, correction=0), torch.var_mean(x, 1)), X),
    "softmax over a middle dimension": (lambda x: F.softmax(x, 1), X),
    "log_softmax": (lambda x: F.log_softmax(x, -1), X),
    "logsumexp": (lambda x: torch.logsumexp(x, (0, 2)), X),
    "norms": (lambda x: (x.norm(), x.norm(1, 2), F.normalize(x, dim=1)), X),
    "cat": (lambda x, y: torch.cat([x, y.exp(), x], 1), X, Y),
    "cat of views": (lambda x: torch.cat([-x[..., 2:], x[..., :2]], -1) * 2, X),
    "stack": (lambda x, y: torch.stack([x, y], 1) + 1, X, Y),
    "pad": (lambda x: F.pad(x, (1, 2, 0, 3), value=2.0), X),
    "index of a pad": (lambda x, i: (F.pad(x, (4, 4))[..., i], F.pad(x, (0, 0, 4, 4))[:, i]), X,
                       torch.tensor([[0, 4, 7], [-1, 9, 5]])),
    "negative pad": (lambda x: F.pad(x, (-1, 2)), X),
    "flip and roll": (lambda x: (x.flip(0, 2), x.roll(2, 1)), X),
    "positions against numbers of more than 32 bits": (
        lambda n: (torch.arange(40) < n, torch.arange(40) == n, (torch.arange(40) >= n) * 1.5),
        torch.tensor([[5], [2**40], [-(2**40)], [2**31], [-(2**31)], [2**32 + 5]])),
    "flips of whole vectors": (
        lambda x: (x.flip(-1), x.to(torch.uint8).flip(-1) + 1, x.bfloat16().flip(0, 1)),
        torch.arange(300.0).view(3, 100)),
    "slices": (lambda x: (x[1:, ::2, -3:] + 1, x[:, 1] * 2), X),
    "split": (lambda x: [p * 2 for p in x.split(2, 1)] + [p + 1 for p in x.unbind(0)], X),
    "expand": (lambda x: x[:, :1].expand(3, 4, 5) + 1, X),
    "reshape of a transpose": (lambda x: x.transpose(0, 2).reshape(10, 6) + 1, X),
    "embedding": (
        lambda w, i: F.embedding(i, w),
        torch.randn(9, 5),
        torch.tensor([[1, 8], [0, 3]]),
    ),
    "index": (lambda x, i: (x[i], x[:, i], x[i, i], x[i, :, i]), X, torch.tensor([0, -1, 2])),
    "gather": (lambda x, i: x.gather(1, i), X, torch.randint(0, 4, (3, 2, 5))),
    "index_select": (lambda x, i: x.index_select(2, i), X, torch.tensor([4, 0])),
    "one hot": (lambda i: F.one_hot(i, 5), torch.tensor([[0, 4], [2, 2]])),
    "scatter": (
        lambda x, i: (x.scatter(1, i, 2.5), x.scatter(1, i, x[:, :1]), x.scatter(1, i[:2], 1.0)),
        X, torch.randint(0, 4, (3, 1, 5)),
    ),
    "triangles": (lambda x: (x.tril(), x.triu(1), x.tril(-1)), X),
    "arange": (lambda x: x + torch.arange(5) * torch.arange(0, 1, 0.2), X),
    "constants": (lambda x: torch.full((5,), 2.0) + torch.ones(4, 1) + torch.zeros_like(x), X),
    "casts": (lambda x: (x.to(torch.int32), x.bool(), x.double().exp(), x.half() * 2), X),
    "bfloat16": (lambda x: (x.bfloat16() * 2).float() + 1, X),
    "unfold": (lambda x: x.unfold(1, 2, 1) * 2, X),
    "diagonal": (lambda x: torch.diagonal(x, 1, 1, 2) + 1, X),
    "padded labels": (
        F.multilabel_margin_loss, torch.randn(4, 5), torch.tensor([[1, 2, -1, 0, 0]] * 4)
    ),  # PyTorch's formula counted what is behind the -1
    "upsample": (lambda x: F.interpolate(x, scale_factor=2, mode="nearest"), IMAGE),
    "batch norm": (lambda x, m, v: F.batch_norm(x, m, v), IMAGE, torch.ones(4), torch.ones(4)),
    "group norm": (lambda x: F.group_norm(x, 2), IMAGE),
    "group norm of NHWC": (
        lambda x, w: F.group_norm(x.contiguous(memory_format=torch.channels_last), 2, w, w + 1),
        IMAGE, torch.randn(4),
    ),
    "convolution": (lambda x, w: F.conv2d(x, w).relu(), IMAGE, torch.randn(3, 4, 3, 3)),
    "pooling": (lambda x: (F.max_pool2d(x, 2), F.adaptive_avg_pool2d(x, 1)), IMAGE),
    "complex goes to ATen": (lambda x: torch.view_as_real(torch.complex(x, x) * 2), X),
    "sorting goes to ATen": (lambda x: (x.sort(1), x.topk(2)), X),
    "cumsum": (lambda x: x.cumsum(1) + 1, X),
    "empty": (lambda x: (x[:0] + 1, x[:0].sum(), torch.cat([x, x[:0]])), X),
    "scalars": (lambda x: (x.sum() * 2 + 1).sqrt(), Y),
}


@pytest.mark.parametrize("name", CASES)
def test_operator(name: str) -> None:
    function, *inputs = CASES[name]
    check(function, *inputs)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy_backward(reduction: str) -> None:
    def gradient(x, target, weight):
        y = F.log_softmax(x, 1)
        loss, total = torch.ops.aten.nll_loss_forward(y, target, weight, kind, -100)
        ones = torch.ones_like(loss)
        grad = torch.ops.aten.nll_loss_backward(ones, y, target, weight, kind, -100, total)
        return loss, torch.ops.aten._log_softmax_backward_data(grad, y, 1, torch.float32)

    kind = {"none": 0, "mean": 1, "sum": 2}[reduction]
    target = torch.tensor([3, -100, 0, 6])
    artifact = check(gradient, torch.randn(4, 7), target, torch.rand(7))
    assert not artifact.extern_ops
    assert len(artifact.kernels) <= 3


def test_an_index_out_of_range_raises_as_in_eager() -> None:
    with pytest.raises(IndexError):
        check_bad = torch.tensor([1, 9])
        from_table = torch.randn(9, 5)
        _run(lambda w, i: F.embedding(i, w) + 1, from_table, check_bad)


def _run(function: Any, *inputs: torch.Tensor) -> Any:
    valid = [torch.zeros_like(t) if not t.is_floating_point() else t for t in inputs]
    with torch.no_grad():
        call, _ = compiled(function, *valid)
        return call(list(inputs))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
def test_division_and_shifts_of_the_largest_integers(dtype: torch.dtype) -> None:
    least, most = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    x = torch.tensor([least, most, 0, 1, most - 1, most // 2, 7, least + 1] * 5, dtype=dtype)
    y = torch.tensor([3, 1, 7, 5, most, 2, 100, most - 1] * 5, dtype=dtype)
    if least:
        y = torch.where(torch.arange(40) % 3 == 0, -y - 1, y)

    def program(x, y, n):
        return x // y, x % y, torch.fmod(x, y), x << n, x >> n, x >> 1, x << 2

    check(program, x, y, torch.arange(40).to(dtype) % 5)


def test_gradients_of_gelu_are_not_subnormal() -> None:
    """Eager's are zeros there; the matrix products behind them took several times as long."""
    x = torch.linspace(-15, -12, 1000)
    call, _ = compiled(lambda x: torch.ops.aten.gelu_backward(torch.ones_like(x), x), x)
    found = tree_flatten(call([x]))[0][0]
    assert not ((found != 0) & (found.abs() < torch.finfo().tiny)).any()
    torch.testing.assert_close(found, torch.ops.aten.gelu_backward(torch.ones(1000), x))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.bfloat16, torch.int16])
def test_small_elements_at_computed_places(dtype: torch.dtype) -> None:
    """They are cut out of words, wherever the tensor begins in its first word."""
    memory = torch.arange(140).remainder(5).to(dtype)
    places, chosen = torch.arange(53) * 7 % 37, torch.arange(53) % 3 > 0

    def program(x, i, m):
        return x[i], torch.where(m, x[:53], x[i]), x.flip(0)[::5], x[::7], x.roll(3)

    for begin in range(4):
        check(program, memory[begin : begin + 60], places, chosen)


def test_operands_of_a_stack_are_computed_at_their_own_points_only() -> None:
    """All were, at all points."""
    x, y = torch.rand(3, 40), torch.rand(3, 40)
    y[0, 0] = torch.nan
    artifact = check(lambda x, y: torch.stack([x.exp(), y.log() % 6, x - y], 1), x, y)
    branches = make_plan(artifact.kernels[0], 64).branches
    assert branches is not None and [part.stop for part in branches[1]] == [1, 2, 3]
    check(lambda x, y: torch.cat([x.exp(), y.log(), x[:2]]) * 2, x, y)


@pytest.mark.parametrize("simd", ["", "avx2", "portable"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zeros_of_both_signs_keep_their_sign(dtype: torch.dtype, simd: str) -> None:
    """Of equal numbers the second was taken: -0.0 became 0.0 in relu, clamp and max_pool."""
    x = torch.tensor([-0.0, 0.0, 1.0, -1.0, torch.nan, -torch.inf] * 7).to(dtype)

    def program(x: torch.Tensor) -> Any:
        wide = x.repeat_interleave(2).view(1, 1, -1)
        return (
            x.relu(), x.clamp(min=0), x.clamp(min=-0.0), x.clamp(max=-0.0), x.clamp(0, 1),
            F.relu6(x), F.hardtanh(x, 0, 2), F.hardswish(x), F.max_pool1d(wide, 2),
            torch.fmax(x, torch.zeros_like(x)), torch.fmin(x, torch.zeros_like(x)),
        )

    with weft.config.patch(simd=simd):
        check(program, x)
        call, _ = compiled(program, x)
    for found, wanted in zip(tree_flatten(call([x]))[0], program(x), strict=True):
        numbers = ~wanted.isnan()
        assert torch.equal(found[numbers].signbit(), wanted[numbers].signbit())
        assert torch.equal(found.isnan(), wanted.isnan())


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_integers_divided_by_zero_raise(dtype: torch.dtype) -> None:
    """The quotient was 0, the remainder that by anything."""
    x, y = torch.arange(37, dtype=dtype), torch.arange(1, 38, dtype=dtype)
    quotients = [
        lambda x, y: x // y, lambda x, y: x % y, torch.fmod, lambda x, y: (x // y).sum(),
        lambda x, y: torch.div(x, y, rounding_mode="trunc"), lambda x, y: x[:3, None] % y,
        lambda x, y: torch.cat([x // y, x[:2], y % y]), lambda x, y: F.pad(x % y, (1, 2)),
        lambda x, y: x // y[5],
    ]
    for quotient in quotients:
        check(quotient, x, y)
        check(quotient, x, y, oracle=True)
        call, _ = compiled(quotient, x, y)
        for place in (5, slice(5, 6), slice(5, 37)):
            zeros = y.clone()
            zeros[place] = 0
            with pytest.raises(RuntimeError, match="ZeroDivisionError"):
                quotient(x, zeros)
            with pytest.raises(RuntimeError, match="ZeroDivisionError"):
                call([x, zeros])
    for quotient in (lambda x: x // 0, lambda x: x % 0, lambda x: 7 // x):
        call, _ = compiled(quotient, x)
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            call([x])


def test_divisors_that_are_known_are_not_checked() -> None:
    """A check costs a comparison for each vector."""
    artifact = check(lambda x: (x // 7, x % -3, x.fmod(2), x / 3 // 2), INTS)
    names = {getattr(node, "name", "") for kernel in artifact.kernels for node in kernel.nodes}
    assert "floordiv" in names and "divisor" not in names
