"""Generated kernels for symbolic sizes: right at sizes where their special cases begin and end."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import weft
from weft.codegen.cpp.loop_splitting import segments
from weft.codegen.ir.loop_ir import KernelBuilder, LoopVar, Op
from weft.shapes.algebra.expr import IntExpr, loop_index, symbol

pytestmark = pytest.mark.usefixtures("fresh")


def check(program: Callable[..., Any], calls: list[tuple[Any, ...]], graphs: int = 1) -> None:
    """One artifact with symbolic sizes is right for all calls."""
    compiled = weft.compile(program, dynamic=True)
    with torch.no_grad():
        for args in calls:
            torch.testing.assert_close(compiled(*args), program(*args), rtol=1e-4, atol=1e-4)
    assert weft.stats()["graphs"] == graphs


def rotated(x: torch.Tensor) -> torch.Tensor:
    left, right = x.chunk(2, -1)
    return torch.cat([-right, left], -1)


PROGRAMS: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "cat of two": (lambda x: torch.cat([x, x[:, 3:] * 2], 1) + 1, [(3, 7), (2, 40), (5, 200)]),
    "cat of three": (
        lambda x: torch.cat([x, x + 1, x[:, :4]], 1).relu(), [(3, 7), (2, 40), (5, 200)]),
    "rotary halves": (lambda x: x * 2 + rotated(x), [(3, 8), (2, 64), (4, 130)]),
    "padding": (lambda x: F.pad(x, (2, 3)) * 2, [(3, 7), (2, 40), (5, 200)]),
    "triangle": (lambda x: x.tril() + x.triu(1) * 2, [(3, 3), (17, 17), (70, 70)]),
    "shifted": (lambda x: torch.cat([x[:, 1:], x[:, :1]], 1) - x, [(3, 7), (2, 40), (5, 200)]),
    "points in many dimensions": (
        lambda x: x.transpose(0, 2)[:, :, 1:] * 2, [(3, 4, 5), (7, 2, 33), (20, 3, 70)]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_loops_cut_at_sizes(name: str) -> None:
    program, shapes = PROGRAMS[name]
    check(program, [(torch.randn(shape),) for shape in shapes])


def test_rows_longer_than_the_row_buffer() -> None:
    """Values kept from one run over a row to the next, and computed again in rows too long."""
    check(lambda x: x.softmax(-1), [(torch.randn(3, n),) for n in (5, 1000, 32768, 32769, 70000)])


def test_short_rows_that_are_whole_vectors_and_others() -> None:
    """Rows within rows have a second body for lengths that are multiples of a vector's."""
    def normed_heads(x: torch.Tensor, cos: torch.Tensor) -> torch.Tensor:
        heads = (x * x.square().mean(-1, keepdim=True)).view(len(x), -1, cos.shape[-1])
        return heads * cos + rotated(heads)

    check(normed_heads, [(torch.randn(5, 4 * n), torch.randn(n)) for n in (64, 32, 20, 6)])


def test_long_columns() -> None:
    check(lambda x: x.softmax(0), [(torch.randn(n, 24),) for n in (5, 1000, 3000)])


def test_loss_that_picks_from_rows() -> None:
    calls = [(torch.randn(n, c), torch.randint(0, c, (n,))) for n, c in ((4, 9), (33, 40), (2, 9))]
    check(F.cross_entropy, calls)


def test_upsampling_by_a_whole_number() -> None:
    check(lambda x: F.interpolate(x, scale_factor=2.0) + 1,
          [(torch.randn(2, 3, n, n + 1),) for n in (4, 9)])


def parts(extent: IntExpr, *limits: IntExpr) -> list[tuple[IntExpr, IntExpr, list[bool]]]:
    """The segments of a loop that compares its variable with the limits: begin, end, answers."""
    x = loop_index("x", extent)
    b = KernelBuilder((LoopVar(x, extent),), ())
    value = b.const(0.0, "f32")
    for limit in limits:
        value = b.op("where", b.op("lt", b.index(x), b.index(limit)), b.const(1.0, "f32"), value)
    b.store("out", "f32", x, value)
    kernel = b.build("k")
    nodes = [n for n in kernel.nodes if isinstance(n, Op) and n.name == "lt"]
    return [(s.start, s.stop, [s.known[n.id] for n in nodes])
            for s in segments(kernel, kernel.outer[0])]


def test_segments_between_sizes() -> None:
    n, m = symbol("n", 2), symbol("m", 2)
    assert parts(n + m, n) == [(0, n, [True]), (n, n + m, [False])]
    assert parts(n + m + 4, n + m, n) == [
        (0, n, [True, True]), (n, n + m, [True, False]), (n + m, n + m + 4, [False, False])]
    assert parts(n + m, n, m) == []  # in which order?


def test_heads_of_a_row_are_in_the_loops_of_the_row() -> None:
    """That the row is so many heads of that size is known: a mean over it and what views it as
    heads are one kernel, whose loops need no division."""
    def program(x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
        return normed.view(*x.shape[:-1], -1, c.shape[-1]) * c

    sizes = (2, 8), (3, 40), (7, 3)
    check(program, [(torch.randn(2, 5, h * n), torch.randn(n)) for h, n in sizes])
    assert weft.stats()["kernels"] == 1


def test_sizes_of_more_than_32_bits_are_another_artifact() -> None:
    compiled = weft.compile(lambda x, y: x.shape[0] + y + 1, dynamic=True)
    long = torch.empty(1).expand(2**31 + 5)
    for x in (torch.empty(7), torch.empty(9), long):
        assert compiled(x, torch.ones(3).double()).tolist() == [x.shape[0] + 2.0] * 3
    assert weft.stats()["graphs"] == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int8])
def test_position_of_the_extreme_in_rows_of_any_length(dtype: torch.dtype) -> None:
    rows = [torch.randint(0, 9, (6, n)).to(dtype) for n in (2, 15, 16, 33, 130, 1001)]
    check(lambda x: (x.argmax(-1), x.argmin(-1)), [(x,) for x in rows])


def test_images_scaled_by_a_factor() -> None:
    """`int(size * 1.5)` and the like are whole-number formulas, not one artifact for each size."""
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (F.interpolate(x, scale_factor=1.5, mode="bilinear"),
                F.interpolate(x, scale_factor=0.5, mode="area"),
                x[..., : int(x.shape[-1] * 0.75)], x[..., : math.ceil(x.shape[-1] / 3)])

    check(program, [(torch.randn(2, 3, n, m),) for n, m in ((6, 8), (9, 7), (14, 31))])


def test_operators_that_take_plain_sizes_only() -> None:
    check(lambda x: x * torch.linspace(-1, 2, x.shape[0]), [(torch.randn(n),) for n in (3, 8, 31)])
    weft.reset()
    check(torch.kron, [(torch.randn(n, 3), torch.randn(5)) for n in (4, 7, 9)])


@pytest.mark.parametrize("program", [
    lambda x: (torch.triu_indices(n := len(x), n, 1), torch.triu_indices(n, n + 2, -2),
               torch.triu_indices(4, n, 3, dtype=torch.int32), torch.triu_indices(n, 2, n // 2)),
    lambda x: (torch.tril_indices(n := len(x), n), torch.tril_indices(n, 3, offset=1),
               torch.tril_indices(row=n, col=n, offset=-1)),
    lambda x: (torch.fft.rfftfreq(len(x)), torch.fft.fftfreq(len(x), d=0.5),
               torch.fft.fftfreq(len(x), dtype=torch.float64)),
    lambda x: (torch.hann_window(len(x)), torch.hann_window(len(x), periodic=False),
               torch.hamming_window(len(x), dtype=torch.float64)),
    lambda x: (torch.vander(x[:, 0], 3), torch.vander(x[:, 1], increasing=True)),
    lambda x: (torch.gradient(x), torch.gradient(x, spacing=0.5, dim=0)[0]),
    lambda x: (y := x @ x.mT, y.fill_diagonal_(7), y.diagonal(len(x) // 2), y.diagonal(1 - len(x)),
               torch.diagonal(y, len(x) + 3)),
    lambda x: (torch.block_diag(x, x[0], x[:, :2]), torch.combinations(x[:, 0]),
               torch.combinations(x[:, 1], with_replacement=True)),
    lambda x: (F.adaptive_avg_pool1d(x.mT, len(x) // 2 + 1), x.unfold(0, len(x) // 2 + 1, 2)),
])
def test_operators_that_take_plain_sizes_only_are_one_graph(program: Callable[..., Any]) -> None:
    compiled = weft.compile(program, backend="eager", dynamic=True)
    for rows in (6, 8, 33, 14):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x), program(x))
    assert weft.stats()["graphs"] == 1


def test_one_hot_of_as_many_classes_as_there_are() -> None:
    calls = [(torch.randint(0, n, (n,)),) for n in (4, 9, 2)]
    check(lambda x: F.one_hot(x).float().sum(0), calls)
    compiled = weft.compile(lambda x: F.one_hot(x), dynamic=True)
    with pytest.raises(RuntimeError, match="must be non-negative"):
        compiled(torch.tensor([1, -1, 0]))


def test_recurrent_loop_over_a_symbolic_length_runs_between_graphs() -> None:
    layer = torch.nn.GRU(4, 5, batch_first=True)
    calls = [(torch.randn(3, n, 4),) for n in (7, 9, 6)]
    check(lambda x: layer(x)[0] * 2, calls, graphs=2)
    assert weft.stats()["graph_breaks"] == 1


def test_rounding_to_digits_keeps_sizes_symbolic() -> None:
    def program(x: torch.Tensor) -> tuple[Any, ...]:
        n = x.shape[0]
        return x * round(n / 3, 2), round(n / 7, 1), round(n, 2), int(round(n / 3, 1) * 10)

    compiled = weft.compile(program, backend="eager", dynamic=True)
    for n in (6, 9, 14):
        x = torch.ones(n)
        assert compiled(x)[1:] == program(x)[1:] and compiled(x)[0].equal(program(x)[0])
    assert weft.stats()["graphs"] == 1


@pytest.mark.parametrize("number", [
    lambda x: np.prod(x.shape), lambda x: np.sqrt(x.shape[0]), lambda x: np.int64(x.shape[0]),
    lambda x: [np.sum(x.shape), 2], lambda x: [np.sqrt(x.shape[0]), 0.5],
])
def test_tensors_of_numpy_numbers_made_of_sizes_keep_value_and_type(number: Any) -> None:
    """They were `tensor(True)`, those of plain float64 numbers of 32 bits."""
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.tensor(number(x)), x * torch.as_tensor(number(x)).sum()

    compiled = weft.compile(program, backend="eager")
    for rows in (6, 5, 17):
        x = torch.randn(rows, 1)
        torch.testing.assert_close(compiled(x), program(x))
    assert weft.stats()["graphs"] == 2


def test_functions_of_math_take_sizes() -> None:
    def program(q: torch.Tensor) -> torch.Tensor:
        scores = q @ q.mT / math.sqrt(q.shape[-1]) + math.floor(q.shape[0] * 0.5)
        return scores[: math.ceil(q.shape[0] / 3)]

    check(program, [(torch.randn(n, m),) for n, m in ((6, 8), (9, 7), (14, 31))])


@pytest.mark.parametrize("key", [
    lambda t: t, lambda t: (slice(None), t), lambda t: (..., t), lambda t: (None, t, slice(1, 3)),
    lambda t: (t, t),
])
def test_one_integer_in_a_tensor_is_an_index(key: Callable[..., Any]) -> None:
    def program(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        y = x * 2
        part = y[key(t)]
        part += 1  # a view, as eager's
        y[key(t)] *= 3
        return y

    check(program, [(torch.randn(n, n + 1), torch.tensor(k))
                    for n, k in ((6, 5), (9, 0), (7, -2))])


def test_int_of_a_float_in_a_tensor() -> None:
    def program(x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return x[: int(t)] * int(t.item() * 2.5)

    check(program, [(torch.randn(20), torch.tensor(v)) for v in (3.7, 0.9, 11.2)])
    compiled = weft.compile(lambda x, t: x * int(t), dynamic=True)
    with pytest.raises(ValueError, match="NaN"):
        compiled(torch.ones(3), torch.tensor(float("nan")))


# name → a program of tensors and a number that changes.
WITH_NUMBERS: dict[str, Callable[[torch.Tensor, torch.Tensor, float], Any]] = {
    "quotient": lambda x, y, t: (x / t).softmax(-1),
    "scaled": lambda x, y, t: torch.add(x, y, alpha=t),
    "clamped": lambda x, y, t: x.clamp(-t, t),
    "power": lambda x, y, t: x.abs() ** t,
    "filled": lambda x, y, t: torch.full_like(x, t * 2) + torch.full((3, 4), t, dtype=x.dtype),
    "between": lambda x, y, t: x.lerp(y, t),
    "optimizer": lambda x, y, t: x.addcmul(y, y, value=1 - t).addcdiv(y, x, value=-t),
    "compared": lambda x, y, t: torch.where(x > t, x, t),
    "half": lambda x, y, t: x.half() * t,
    "of a size": lambda x, y, t: x * (t / y.shape[-1] ** 0.5),
    "layer norm": lambda x, y, t: F.layer_norm(x, (4,), eps=abs(t)).relu(),
    "group norm": lambda x, y, t: F.group_norm(x, 2, y[0], eps=abs(t)) * y,
    "batch norm": lambda x, y, t: F.batch_norm(x, x[0], y[0], eps=abs(t) + 1e-5) + y,
}


@pytest.mark.parametrize("name", WITH_NUMBERS)
def test_floats_are_arguments_of_kernels(name: str) -> None:
    """They were tensors in memory, made by a call of ATen's for each."""
    program = WITH_NUMBERS[name]
    compiled = weft.compile(program)
    x, y = torch.randn(3, 4), torch.randn(3, 4).abs() + 1
    for number in (0.5, 0.7, 1.5, -0.0, float("inf")):
        torch.testing.assert_close(
            compiled(x, y, number), program(x, y, number), equal_nan=True, rtol=1e-4, atol=1e-6)
    assert weft.stats()["graphs"] == 2 and not weft.stats()["extern_calls"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_quotients_by_a_number_of_the_call_are_exact(dtype: torch.dtype) -> None:
    """Kernels multiply instead of dividing by powers of two, where that gives the same bits."""
    tiny, huge = torch.finfo(dtype).tiny, torch.finfo(dtype).max
    x = torch.tensor([0.0, -0.0, 1.0, 3.3, -7.1, tiny, tiny / 4, huge, math.inf, math.nan],
                     dtype=dtype).repeat(5)
    compiled = weft.compile(lambda x, t: (x / t, x + 1))
    bits = {torch.float32: 127, torch.float64: 1023}[dtype]
    for number in (3.0, 1.0, 8.0, -0.25, 0.0, math.inf, math.nan, 2.0**bits, 2.0**-bits,
                   2.0 ** (1 - bits), 2.0 ** -(bits + 3), 11.313708498984761):
        torch.testing.assert_close(
            compiled(x, number)[0], x / number, rtol=0, atol=0, equal_nan=True)
    assert weft.stats()["graphs"] == 2


@pytest.mark.parametrize("align_corners", [True, False])
@pytest.mark.parametrize("rank", [2, 3])
def test_gradient_of_an_affine_grid_of_symbolic_sizes(rank: int, align_corners: bool) -> None:
    """PyTorch's derivative takes plain sizes: the graph ran operator by operator."""

    def grid(theta: torch.Tensor, image: torch.Tensor) -> torch.Tensor:
        return F.affine_grid(theta, image.size(), align_corners=align_corners)

    compiled = weft.compile(grid, dynamic=True)
    for batch, *space in ((6, 5, 7, 8), (7, 8, 9, 5)):
        theta = torch.randn(batch, rank, rank + 1, requires_grad=True)
        image = torch.empty(batch, 3, *space[:rank])
        found, wanted = compiled(theta, image), grid(theta, image)
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
        weights = torch.randn_like(wanted)
        torch.testing.assert_close(
            torch.autograd.grad(found, theta, weights), torch.autograd.grad(wanted, theta, weights))
    assert weft.stats()["graphs"] == 1


LOSSES = {
    "sum over a size": lambda x: x.sum() / x.size(0),
    "smooth_l1": lambda x: F.smooth_l1_loss(x, x.detach() * 2 + 0.1),
    "kl_div": lambda x: F.kl_div(F.log_softmax(x, -1), x.detach().softmax(-1),
                                 reduction="batchmean"),
    "constant over a size": lambda x: (x * (torch.ones(()) / x.size(0))).sum(),
}


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("name", LOSSES)
def test_a_constant_divided_by_a_symbolic_size_is_not_folded(name: str, backend: str) -> None:
    """The gradient of a mean in a captured step was made of NaN, or of a size that no call had."""

    def step(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        loss = LOSSES[name](x)
        return loss, *torch.autograd.grad(loss, x)

    compiled = weft.compile(step, backend=backend, dynamic=True)
    for rows in (5, 8):
        x = torch.randn(rows, 7, requires_grad=True)
        torch.testing.assert_close(compiled(x), step(x))
    assert weft.stats()["graphs"] == 1


def test_a_size_that_a_guard_makes_one_is_broadcast() -> None:
    """`(s0 + 1) // 2` was not seen to be 1, and read as a dimension of its own length."""

    def f(x: torch.Tensor) -> torch.Tensor:
        y = F.max_pool2d(x, 2, ceil_mode=True)
        return F.unfold(y, 3, padding=3).mean(1)[:, None, :, None] + y.mean(3, keepdim=True)

    compiled = weft.compile(f, dynamic=True)
    for size in ((2, 4, 2, 9), (3, 4, 2, 5)):
        x = torch.randn(size)
        torch.testing.assert_close(compiled(x), f(x))


def test_rolled_images_keep_their_layout() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.roll(1, 2) * 2, x.roll((1, 2), (2, 3))

    compiled = weft.compile(f, dynamic=True)
    for form in (torch.contiguous_format, torch.channels_last):
        x = torch.randn(2, 3, 4, 5).to(memory_format=form)
        for made, wanted in zip(compiled(x), f(x), strict=True):
            assert torch.equal(made, wanted) and made.stride() == wanted.stride()


def test_nearest_pixels_at_twice_the_size_go_by_the_size() -> None:
    """From 2 to int(2 * 2.4) = 4 rows the kernel repeats each twice; PyTorch's Python form asks the
    factor, and takes the first three times."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, scale_factor=2.4, mode="nearest")

    compiled = weft.compile(f, dynamic=True)
    for size in ((2, 3, 5, 6), (2, 3, 2, 6), (3, 2, 7, 2), (2, 3, 2, 4)):
        x, y = (torch.arange(float(math.prod(size))).view(size).requires_grad_() for _ in range(2))
        made, wanted = compiled(x), f(y)
        assert torch.equal(made, wanted)
        (made**2).sum().backward()
        (wanted**2).sum().backward()
        torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.parametrize("rank", [1, 3])
def test_nearest_pixels_of_lines_and_volumes_go_by_the_factor(rank: int) -> None:
    """The kernel for images alone goes by the sizes; the backwards of the others do too."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, scale_factor=2.4, mode="nearest")

    same_with_gradients(f, [(2, 3, *[length] * rank) for length in (5, 2, 7, 3)], True)


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("mode", ["linear", "bilinear", "trilinear"])
def test_dimensions_that_stay_are_copied_whatever_the_factor(mode: str, dynamic: bool) -> None:
    """From 4 to int(4 * 1.2) rows nothing is interpolated; PyTorch's formulas go by the factor."""

    def f(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, scale_factor=1.2, mode=mode)

    sizes = (4, 7) if mode == "linear" else ((4, 7), (6, 3)) if mode == "bilinear" else ((4, 7, 3),)
    shapes = [(1, 2, *(size if isinstance(size, tuple) else (size,))) for size in sizes]
    same_with_gradients(f, shapes, dynamic)


def same_with_gradients(
    f: Callable[[torch.Tensor], torch.Tensor], shapes: list[tuple[int, ...]], dynamic: bool
) -> None:
    compiled = weft.compile(f, dynamic=dynamic)
    for shape in shapes:
        x = torch.randn(shape, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        made, wanted = compiled(y), f(x)
        torch.testing.assert_close(made, wanted)
        (made**2).sum().backward()
        (wanted**2).sum().backward()
        torch.testing.assert_close(y.grad, x.grad)


def test_remainders_of_numbers_beyond_64_bits() -> None:
    """Python's ints have no end; what a kernel divided had wrapped around."""

    def hashed(x: torch.Tensor, seed: int) -> torch.Tensor:
        return (x * (seed * 6364136223846793005 % 1000003) + (seed**3 + 1) // 7 % 1009) % 97

    check(hashed, [(torch.arange(5), seed) for seed in (3, 12345, 987654321, 2**40, 0)])


def test_a_view_by_strides_starts_at_a_symbolic_offset() -> None:
    def last_rows(x: torch.Tensor) -> torch.Tensor:
        return (x + 1).as_strided((2, 4), (4, 1), x.shape[0] // 3 * 4).exp()

    check(last_rows, [(torch.randn(n, 4),) for n in (6, 9, 12)])


def test_no_size_is_open_in_a_view_of_nothing() -> None:
    """Eager raises: any size would do."""

    def rows(x: torch.Tensor) -> torch.Tensor:
        return x[: len(x) // 4 * 4].view(len(x) // 4, 4, -1).sum(1)

    check(rows, [(torch.randn(n, 3),) for n in (8, 12, 13)])
    with pytest.raises(RuntimeError, match="0 elements"):
        weft.compile(rows, dynamic=True)(torch.randn(3, 3))


def test_slices_of_a_symbolic_step() -> None:
    """The step was compared as a plain number, and nothing compiled."""
    def program(x: torch.Tensor, k: int) -> tuple[torch.Tensor, ...]:
        y = torch.zeros(x.shape[0] * k, x.shape[1])
        y[::k] = x
        return y, x[:, 1::k] * 2

    check(program, [(torch.randn(n, 7), k) for n, k in ((8, 2), (9, 3), (12, 5))])
