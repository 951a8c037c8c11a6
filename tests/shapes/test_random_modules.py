"""Random models of layers, on random sizes: whenever the guards accept, the artifact is right.

Beside `test_random_models.py` (chains on matrices): images and sequences through convolutions,
pooling, attention, normalisation, reshapes, strided slices, splits and broadcasts; batches of 0
and 1 among the sizes; ``dynamic=True`` and the default policy.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import weft

Tensor = torch.Tensor
Step = Callable[[Tensor], Tensor]
WIDTH = 8


def image_steps(rng: random.Random) -> list[Step]:
    """Steps on (batch, 4, height, width)."""
    kernel, stride = rng.choice([1, 2, 3]), rng.choice([1, 2])
    weight = torch.randn(4, 4, kernel, kernel) / 4
    depthwise = torch.randn(4, 1, 3, 3) / 3
    scale, shift = torch.rand(4) + 0.5, torch.randn(4)
    return [
        lambda x: F.conv2d(x, weight, stride=stride, padding=kernel // 2),
        lambda x: F.conv2d(x, depthwise, padding=1, groups=4).relu(),
        lambda x: F.max_pool2d(x, 2, ceil_mode=True) if min(x.shape[2:]) >= 2 else x * 2,
        lambda x: F.avg_pool2d(x, 3, 1, 1),
        lambda x: F.batch_norm(x, shift, scale, scale, shift),
        lambda x: F.group_norm(x, 2),
        lambda x: F.interpolate(x, scale_factor=2.0),
        lambda x: F.pad(x, (1, 0, 2, 1)),
        lambda x: x[:, :, ::2, 1:] if x.shape[3] > 1 else x + 1,
        lambda x: x.flip(3) + x.mean((2, 3), keepdim=True),
        lambda x: torch.cat([x[:, :2], x[:, 2:] * 2], 1),
        lambda x: x.transpose(2, 3).contiguous(),
        lambda x: x.flatten(2).softmax(-1).unflatten(2, x.shape[2:]),
        lambda x: F.pixel_shuffle(x, 2).repeat(1, 4, 1, 1),
        lambda x: F.adaptive_avg_pool2d(x, (3, 2)),
        lambda x: x * torch.linspace(0, 1, x.shape[3]),
        lambda x: x.roll(1, 2) + x.amax(3, keepdim=True),
    ]


def sequence_steps(rng: random.Random) -> list[Step]:
    """Steps on (batch, length, WIDTH)."""
    weight, bias = torch.randn(WIDTH, WIDTH) / 3, torch.randn(WIDTH)
    wide = torch.randn(3 * WIDTH, WIDTH) / 3
    taps = torch.randn(WIDTH, WIDTH, 3) / 5
    heads = rng.choice([1, 2, 4])

    def attention(x: Tensor) -> Tensor:
        b, t, _ = x.shape
        parts = F.linear(x, wide).view(b, t, 3, heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*parts, is_causal=True)
        return mixed.transpose(1, 2).reshape(b, t, WIDTH)

    def plain_attention(x: Tensor) -> Tensor:
        scores = x @ x.mT / x.shape[-1] ** 0.5
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        return scores.masked_fill(~mask, -1e9).softmax(-1) @ x

    return [
        lambda x: F.gelu(F.linear(x, weight, bias)),
        lambda x: F.layer_norm(x, (WIDTH,), bias, bias) + x,
        lambda x: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6),
        attention,
        plain_attention,
        lambda x: x[:, ::2] if x.shape[1] > 2 else x * 3,
        lambda x: torch.cat([x, x[:, :1]], 1),
        lambda x: x + torch.arange(x.shape[1])[:, None] / 10,
        lambda x: sum(x.split([3, WIDTH - 3], -1)[0].unbind(-1))[..., None] + x,
        lambda x: x.reshape(-1, WIDTH).view(x.shape[0], -1, WIDTH) - 1,
        lambda x: x + x.mean(1, keepdim=True).expand(-1, x.shape[1], -1),
        lambda x: F.conv1d(x.mT, taps, padding=1).mT,
        lambda x: x.view(x.shape[0], x.shape[1], 2, -1).flip(2).flatten(2),
        lambda x: torch.einsum("btd,bsd->bts", x, x).softmax(-1) @ x,
        lambda x: x.cumsum(1) / (torch.arange(x.shape[1]) + 1)[None, :, None],
        lambda x: x.topk(min(3, x.shape[1]), 1).values,
        lambda x: torch.where(x > 0, x, x.new_full((), x.shape[1])),
        lambda x: x.repeat_interleave(2, 1)[:, : x.shape[1] + 1],
        lambda x: F.pad(x, (0, 0, 1, 2), value=1.0),
        lambda x: torch.stack(x.chunk(2, -1), -1).flatten(2),
    ]


def chain(steps: list[Step], rng: random.Random) -> Step:
    chosen = rng.choices(steps, k=rng.randint(2, 5))

    def run(x: Tensor) -> Tensor:
        for step in chosen:
            x = step(x)
        return x

    return run


def layout(x: Tensor) -> list[tuple[int, int]]:
    """Sizes and strides; steps along a dimension of one element lead nowhere."""
    return [(n, 0 if n == 1 else s) for n, s in zip(x.shape, x.stride(), strict=True)]


def check(run: Step, inputs: list[Tensor], *, backend: str, dynamic: bool | None) -> int:
    """Compare with eager at every input; how many calls there were."""
    weft.reset()
    compiled = weft.compile(run, backend=backend, dynamic=dynamic)
    with torch.no_grad():
        for x in inputs:
            try:
                expected = run(x.clone())
            except (RuntimeError, IndexError) as error:
                with pytest.raises(type(error)):
                    compiled(x)
                continue
            actual = compiled(x)
            assert layout(actual) == layout(expected)
            torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3)
    return len(inputs)


def images(rng: random.Random, count: int) -> list[Tensor]:
    sizes = [(rng.choice([0, 1, 2, 3, 5]), rng.randint(1, 9), rng.randint(1, 9))
             for _ in range(count)]
    return [torch.randn(b, 4, h, w) for b, h, w in sizes]


def sequences(rng: random.Random, count: int) -> list[Tensor]:
    return [torch.randn(rng.choice([0, 1, 2, 3, 5]), rng.randint(1, 12), WIDTH)
            for _ in range(count)]


def check_drawn(kind: str, seed: int, sizes: int, *, backend: str) -> None:
    """The model that the seed draws, at a number of sizes; odd seeds compile with dynamic=True."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    steps, inputs = ((image_steps, images) if kind == "image" else (sequence_steps, sequences))
    dynamic = True if seed % 2 else None
    check(chain(steps(rng), rng), inputs(rng, sizes), backend=backend, dynamic=dynamic)


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize("kind", ["image", "sequence"])
def test_captured_models(kind: str, seed: int) -> None:
    check_drawn(kind, seed, 6, backend="eager")


@pytest.mark.parametrize("seed", range(100, 104))
@pytest.mark.parametrize("kind", ["image", "sequence"])
def test_generated_models(kind: str, seed: int) -> None:
    check_drawn(kind, seed, 4, backend="inductor")
