"""Random models whose steps use sizes: in shapes, indices, arithmetic, masks, loops and branches.

    model = draw(random.Random(7), "sequence")       # (batch, length, WIDTH) -> the same kind
    model.names                                      # the steps: ['attention', 'pooled', ...]

A step is a function of a `Layers` (parameters and constants drawn with the model) and a tensor; it
gives a tensor of the same number of dimensions, so that any chain of steps is a model. What a
step cannot do at a size (pool two of one) is an error in eager as well, and compared as such.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Final, final

import torch
import torch.nn.functional as F
from torch import nn

Tensor = torch.Tensor
WIDTH: Final = 8


@final
class Layers(nn.Module):
    """Parameters of all steps, and the constants that this model's steps use."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.linear, self.wide = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.embedding = nn.Embedding(11, WIDTH)
        self.layer_norm, self.group_norm = nn.LayerNorm(WIDTH), nn.GroupNorm(2, WIDTH)
        self.batch_norm, self.image_norm = nn.BatchNorm1d(WIDTH), nn.BatchNorm2d(4)
        self.k, self.heads = rng.choice([2, 3, 4]), rng.choice([1, 2, 4])
        self.ratio, self.scale = rng.choice([0.25, 0.3, 0.5, 0.7]), rng.choice([0.5, 0.7, 1.5, 2.0])
        self.mode, self.causal = rng.choice(["linear", "nearest"]), rng.random() < 0.5
        stride = rng.choice([1, 2])
        self.conv = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        self.taps = nn.Conv1d(WIDTH, WIDTH, rng.choice([2, 4]), stride=stride, groups=WIDTH)
        self.transposed = nn.ConvTranspose1d(WIDTH, WIDTH, self.k, stride=2)
        self.grid = nn.Conv2d(1, WIDTH, 3, padding=1, stride=stride)
        self.image = nn.Conv2d(4, 4, self.k - 1, stride=stride, padding=(self.k - 1) // 2)
        self.depthwise = nn.Conv2d(4, 4, 3, padding=1, groups=4)
        self.upward = nn.ConvTranspose2d(4, 4, self.k, stride=2, output_padding=1)


Step = Callable[[Layers, Tensor], Tensor]


def attention(m: Layers, x: Tensor) -> Tensor:
    b, t, _ = x.shape
    q, k, v = (y.view(b, t, m.heads, -1).transpose(1, 2) for y in m.wide(x).chunk(3, -1))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=m.causal)
    return mixed.transpose(1, 2).reshape(b, t, WIDTH)


def local_attention(m: Layers, x: Tensor) -> Tensor:
    scores = torch.einsum("bid,bjd->bij", x, m.linear(x)) / math.sqrt(x.shape[-1])
    place = torch.arange(x.shape[1])
    near = (place[None] - place[:, None]).abs() < m.k
    return scores.masked_fill(~near, float("-inf")).softmax(-1) @ x


def windows(m: Layers, x: Tensor) -> Tensor:
    b, t, c = x.shape
    y = F.pad(x, (0, 0, 0, (m.k - t % m.k) % m.k)).view(b, -1, m.k, c)
    return (y - y.mean(2, keepdim=True)).reshape(b, -1, c)[:, :t]


def kept_tokens(m: Layers, x: Tensor) -> Tensor:
    best = x.sum(-1).topk(max(1, int(x.shape[1] * m.ratio)), 1).indices
    return x.gather(1, best[..., None].expand(-1, -1, WIDTH))


def recurrence(m: Layers, x: Tensor) -> Tensor:
    h = x[:, 0] * 0
    for i in range(min(x.shape[1], 3)):
        h = torch.tanh(m.linear(h) + x[:, i])
    return x + h[:, None]


def relative_positions(m: Layers, x: Tensor) -> Tensor:
    n = x.shape[1]
    distance = torch.arange(n)[:, None] - torch.arange(n)[None] + n - 1
    return x + (torch.sin(torch.arange(2 * n - 1).float())[distance] @ x) / n


def rotary(m: Layers, x: Tensor) -> Tensor:
    t = torch.arange(x.shape[1]).float()[:, None] * torch.arange(1, WIDTH // 2 + 1).float() / 7
    a, b = x.chunk(2, -1)
    return torch.cat([a * t.cos() - b * t.sin(), a * t.sin() + b * t.cos()], -1)


def lengths(m: Layers, x: Tensor) -> Tensor:
    valid = (torch.arange(x.shape[0]) % max(x.shape[1], 1)) + 1
    mask = torch.arange(x.shape[1])[None] < valid[:, None]
    return x * mask[..., None] / valid[:, None, None]


def segment_sums(m: Layers, x: Tensor) -> Tensor:
    b, t, c = x.shape
    segment = (torch.arange(t) // m.k)[None, :, None].expand(b, -1, c)
    return x.new_zeros(b, (t + m.k - 1) // m.k, c).scatter_add(1, segment, x)


def written(m: Layers, x: Tensor) -> Tensor:
    y = x.clone()
    y[:, :: m.k] += 1
    y[:, -1] = y[:, 0] * 2
    return y


def split_in_two(m: Layers, x: Tensor) -> Tensor:
    half = x.shape[1] // 2
    a, b = x.split([half, x.shape[1] - half], 1)
    return torch.cat([b, a], 1)


def unbound(m: Layers, x: Tensor) -> Tensor:
    parts = x.unbind(-1)
    return torch.stack(parts[:4] + parts[4:], -1)


def rows_one_by_one(m: Layers, x: Tensor) -> Tensor:
    return torch.cat([x[:, i : i + 1] * i for i in range(min(x.shape[1], 9))], 1)


def shifted(m: Layers, x: Tensor) -> Tensor:
    return torch.cat([x.new_zeros(x.shape[0], 1, WIDTH), x[:, :-1]], 1) * 0.5 + x


def average_pools(m: Layers, x: Tensor) -> Tensor:
    before = F.avg_pool1d(F.pad(x.mT, (m.k - 1, 0)), m.k, 1)
    return (before + F.adaptive_avg_pool1d(x.mT, 1)).mT


def gathered(m: Layers, x: Tensor) -> Tensor:
    places = (torch.arange(x.shape[1]) * m.k) % x.shape[1]
    return x[torch.arange(x.shape[0])[:, None], places]


def masked_mean(m: Layers, x: Tensor) -> Tensor:
    keep = x.detach().sum(-1) > 0
    return x - x[keep].sum(0) / keep.sum().clamp(min=1)


def doubled(m: Layers, x: Tensor) -> Tensor:
    means = x.mean(1)[:, None, None].expand(-1, x.shape[1], 2, -1)
    return (x[:, :, None] + means).flatten(1, 2)


def permuted(m: Layers, x: Tensor) -> Tensor:
    rows = x.permute(2, 0, 1).reshape(-1, x.shape[1])
    return rows.view(WIDTH, x.shape[0], -1).permute(1, 2, 0)


def standardized(m: Layers, x: Tensor) -> Tensor:
    return (x - x.mean(1, keepdim=True)) / (x.var(1, keepdim=True, unbiased=False) + 1e-5).sqrt()


def strided_patches(m: Layers, x: Tensor) -> Tensor:
    return x.unfold(1, min(m.k, x.shape[1]), 1).mean(-1)


SEQUENCE: Final[dict[str, Step]] = {
    step.__name__: step
    for step in (attention, local_attention, windows, kept_tokens, recurrence, relative_positions,
                 rotary, lengths, segment_sums, written, split_in_two, unbound, rows_one_by_one,
                 shifted, average_pools, gathered, masked_mean, doubled, permuted, standardized,
                 strided_patches)
} | {
    "interpolated": lambda m, x: F.interpolate(x.mT, scale_factor=m.scale, mode=m.mode).mT,
    "resized": lambda m, x: F.interpolate(
        x.mT, size=x.shape[1] + m.k, mode="linear", align_corners=True).mT,
    "chunked_sums": lambda m, x: torch.cat([c.cumsum(1) for c in x.chunk(m.k, 1)], 1),
    "grid": lambda m, x: m.grid(x[:, None]).flatten(2).transpose(1, 2),
    "rolled": lambda m, x: x.roll(x.shape[1] // 2, 1) + x.flip(1),
    "triangle": lambda m, x: torch.ones(x.shape[1], x.shape[1]).tril() @ x / x.shape[1],
    "embedded": lambda m, x: x + m.embedding(torch.arange(x.shape[1]) % 11),
    "stacked": lambda m, x: torch.stack([x, x * 2, m.linear(x)], 2).view(x.shape[0], -1, WIDTH)[
        :, ::3],
    "repeated": lambda m, x: x.repeat(1, 2, 1)[:, : x.shape[1] + 1].contiguous(),
    "interleaved": lambda m, x: x.repeat_interleave(2, 1)[:, : x.shape[1] + 1],
    "every_kth": lambda m, x: x.index_select(1, torch.arange(0, x.shape[1], m.k)),
    "alternating": lambda m, x: torch.where(torch.arange(x.shape[1])[:, None] % 2 == 0, x, -x),
    "sorted": lambda m, x: x.sort(1).values + x.argsort(1) / x.shape[1],
    "normalized": lambda m, x: F.normalize(x, dim=1) * x.shape[1] ** 0.5,
    "pooled": lambda m, x: F.max_pool1d(x.mT, m.k if x.shape[1] >= m.k else 1, ceil_mode=True).mT,
    "convolved": lambda m, x: m.conv(x.mT).mT,
    "strided_taps": lambda m, x: m.taps(F.pad(x.mT, (3, 3))).mT,
    "transposed": lambda m, x: m.transposed(x.mT).mT,
    "batch_norm": lambda m, x: m.batch_norm(x.mT).mT,
    "group_norm": lambda m, x: m.group_norm(x.mT).mT,
    "log_probabilities": lambda m, x: x - F.log_softmax(m.linear(x), -1).mean((1, 2), keepdim=True),
    "layer_norm": lambda m, x: m.layer_norm(x) + m.linear(x).relu(),
    "gelu": lambda m, x: F.gelu(m.linear(x)) * torch.sigmoid(x),
    "diagonal": lambda m, x: (x @ x.mT).diagonal(dim1=1, dim2=2)[..., None] * x / WIDTH,
    "batched": lambda m, x: torch.baddbmm(x, x @ x.mT / x.shape[1], x, alpha=1 / x.shape[1]),
    "halves": lambda m, x: x[:, : (x.shape[1] + 1) // 2] + x[:, x.shape[1] // 2 :],
    "middle": lambda m, x: x[:, x.shape[1] // 3 : x.shape[1] - x.shape[1] // 3],
    "log_sums": lambda m, x: x - x.logsumexp(1, keepdim=True),
    "even_or_odd": lambda m, x: m.linear(x) if x.shape[1] % 2 == 0 else x * 2,
    "outer": lambda m, x: (x[:, :, None] * x[:, None]).flatten(1, 2)[:, : x.shape[1] * 2],
    "decayed": lambda m, x: x * m.ratio ** (x.shape[1] / 4) + round(x.shape[1] / 3, 1),
    "folded": lambda m, x: x.reshape(-1, WIDTH).view(x.shape[0], -1, WIDTH) - x.shape[0],
    "running_means": lambda m, x: x.cumsum(1) / (torch.arange(x.shape[1]) + 1)[None, :, None],
}
"""Steps on (batch, length, WIDTH)."""

IMAGE: Final[dict[str, Step]] = {
    "convolved": lambda m, x: m.image(x),
    "depthwise": lambda m, x: m.depthwise(x).relu(),
    "upward": lambda m, x: m.upward(x)[..., : x.shape[2] + 1, : x.shape[3]],
    "max_pool": lambda m, x: F.max_pool2d(x, 2, ceil_mode=True) if min(x.shape[2:]) > 1 else x * 2,
    "avg_pool": lambda m, x: F.avg_pool2d(x, 3, 1, 1),
    "batch_norm": lambda m, x: m.image_norm(x),
    "group_norm": lambda m, x: F.group_norm(x, 2),
    "upsampled": lambda m, x: F.interpolate(x, scale_factor=m.scale),
    "bilinear": lambda m, x: F.interpolate(x, size=(x.shape[3], x.shape[2] + 1), mode="bilinear"),
    "padded": lambda m, x: F.pad(x, (1, 0, m.k, 1)),
    "reflected": lambda m, x: F.pad(x, (1, 1, 0, 1), mode="reflect"),
    "strided": lambda m, x: x[:, :, ::2, 1:] if x.shape[3] > 1 else x + 1,
    "flipped": lambda m, x: x.flip(3) + x.mean((2, 3), keepdim=True),
    "channels": lambda m, x: torch.cat([x[:, :2], x[:, 2:] * 2], 1),
    "transposed": lambda m, x: x.transpose(2, 3).contiguous(),
    "channels_last": lambda m, x: x.contiguous(memory_format=torch.channels_last) + x.shape[2],
    "softmax": lambda m, x: x.flatten(2).softmax(-1).unflatten(2, x.shape[2:]),
    "shuffled": lambda m, x:  # eager has no gradient of what is empty
        F.pixel_shuffle(x, 2).repeat(1, 4, 1, 1) if x.numel() else x.repeat(1, 1, 2, 2),
    "adaptive": lambda m, x: F.adaptive_avg_pool2d(x, (3, 2)),
    "ramp": lambda m, x: x * torch.linspace(0, 1, x.shape[3]),
    "rolled": lambda m, x: x.roll(1, 2) + x.amax(3, keepdim=True),
    "patches": lambda m, x: F.unfold(x, m.k, padding=m.k).mean(1).view(x.shape[0], 1, -1, 1)
    + x.mean(3, keepdim=True)[:, :, :1],
    "pyramid": lambda m, x: sum(
        F.interpolate(F.avg_pool2d(x, s, ceil_mode=True), size=x.shape[2:]) for s in (1, 2, 4)),
}
"""Steps on (batch, 4, height, width)."""

CATALOGUES: Final = {"sequence": SEQUENCE, "image": IMAGE}


@final
class Drawn(nn.Module):
    """A chain of steps over one set of layers."""

    def __init__(self, rng: random.Random, kind: str) -> None:
        super().__init__()
        self.layers = Layers(rng)
        self.names = rng.choices(list(CATALOGUES[kind]), k=rng.randint(2, 6))
        self._steps = [CATALOGUES[kind][name] for name in self.names]

    def forward(self, x: Tensor) -> Tensor:
        for step in self._steps:
            x = step(self.layers, x)
        return x


def draw(rng: random.Random, kind: str) -> Drawn:
    """A model; the same one for the same state of `rng` and of torch's generator."""
    return Drawn(rng, kind)
