"""What ends in one kernel, and what the loops of the kernels look like."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.codegen.compiling import check, compiled
from weft.codegen.domain import Domain, refine
from weft.codegen.ir.loop_ir import Load, Op
from weft.config import config


def test_pointwise_chain_is_one_kernel() -> None:
    artifact = check(lambda x: (x.relu() + x.sigmoid()) * x.tanh(), torch.randn(4, 5, 6))
    assert len(artifact.kernels) == 1
    assert len(artifact.kernels[0].outer) == 1  # contiguous dimensions are merged


def test_softmax_is_one_kernel() -> None:
    artifact = check(lambda x: torch.softmax(x, -1), torch.randn(4, 5, 6))
    assert len(artifact.kernels) == 1
    assert [str(v.extent) for v in artifact.kernels[0].outer] == ["20"]


def test_norm_activation_and_residual_are_one_kernel() -> None:
    def block(x, w, b):
        return x + F.gelu(F.layer_norm(x, (64,), w, b))

    artifact = check(block, torch.randn(3, 7, 64), torch.randn(64), torch.randn(64))
    assert len(artifact.kernels) == 1


def test_log_softmax_and_loss_are_few_kernels() -> None:
    def loss(x, target):
        return F.cross_entropy(x, target)

    artifact = check(loss, torch.randn(16, 50), torch.randint(0, 50, (16,)))
    assert len(artifact.kernels) <= 2


def test_pointwise_before_a_reduction_is_not_stored() -> None:
    artifact = check(lambda x, y: (x * y).sum(1), torch.randn(8, 9), torch.randn(8, 9))
    assert [b.name for b in artifact.kernels[0].buffers] == ["in0", "in1", "buf0"]


def test_views_between_operators_do_not_cut() -> None:
    def split_heads(x, y):
        return (x.relu().view(4, 6, 2, 8).permute(0, 2, 1, 3) + y).exp()

    artifact = check(split_heads, torch.randn(4, 6, 16), torch.randn(4, 2, 6, 8))
    assert len(artifact.kernels) == 1


def test_two_outputs_over_the_same_input_share_a_kernel() -> None:
    artifact = check(lambda x: (x.sin(), x.cos()), torch.randn(100))
    assert len(artifact.kernels) == 1


def test_group_norm_and_swish_are_one_kernel() -> None:
    def block(x, w, b):
        return F.silu(F.group_norm(x, 4, w, b))

    artifact = check(block, torch.randn(2, 8, 5, 5), torch.randn(8), torch.randn(8))
    assert len(artifact.kernels) == 1


def test_a_library_call_between_keeps_the_order() -> None:
    def chain(x, w):
        y = x.relu()
        return (y @ w).relu() + y

    artifact = check(chain, torch.randn(8, 8), torch.randn(8, 8))
    assert artifact.extern_ops == ["aten.mm.default"]
    assert len(artifact.kernels) == 2


def test_no_fusion_across_a_third_step() -> None:
    """z needs y and mm(y): fusing z with y would need mm's result before it exists."""

    def diamond(x, w):
        y = x.exp()
        return (y @ w) + y, y.sum(1)

    check(diamond, torch.randn(8, 8), torch.randn(8, 8))


def test_transposed_operand() -> None:
    check(lambda x, y: x.t() + y, torch.randn(7, 5), torch.randn(5, 7))


def test_channels_last_input_keeps_its_layout() -> None:
    x = torch.randn(2, 8, 5, 5).to(memory_format=torch.channels_last)
    artifact = check(lambda x, w: (x * w).relu(), x, torch.randn(1, 8, 1, 1))
    assert len(artifact.kernels[0].outer) == 2  # (n, h, w) merged, and c


def test_the_log_tells_why() -> None:
    artifact = check(lambda x, y: (x.sum(1), y.sum(0)), torch.randn(4, 5), torch.randn(4, 5))
    joined = check(lambda x: x.softmax(1), torch.randn(4, 5))
    assert any("yes, producer" in d for d in joined.decisions)
    assert not any(": yes" in d for d in artifact.decisions)


def test_dead_code_is_not_computed() -> None:
    def function(x):
        (x @ x).exp()
        return x + 1

    artifact = check(function, torch.randn(4, 4))
    assert "mm" not in artifact.source


def test_kernels_keep_to_a_number_of_buffers() -> None:
    def residuals(*xs):
        total, normed = xs[0], []
        for x in xs[1:]:
            total = total + x
            normed.append((total - 1.5) * 2.0)
        return normed

    artifact = check(residuals, *[torch.randn(8, 16) for _ in range(40)])
    assert len(artifact.kernels) > 1
    assert all(len(k.buffers) <= config.max_fusion_buffers for k in artifact.kernels)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
@pytest.mark.parametrize("step", [2, 3, 4])
def test_elements_that_lie_apart(step: int, dtype: torch.dtype) -> None:
    """Every second (third, fourth) element read and written, without reading past the end."""

    def turned(x):
        parts = [x[..., k::step] for k in range(step)]
        return torch.stack(parts[::-1], -1).flatten(-2), parts[-1] ^ parts[0] if dtype in (
            torch.bool, torch.int64) else parts[-1] * parts[0]

    artifact = check(turned, torch.randn(5, 7, 37 * step).mul(9).to(dtype))
    assert len(artifact.kernels) <= 2


def test_pieces_beside_each_other_are_computed_once() -> None:
    def rotary(x, c, s):
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack((a * c - b * s, a * s + b * c), -1).flatten(-2)

    artifact = check(rotary, torch.randn(3, 4, 64), torch.randn(4, 32), torch.randn(4, 32))
    (kernel,) = artifact.kernels
    assert len(kernel.stores) == 2 and len([n for n in kernel.nodes if isinstance(n, Load)]) == 4


def test_pieces_in_turn_of_a_flat_loop_are_computed_once() -> None:
    """Two numbers of four bits in a byte, unpacked and scaled by rows."""

    def unpacked(x, scale):
        halves = torch.stack((x & 15, x >> 4), -1).flatten(-2)
        return (halves.to(torch.int8) - 8).view(4, 3, 32).float() * scale[..., None]

    x = torch.randint(0, 256, (4, 48), dtype=torch.uint8)
    [kernel] = check(unpacked, x, torch.rand(4, 3)).kernels
    assert len(kernel.stores) == 2
    assert len([n for n in kernel.nodes if isinstance(n, Load) and n.dtype == "u8"]) == 1


def test_constants_of_bool_are_stored_as_ones() -> None:
    """A short loop over pieces, unrolled, stores literals."""

    def program(x):
        rows = torch.arange(4)
        return (rows >= 1) & (rows < 3)

    call, _ = compiled(program, torch.randn(4, 8))
    inside = call([torch.randn(4, 8)])
    assert inside.view(torch.uint8).tolist() == [0, 1, 1, 0]


def test_loops_without_points_are_not_divided_by() -> None:
    full, empty = Domain((6, 4), (False, False)), Domain((6, 0), (False, False))
    assert refine(full, empty) is None and refine(empty, full) is None


def test_merged_heads_are_read_in_runs() -> None:
    """The loop over heads and their elements is two: vectors lie in memory as they are read."""
    artifact = check(lambda x: x.transpose(1, 2).reshape(2, 6, 64) * 2, torch.randn(2, 2, 6, 32))
    [kernel] = artifact.kernels
    assert [v.extent for v in kernel.outer] == [2, 6, 2, 32]
    [load] = [n for n in kernel.nodes if isinstance(n, Load)]
    assert "//" not in str(load.index)


def test_short_reductions_fuse_with_what_reads_them() -> None:
    def nearest(x, y):
        return (x[:, None] - y[None]).square().sum(-1).amin(1)

    assert len(check(nearest, torch.randn(20, 3), torch.randn(30, 3)).kernels) == 1


def test_dear_formulas_of_which_each_element_is_read_often_are_tables() -> None:
    def encoded(x):
        return (x[:, None] * 2.0 ** torch.arange(8)).sin()

    table, _ = check(encoded, torch.randn(1024)).kernels
    assert [v.extent for v in table.outer] == [8]


@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "nearest-exact"])
def test_resampling_by_a_fraction_has_tables_of_indices(mode: str) -> None:
    def resized(x):
        return torch.nn.functional.interpolate(x, scale_factor=1.7, mode=mode)

    image = torch.randn(2, 3, 20, 17).contiguous(memory_format=torch.channels_last)
    assert "upsample" not in check(resized, image).source


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_planes_were_enlarged_by_slow_gathers(mode: str) -> None:
    """Eager's bicubic kernel took a quarter of the time."""
    def resized(x, size):
        return torch.nn.functional.interpolate(x, size=(size, size), mode=mode)

    assert "upsample" in check(lambda x: resized(x, 41), torch.randn(2, 3, 20, 20)).source
    smaller = check(lambda x: resized(x, 4), torch.randn(2, 3, 20, 20)).source
    assert ("upsample" in smaller) == (mode == "bicubic")


def test_formulas_used_twice_are_evaluated_once() -> None:
    def iterate(z, c):
        for _ in range(24):  # fewer operators than a kernel may have
            z = (z * z + c).clamp(-4, 4)
        return z

    n_kernels = len(check(iterate, torch.randn(16), torch.randn(16)).kernels)
    assert n_kernels == 1


def test_a_gathered_bias_is_gathered_once() -> None:
    """A relative position bias was gathered again for each image."""
    scores, table = torch.randn(16, 3, 20, 20), torch.randn(39, 3)
    places = torch.arange(400).remainder(39)
    artifact = check(
        lambda s, t, i: (s + t[i].view(20, 20, 3).permute(2, 0, 1)).softmax(-1),
        scores, table, places)
    assert len(artifact.kernels) == 2


def test_a_sum_of_many_tensors_was_one_kernel() -> None:
    """The C++ compiler took two minutes for 2,000 arguments."""
    kernels = check(lambda *xs: sum(xs), *torch.randn(100, 8)).kernels
    assert 3 < len(kernels) < 6
    assert max(len(k.buffers) for k in kernels) <= config.max_fusion_buffers + 2


def test_long_formulas_are_cut() -> None:
    def repeat(x):
        for _ in range(300):
            x = x.sin() * 1.01
        return x

    kernels = check(repeat, torch.randn(8)).kernels
    assert 3 < len(kernels) < 8
    assert sum(isinstance(n, Op) for k in kernels for n in k.nodes) < 700


def test_what_squares_itself_is_not_long() -> None:
    """A factor that is used twice counted as two formulas, after ten squares as a thousand."""
    def power(x):
        for _ in range(12):
            x = x * x
        return x

    assert len(check(power, torch.rand(8)).kernels) == 1


@pytest.mark.parametrize("read", [lambda x, i: x[0] * i, lambda x, i: x[i].sin()])
def test_many_readers_of_a_tensor_share_kernels(read) -> None:
    """Only the first sixteen were merged, each with the next four."""
    def stacked(x):
        return torch.stack([read(x, i) for i in range(64)])

    assert len(check(stacked, torch.randn(64, 8)).kernels) <= 4
