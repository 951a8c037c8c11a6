"""Random programs on random sizes: whenever the guards accept a call, the artifact is right.

Each program is a chain of steps that use sizes in shapes, indices, arithmetic and branches; it is
compiled once or a few times and called on sizes that were drawn independently.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F

import weft

Tensor = torch.Tensor
Step = Callable[[Tensor], Tensor]


def steps(rng: random.Random) -> list[Step]:
    """A few steps, each from (a, b) matrices to matrices, with constants drawn now."""
    k, c = rng.randint(2, 5), rng.randint(3, 9)
    catalogue: list[Step] = [
        lambda x: x.relu() + x.shape[0],
        lambda x: x.t(),
        lambda x: x.t().contiguous() * x.shape[1],
        lambda x: x.softmax(-1) / x.shape[-1] ** 0.5,
        lambda x: torch.cat([x, x[: x.shape[0] // 2]]),
        lambda x: x[1:] if x.shape[0] > k else x + 1,
        lambda x: x[:, :c] if x.shape[1] >= c else F.pad(x, (0, c - x.shape[1])),
        lambda x: x @ x.t(),
        lambda x: x.reshape(-1, x.shape[0]),
        lambda x: x.reshape(x.shape[1], -1) - x.numel(),
        lambda x: x.repeat(1, 2)[:, ::2],
        lambda x: x.view(-1, 2).flip(0) if x.numel() % 2 == 0 and x.is_contiguous() else x * 2,
        lambda x: x - x.mean(0),
        lambda x: x.cumsum(1) * min(x.shape),
        lambda x: x + torch.arange(x.shape[1]),
        lambda x: torch.stack([x, x * k]).sum(0),
        lambda x: x.unsqueeze(0).expand(k, -1, -1).reshape(-1, x.shape[1]),
        lambda x: x.tril() if x.shape[0] == x.shape[1] else x.triu(),
        lambda x: x[::k] if x.shape[0] % k == 0 else x[:-1],
        lambda x: torch.where(x > 0, x, torch.full_like(x, x.shape[0] // k)),
        lambda x: x.chunk(2, 1)[0],
        lambda x: x.narrow(0, x.shape[0] // 3, x.shape[0] - x.shape[0] // 3),
        lambda x: x.new_ones(max(x.shape), 3) * x.sum(),
        lambda x: F.layer_norm(x, (x.shape[1],)),
        lambda x: x.amax(1, keepdim=True) + x.argmax(0).float(),
        lambda x: x.sort(0).values[:k],
    ]
    return rng.choices(catalogue, k=rng.randint(2, 5))


def program(seed: int) -> Callable[[Tensor, Tensor], Tensor]:
    rng = random.Random(seed)
    chain, other = steps(rng), steps(rng)

    def run(x: Tensor, y: Tensor) -> Tensor:
        for step in chain:
            x = step(x)
        if x.shape[0] < y.shape[0]:
            for step in other:
                y = step(y)
        return x.sum() * 0.5 + y

    return run


def calls(seed: int, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    rng = random.Random(1000 + seed)
    for _ in range(count):
        n = rng.randint(1, 12)
        yield (
            torch.randn(n, rng.randint(1, 12)),
            torch.randn(n if rng.random() < 0.5 else rng.randint(1, 12), rng.randint(1, 12)),
        )


def check(seed: int, backend: str, count: int) -> None:
    torch.manual_seed(seed)
    weft.reset()
    run = program(seed)
    compiled = weft.compile(run, backend=backend, dynamic=True if seed % 2 else None)
    for x, y in calls(seed, count):
        try:
            expected = run(x.clone(), y.clone())
        except (RuntimeError, IndexError) as error:
            with pytest.raises(type(error)):
                compiled(x, y)
            continue
        actual = compiled(x, y)
        assert actual.shape == expected.shape and actual.stride() == expected.stride()
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("block", range(8))
def test_captured_programs(block: int) -> None:
    for seed in range(10 * block, 10 * block + 10):
        check(seed, "eager", 8)


@pytest.mark.parametrize("seed", range(300, 306))
def test_generated_kernels(seed: int) -> None:
    check(seed, "inductor", 5)
