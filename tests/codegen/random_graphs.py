"""Random tensor programs: pointwise, views, reductions, gathers, matmuls, mixed at will.

    program = RandomProgram(seed)
    outputs = program.run(*program.inputs)
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

UNARY: list[Callable[..., Any]] = [
    torch.relu, torch.sigmoid, torch.tanh, torch.neg, torch.abs, F.gelu, F.silu, torch.sin,
    lambda x: x * 0.5 + 1, lambda x: x.clamp(-1, 1), lambda x: torch.exp(-x.abs()),
    lambda x: x.masked_fill(x > 0.5, 0.25), lambda x: (x > 0).to(x.dtype), torch.clone,
    lambda x: x.to(torch.float64).sqrt().nan_to_num().to(x.dtype),
]
BINARY: list[Callable[..., Any]] = [
    torch.add, torch.sub, torch.mul, torch.maximum, torch.minimum,
    lambda x, y: x / (1 + y.abs()), lambda x, y: torch.where(x > y, x, y * 2),
]


class RandomProgram:
    """A straight-line program, the same for the same seed."""

    def __init__(self, seed: int, length: int = 14) -> None:
        self.random = random.Random(seed)
        generator = torch.Generator().manual_seed(seed)
        self.sizes = [self.random.choice([2, 3, 4, 6]) for _ in range(3)]
        a, b, c = self.sizes
        shapes = [(a, b, c), (a, b, c), (b, c), (c,), (a, 1, c), (c, c)]
        self.inputs = [torch.randn(s, generator=generator) for s in shapes]
        if self.random.random() < 0.5:
            self.inputs[0] = self.inputs[0].transpose(0, 2).contiguous().transpose(0, 2)
        self.indices = torch.randint(-a, a, (5,), generator=generator)
        self.seed, self.length = seed, length

    def run(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        choose = random.Random(self.seed + 1)
        values = list(inputs)
        for _ in range(self.length):
            step = choose.choice(STEPS)
            result = step(self, choose, values)
            if result is not None and 0 < result.numel() <= 4096:
                values.append(result)
        return [*values[-3:], values[choose.randrange(len(inputs), len(values))]]


    def is_stable(self) -> bool:
        """Do rounding errors stay small? (Not in comparisons of nearly equal values.)"""
        exact = self.run(*self.inputs)
        moved = self.run(*(x * (1 + 3e-7 * (-1) ** k) for k, x in enumerate(self.inputs)))
        wide = self.run(*(x.double() for x in self.inputs))
        return all(
            torch.allclose(a, b.to(a.dtype), rtol=5e-5, atol=5e-6)
            for other in (moved, wide)
            for a, b in zip(exact, other, strict=True)
        )


Values = list[torch.Tensor]


def _pick(choose: random.Random, values: Values) -> torch.Tensor:
    return values[choose.randrange(max(0, len(values) - 6), len(values))]


def _unary(p: RandomProgram, choose: random.Random, values: Values) -> Any:
    return choose.choice(UNARY)(_pick(choose, values))


def _binary(p: RandomProgram, choose: random.Random, values: Values) -> Any:
    x, y = _pick(choose, values), choose.choice(values)
    function = choose.choice(BINARY)
    try:
        torch.broadcast_shapes(x.shape, y.shape)
    except RuntimeError:
        return function(x, x)
    return function(x, y)


def _reduce(p: RandomProgram, choose: random.Random, values: Values) -> Any:
    x = _pick(choose, values)
    if not x.dim():
        return None
    dim, keep = choose.randrange(x.dim()), choose.random() < 0.6
    kinds = [
        lambda: x.sum(dim, keepdim=keep),
        lambda: x.mean(dim, keepdim=keep),
        lambda: x.amax(dim, keepdim=keep),
        lambda: x.softmax(dim),
        lambda: x - x.logsumexp(dim, keepdim=True),
        lambda: F.layer_norm(x, x.shape[-1:]),
        lambda: x.argmax(dim, keepdim=keep).to(x.dtype),
        lambda: x.var(dim, keepdim=keep, correction=0),
        lambda: x.sum(),
    ]
    return choose.choice(kinds)()


def _view(p: RandomProgram, choose: random.Random, values: Values) -> Any:
    x = _pick(choose, values)
    if x.dim() < 1:
        return x.reshape(1, 1)
    order = list(range(x.dim()))
    choose.shuffle(order)
    dim, n = choose.randrange(x.dim()), x.shape[0]
    kinds = [
        lambda: x.permute(order),
        lambda: x.reshape(-1),
        lambda: x.reshape(n, -1),
        lambda: x.permute(order).reshape(-1),
        lambda: x.unsqueeze(dim),
        lambda: x.select(dim, -1),
        lambda: x.narrow(dim, 0, max(1, x.shape[dim] // 2)),
        lambda: x.flip(dim),
        lambda: x[..., ::2],
        lambda: x.unsqueeze(0).expand(3, *x.shape),
        lambda: x.roll(1, dim),
        lambda: F.pad(x, (1, 2)),
    ]
    return choose.choice(kinds)()


def _join(p: RandomProgram, choose: random.Random, values: Values) -> Any:
    x = _pick(choose, values)
    if not x.dim():
        return None
    dim = choose.randrange(x.dim())
    return torch.cat([x, x.neg(), x.narrow(dim, 0, 1)], dim)


def _gather(p: RandomProgram, choose: random.Random, values: Values) -> Any:
    x = _pick(choose, values)
    if not x.dim() or x.shape[0] < p.sizes[0]:
        return None
    return x[p.indices]


def _matmul(p: RandomProgram, choose: random.Random, values: Values) -> Any:
    x = _pick(choose, values)
    return x @ values[5] if x.dim() and x.shape[-1] == p.sizes[2] else None


STEPS: list[Callable[..., Any]] = [
    _unary, _unary, _unary, _binary, _binary, _binary, _reduce, _reduce, _view, _view, _join,
    _gather, _matmul,
]
