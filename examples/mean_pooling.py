"""Mean pooling over sequences of changing length: one symbolic artifact serves all lengths.

    python examples/mean_pooling.py
"""

import torch

import weft


def pool(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean over the unmasked positions of [batch, length, width]."""
    weights = mask.unsqueeze(-1).to(x.dtype)
    return (x * weights).sum(1) / weights.sum(1).clamp(min=1)


def main() -> None:
    torch.manual_seed(0)
    compiled = weft.compile(pool, dynamic=True)
    for length in (7, 16, 33, 64, 100):
        x, mask = torch.randn(4, length, 32), torch.rand(4, length) > 0.3
        torch.testing.assert_close(compiled(x, mask), pool(x, mask))
    stats = weft.stats()
    print(f"{stats['graphs']} graph for 5 lengths, {stats['recompiles']} recompiles")
    print(weft.benchmark(pool, (torch.randn(64, 100, 32), torch.rand(64, 100) > 0.3), dynamic=True))


if __name__ == "__main__":
    main()
