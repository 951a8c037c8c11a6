"""Programs called with changing sizes and numbers: the right results, and few compilations."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import weft
from weft.aot.pipeline import compile_aot
from weft.aot.python_code import compile_calls
from weft.errors import FixedDimensionError
from weft.shapes.context import ShapeContext
from weft.shapes.fakes.fake import FakeContext

BACKENDS = ["eager", "inductor"]


pytestmark = pytest.mark.usefixtures("fresh")


def compilations(
    program: Callable[..., Any],
    calls: list[tuple[Any, ...]],
    *,
    backend: str = "eager",
    dynamic: bool | None = None,
) -> int:
    """How many graphs it takes to serve all calls, each compared with eager."""
    compiled = weft.compile(program, backend=backend, dynamic=dynamic)
    before = weft.stats()["graphs"]
    with torch.no_grad():
        for args in calls:
            again = [a.clone() if isinstance(a, torch.Tensor) else a for a in args]
            torch.testing.assert_close(compiled(*args), program(*again), rtol=1e-4, atol=1e-5)
    return weft.stats()["graphs"] - before


def sizes(*values: int) -> list[tuple[torch.Tensor]]:
    return [(torch.randn(3, n),) for n in values]


# name → (program, calls): two compilations each, the second one with symbolic sizes.
TWO: dict[str, tuple[Callable[..., Any], Callable[[], list[tuple[Any, ...]]]]] = {
    "size in arithmetic": (
        lambda x: x[:, 1 : x.shape[1] // 2] * x.shape[1],
        lambda: sizes(8, 10, 13),
    ),
    "cat": (
        lambda x, y: torch.cat([x, y]).cumsum(0).softmax(0),
        lambda: [
            (torch.randn(a, 5), torch.randn(b, 5)) for a, b in ((3, 4), (5, 6), (7, 9), (9, 2))
        ],
    ),
    "python int": (
        lambda x, k: x * k + k,
        lambda: [(torch.ones(4), k) for k in (2, 3, 4, 0, 1, -5)],
    ),
    "int as size": (
        lambda x, k: x[:k].sum(0) / k,
        lambda: [(torch.randn(9, 3), k) for k in (2, 3, 4, 8)],
    ),
    "python float": (
        lambda x, t: torch.softmax(x / t, -1) + t,
        lambda: [(torch.randn(9, 3), t) for t in (0.5, 0.7, 0.9, 1.0)],
    ),
    "float of a size": (lambda x: x / x.shape[-1] ** 0.5, lambda: sizes(8, 10, 13)),
    "int of a float": (
        lambda x, k: x + int(k * 2),
        lambda: [(torch.ones(3), k) for k in (2, 3, 5)],
    ),
    "new tensor": (
        lambda x: x + torch.arange(x.shape[1], device=x.device),
        lambda: sizes(8, 10, 13),
    ),
    "split": (lambda x: [c.relu() for c in x.split(x.shape[1] // 2, 1)], lambda: sizes(8, 10, 14)),
    "pad to a fixed size": (lambda x: F.pad(x, (0, 32 - x.shape[1])), lambda: sizes(8, 10, 14)),
    "interpolate": (lambda x: F.interpolate(x[None], scale_factor=2.0), lambda: sizes(8, 10, 14)),
    "transposed input": (lambda x: x.relu().sum(0), lambda: [(x.t(),) for (x,) in sizes(8, 9, 16)]),
    "strided input": (
        lambda x: x.relu() + 1,
        lambda: [(torch.randn(20, 5)[:n, :3],) for n in (8, 9, 16)],
    ),
    "list of tensors": (
        lambda xs: sum(x.relu().sum() for x in xs),
        lambda: [([torch.randn(n, 3), torch.randn(n, 3)],) for n in (8, 12, 16)],
    ),
    "in-place": (lambda x: x.add_(1).mul_(x.shape[1]), lambda: sizes(8, 12, 16)),
    "size returned": (lambda x: (x + 1, x.shape[1] * 2 + 1, x.shape), lambda: sizes(8, 12, 16)),
    "numel": (lambda x: x.sum() / x.numel(), lambda: sizes(8, 12, 16)),
    "conditional on a size": (
        lambda x: x + 1 if x.size(1) > 5 else x - 1,
        lambda: sizes(8, 12, 16),
    ),
    "cross entropy": (
        lambda x, t: F.cross_entropy(x, t),
        lambda: [(torch.randn(n, 6), torch.randint(0, 6, (n,))) for n in (8, 12, 16)],
    ),
    "convolution": (
        nn.Sequential(
            nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1)
        ).eval(),
        lambda: [(torch.randn(b, 3, n, n),) for b, n in ((2, 16), (3, 20), (5, 33))],
    ),
}


@pytest.mark.parametrize("name", TWO)
@pytest.mark.parametrize("backend", BACKENDS)
def test_two_compilations_serve_all_sizes(name: str, backend: str) -> None:
    program, calls = TWO[name]
    assert compilations(program, calls(), backend=backend) == 2


class Block(nn.Module):
    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        qkv = self.qkv(self.first(x)).view(b, t, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(attended.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.second(x))))


BLOCK_CALLS = ((8, 16), (16, 24), (4, 9))


@pytest.mark.parametrize(("dynamic", "expected"), [(True, 1), (None, 2), (False, 3)])
def test_transformer_block(dynamic: bool | None, expected: int) -> None:
    calls = [(torch.randn(b, t, 32),) for b, t in BLOCK_CALLS]
    made = compilations(Block().eval(), calls, backend="inductor", dynamic=dynamic)
    assert made == expected


def test_training_step_with_changing_batch() -> None:
    block = Block()
    compiled = weft.compile(block, backend="inductor", dynamic=True)
    for b, t in BLOCK_CALLS:
        x = torch.randn(b, t, 32)
        expected = torch.autograd.grad(block(x).square().mean(), list(block.parameters()))
        actual = torch.autograd.grad(compiled(x).square().mean(), list(block.parameters()))
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-5)
    assert weft.stats()["graphs"] == 1


def leaky(x: torch.Tensor) -> torch.Tensor:
    """C++ adds up the two slopes, which are no longer seen to be of sizes then."""
    return F.rrelu(x * 2, 0.1 / x.shape[2], 0.3 / x.shape[2]) + 1


def test_plain_numbers_of_sizes_end_the_graph_in_the_last_variant_only() -> None:
    """One artifact a size until the limit, and the last one for the rest."""
    calls = [(torch.randn(2, 3, n),) for n in range(5, 17)]
    limit = weft.config.cache_size_limit
    assert compilations(leaky, calls[:limit - 1]) == limit - 1
    assert weft.stats()["graph_breaks"] == 0
    assert compilations(leaky, calls) <= limit + 2
    assert weft.stats()["graph_breaks"] == 1


def test_plain_floats_of_sizes_are_fixed_in_whole_graphs() -> None:
    compiled = weft.compile(leaky, backend="eager", fullgraph=True)
    for n in range(5, 12):
        x = torch.randn(2, 3, n)
        torch.testing.assert_close(compiled(x), leaky(x))


def test_a_table_that_is_resized_by_a_factor_of_sizes_has_one_artifact() -> None:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x * 2, scale_factor=(x.shape[2] + 0.1) / 4, mode="nearest") + 1

    assert compilations(scaled, [(torch.randn(2, 3, n),) for n in range(5, 17)]) == 2


def test_next_powers_of_two_stay_symbolic() -> None:
    def padded(x: torch.Tensor) -> torch.Tensor:
        n = 2 ** math.ceil(math.log2(2 * x.shape[1]))
        return F.pad(x, (0, n - x.shape[1])).cumsum(1)[:, :: 1 << (x.shape[1] - 1).bit_length()]

    assert compilations(padded, sizes(5, 7, 33, 64, 65)) == 2


def test_gradients_of_padded_windows_need_no_variant_for_lengths_that_fit() -> None:
    def windows(x: torch.Tensor) -> torch.Tensor:
        padded = F.pad(x, (0, 0, 0, (8 - x.shape[1] % 8) % 8))
        return padded.view(len(x), -1, 8, 4).softmax(2).flatten(1, 2)[:, : x.shape[1]]

    compiled = weft.compile(windows, dynamic=True)
    for n in (20, 9, 24, 33):
        x = torch.randn(2, n, 4, requires_grad=True)
        expected = torch.autograd.grad(windows(x).square().sum(), x)
        torch.testing.assert_close(torch.autograd.grad(compiled(x).square().sum(), x), expected)
    assert weft.stats()["graphs"] == 1


def test_padded_windows_are_added_to_their_input_at_any_length() -> None:
    """What is added to rows of another stride lies as the first operand does: no question whether
    the length is a multiple of 8."""

    def residual(x: torch.Tensor) -> torch.Tensor:
        padded = F.pad(x, (0, 0, 0, -x.shape[1] % 8)).view(-1, 8, 4).softmax(1)
        return x + padded.view(2, -1, 4)[:, : x.shape[1]]

    compiled = weft.compile(residual, backend="aot_eager")
    for n in (20, 9, 24, 33):
        x = torch.randn(2, n, 4)
        made, wanted = compiled(x), residual(x)
        torch.testing.assert_close(made, wanted)
        assert made.stride() == wanted.stride()
    assert weft.stats()["graphs"] == 2


def test_fifty_lengths_and_five_batches() -> None:
    mlp = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 4))
    calls = [(torch.randn(b, t, 16),) for t in range(2, 52) for b in (2, 3, 5, 8, 13)]
    assert compilations(mlp, calls) <= 3


def test_branch_on_a_size_makes_one_variant_a_side() -> None:
    calls = [(torch.randn(n),) for n in (10, 20, 30, 2000, 3000, 40)]
    program = lambda x: x + 1 if x.size(0) > 1000 else x * 2
    assert compilations(program, calls, dynamic=True) == 2


def test_sizes_zero_and_one_get_variants_of_their_own() -> None:
    calls = [(torch.randn(n, 4),) for n in (5, 6, 1, 0, 7)]
    assert compilations(lambda x: x.sum(0, keepdim=True) + x.shape[0], calls, dynamic=True) == 3


def test_marked_dimension_is_symbolic_from_the_start() -> None:
    compiled = weft.compile(lambda x: x * x.shape[0], backend="eager")
    x = torch.randn(4, 3)
    weft.mark_dynamic(x, 0)
    compiled(x)
    torch.testing.assert_close(compiled(torch.ones(9, 3)), torch.full((9, 3), 9.0))
    assert weft.stats()["graphs"] == 1


@pytest.mark.parametrize("wrap", [lambda n: n, lambda n: [n], lambda n: {"n": n}])
def test_numbers_of_the_call_are_symbolic_from_the_start(wrap: Callable[[Any], Any]) -> None:
    def program(x: torch.Tensor, n: Any) -> torch.Tensor:
        return x * (n if isinstance(n, int | float) else n["n"] if isinstance(n, dict) else n[0])

    x = torch.randn(4, 3)
    for numbers in ((3, 4, 7), (0.5, 0.25, 3.5)):
        assert compilations(program, [(x, wrap(n)) for n in numbers], dynamic=True) == 1


def test_dynamic_false_never_makes_symbols() -> None:
    assert compilations(lambda x: x + 1, sizes(4, 5, 6), dynamic=False) == 3


def test_equal_sizes_that_part_are_told_apart() -> None:
    """Sizes that share a symbol because they were equal get one each once they differ."""
    calls = [(torch.randn(n), torch.randn(m)) for n, m in ((4, 4), (6, 6), (5, 8), (9, 2), (3, 3))]
    assert compilations(lambda x, y: x.sum() + y.cumsum(0), calls) <= 3


@pytest.mark.parametrize("dynamic", [None, True])
def test_sizes_of_square_images_are_independent(dynamic: bool | None) -> None:
    """Height and width get a symbol each; a second tensor of such sizes has the same two."""
    calls = [(torch.randn(2, h, w), torch.randn(2, h, w))
             for h, w in ((12, 12), (16, 16), (9, 13), (7, 5))]
    assert compilations(lambda x, y: x.mean(1) + y.mean(1), calls, dynamic=dynamic) <= 2


def test_dimension_of_size_one_with_changing_neighbour() -> None:
    """Its stride follows the neighbour's size and must not be guarded as a constant."""
    calls = [(torch.randn(1, n, 4),) for n in (8, 9, 10, 12)]
    assert compilations(lambda x: x * 2, calls) == 2


def test_marked_dimension_that_the_program_fixes_is_an_error() -> None:
    x = torch.randn(8, 3)
    weft.mark_dynamic(x, 0)
    with pytest.raises(FixedDimensionError, match=r"x.size\(0\) is marked dynamic.* only for 8"):
        weft.compile(lambda x: x.view(8, 3) + 1, backend="eager")(x)


def test_explanation_names_symbols_and_who_asked() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.shape[0] > 5 else x

    x = torch.randn(8, 3)
    weft.mark_dynamic(x, 0)
    text = str(weft.explain(program)(x))
    assert "x.size(0)" in text and "s0 >= 6" in text and "test_dynamic.py" in text


def test_divisibility_asked_by_a_view_leaves_one_guard() -> None:
    """``(3*s0) % 4 == 0`` implies all that PyTorch's view asks about sizes afterwards."""
    shapes, context = ShapeContext(), FakeContext()
    x = context.fake(torch.randn(8, 3), sizes=[shapes.size(8, "x"), 3])
    with context.mode:
        assert x.view(-1, 4).shape[1] == 4
    assert len(shapes.guards) <= 2


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("part", [
    lambda t: t[:, 2], lambda t: t[:, :4], lambda t: t[:, 1:].t(), lambda t: t[::2, 1:-1],
])
def test_parts_of_tensors_of_other_widths_are_one_artifact(part: Any, gradients: bool) -> None:
    """Their strides change, and follow from no size of theirs."""
    program = lambda x: (x * 2).sin().sum(-1)
    compiled = weft.compile(program)
    for width in (6, 9, 14, 33):
        x = part(torch.randn(12, width).requires_grad_(gradients))
        found, wanted = compiled(x), program(x)
        torch.testing.assert_close(found, wanted)
        if gradients:
            for left, right in zip(*(torch.autograd.grad(y.sum(), x) for y in (found, wanted)),
                                   strict=True):
                torch.testing.assert_close(left, right)
    assert weft.stats()["graphs"] == 2


def test_what_follows_from_ranges_leaves_no_guards() -> None:
    """``b*c > a*b*c`` never holds; a root of a size is not negative: both were guards (the second
    one in Python, each call)."""
    shapes = ShapeContext()
    a, b, c = (shapes.size(n, name) for n, name in ((2, "a"), (3, "b"), (5, "c")))
    assert not b * c > a * b * c
    assert a * b * c >= b * c
    assert torch.sym_float(a) ** 0.5 / torch.sym_sqrt(b) >= 0
    assert not shapes.guards


@pytest.mark.parametrize("dynamic", [True, None])
@pytest.mark.parametrize("run", [
    lambda x: F.max_pool1d(x.mT, 2),
    lambda x: F.batch_norm(x.mT, None, None, training=True),
    lambda x: F.pad(x.mT, (0, -x.shape[1] % 4)).reshape(-1, 4).view(x.shape[0], 3, -1),
    lambda x: F.pad(x.mT, (0, x.shape[1] % 2)),
])
def test_results_of_transposed_inputs_lie_as_eagers_do(run, dynamic):
    compiled = weft.compile(run, backend="aot_eager", dynamic=dynamic)
    for n in (8, 5, 6, 7, 16):
        x = torch.randn(2, n, 3)
        assert compiled(x).stride() == run(x).stride()


def test_pooled_rows_of_one_element_lie_as_eagers_do() -> None:
    """They counted as contiguous as they were, and what was computed of them lay otherwise."""
    def pooled(x: torch.Tensor) -> torch.Tensor:
        return F.max_pool1d(x.mT, 2, 1, 1).mT[:, :1] * 2

    compiled = weft.compile(pooled, dynamic=True)
    for x in (torch.randn(7, 3, 8), torch.randn(7, 1, 8)):
        assert compiled(x).stride() == pooled(x).stride()


@pytest.mark.parametrize("prepare", [
    lambda x: F.group_norm(x.mT, 2).mT,
    lambda x: F.group_norm(F.max_pool1d(x.mT, 4, ceil_mode=True), 2).mT,
], ids=["group_norm", "pool"])
def test_what_is_computed_of_one_column_lies_as_eagers(prepare):
    """Where a size may be 1, it depends on it whether an operand is dense."""
    def program(x):
        z = prepare(x)
        return z[:, :, None] + z.mean(1)[:, None, None].expand(-1, z.shape[1], 2, -1)

    compiled = weft.compile(program, dynamic=True)
    with torch.no_grad():
        for n in (1, 4, 5, 8):
            x = torch.randn(3, n, 8)
            assert compiled(x).stride() == program(x).stride()


def test_views_of_one_column_that_became_one_view_lay_otherwise():
    def program(x):
        return x.mT.flatten().view(x.mT.shape)

    for dynamic in (False, True):
        compiled = weft.compile(program, backend="aot_eager", dynamic=dynamic)
        for x in (torch.randn(7, 1, 8), torch.randn(5, 1, 6)):
            assert compiled(x).stride() == program(x).stride()


def test_resizing_to_symbolic_sizes_stays_one_operator():
    """It was gathered by indices, pixel for pixel."""
    operators = []

    def backend(gm, inputs):
        def watch(graph):
            operators.extend(str(node.target) for node in graph.graph.nodes)
            return compile_calls(graph)

        return compile_aot(gm, inputs, watch)

    def program(x, y):
        return F.interpolate(x, size=y.shape[2:]) + y

    compiled = weft.compile(program, backend=backend, dynamic=True)
    for n in (4, 6):
        x, y = torch.randn(2, 3, n, 5), torch.randn(2, 3, n + 4, 15)
        torch.testing.assert_close(compiled(x, y), program(x, y))
    assert operators.count("aten.upsample_nearest2d.default") == 1
    assert "aten._unsafe_index.Tensor" not in operators


def test_images_without_pixels_are_refused():
    compiled = weft.compile(lambda x: F.interpolate(x, scale_factor=0.5), dynamic=True)
    assert compiled(torch.ones(1, 2, 6)).shape == (1, 2, 3)
    with pytest.raises(RuntimeError, match="greater than 0"):
        compiled(torch.ones(1, 2, 1))


def test_gradients_of_fourier_transforms_take_any_length():
    def f(x):
        n = x.shape[1]
        return torch.fft.irfft(torch.fft.rfft(x, 2 * n, dim=1) * 2, 2 * n, dim=1)[:, :n]

    compiled = weft.compile(f, backend="aot_eager", dynamic=True, fullgraph=True)
    for n in (5, 8, 9):
        x = torch.randn(2, n, 3, requires_grad=True)
        grads = [torch.autograd.grad(g(x).square().sum(), x)[0] for g in (compiled, f)]
        torch.testing.assert_close(*grads)
    assert weft.stats()["graphs"] == 1


def test_a_size_that_an_autograd_function_keeps_for_its_backward() -> None:
    """It was guarded to be the same in each call."""

    class Half(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.length = x.shape[0]
            return x[: ctx.length // 2] * 3

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return F.pad(grad * 3, (0, 0, 0, ctx.length - grad.shape[0]))

    def program(x: torch.Tensor) -> torch.Tensor:
        return Half.apply(x.exp()).sin()  # type: ignore[no-untyped-call,no-any-return]

    compiled = weft.compile(program, backend="aot_eager")
    for n in (4, 5, 8, 9):
        x = torch.randn(n, 2, requires_grad=True)
        expected, actual = (torch.autograd.grad(f(x).sum(), x) for f in (program, compiled))
        torch.testing.assert_close(actual, expected)
    assert weft.stats()["graphs"] == 2


class Mode(enum.IntEnum):
    FIRST = 3
    SECOND = 7


class Flags(enum.IntFlag):
    ODD = 1


def test_numbers_are_compared_with_members_of_enumerations() -> None:
    """A symbolic number equalled no member."""
    def program(x: torch.Tensor, n: int) -> torch.Tensor:
        match n:
            case Mode.FIRST:
                return x + 1
        return x * 2 if Mode.SECOND == n else x + n * Mode.SECOND

    x = torch.ones(2)
    # The first number, each member, and all others.
    assert compilations(program, [(x, n) for n in (2, 5, 3, 7, 8, 11)]) == 4


def test_a_number_is_compared_with_a_complex_one() -> None:
    def program(x: torch.Tensor, n: int) -> torch.Tensor:
        return x * 2 if n == 7 + 0j else x + 1

    compilations(program, [(torch.ones(2), n) for n in (2, 5, 7)])


def test_operations_of_an_enumeration_are_its_own() -> None:
    def program(x: torch.Tensor, n: int) -> Any:
        n |= Flags.ODD
        return x + n, n

    compiled = weft.compile(program, backend="eager")
    for n in (2, 4, 6, 8):
        assert type(compiled(torch.ones(1), n)[1]) is Flags


@pytest.mark.parametrize("change", [
    lambda x, y: x.resize_(y.shape).copy_(y), lambda x, y: x.squeeze_().add_(1)])
def test_an_input_whose_symbolic_sizes_the_graph_changes(change):
    def f(x, y):
        change(x, y)
        return x * 2

    compiled = weft.compile(f, backend="aot_eager", dynamic=True)
    for n in (3, 4):
        x, y = torch.ones(1, n - 1), torch.randn(n)
        expected, actual = x.clone(), x.clone()
        assert torch.equal(compiled(actual, y), f(expected, y))
        assert torch.equal(actual, expected)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_sizes_times_complex_tensors_stay_symbolic(backend: str) -> None:
    """Fourier transforms divided by their length were compiled anew for each length."""
    def f(x: torch.Tensor) -> torch.Tensor:
        length = min(x.shape[1], 64)
        z = torch.fft.rfft(x) / length
        return torch.fft.irfft(z * x.shape[1] - x.shape[0] / 3)

    weft.reset()
    compiled = weft.compile(f, backend=backend, dynamic=True)
    for length in (16, 20):
        x = torch.linspace(-1, 1, 3 * length).view(3, length).requires_grad_()
        found, wanted = compiled(x), f(x)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(*(torch.autograd.grad(y.sum(), x) for y in (found, wanted)))
    assert weft.stats()["graphs"] == 1


def test_sizes_found_equal_keep_their_order_in_memory():
    """A size known to equal another one had no hint, so that the strides of a tangent were put in
    another order: the gradient was wrong."""
    x, tangent = torch.randn(4, 5, 5, requires_grad=True), torch.randn(4, 5, 5)
    compiled = weft.compile(torch.matrix_exp, dynamic=True)
    (found,) = torch.autograd.grad(compiled(x), x, tangent)
    (wanted,) = torch.autograd.grad(torch.matrix_exp(x), x, tangent)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_the_groups_of_a_convolution_were_no_symbolic_number():
    def program(x, weight):
        return F.conv2d(x, weight, groups=weight.shape[0])

    compiled = weft.compile(program, dynamic=True, fullgraph=True)
    for n in (3, 4):
        x, weight = torch.randn(2, n, 8, 9), torch.randn(n, 1, 3, 3)
        torch.testing.assert_close(compiled(x, weight), program(x, weight), rtol=1e-4, atol=1e-4)
