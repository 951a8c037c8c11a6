"""A 6-block transformer trained with AdamW and a mean squared error over a DataLoader.

    python examples/train_transformer.py [--steps 8] [--width 128]
"""

import argparse

import torch
from torch import nn
from torch.utils import benchmark
from torch.utils.data import DataLoader, TensorDataset

import weft


class Block(nn.Module):
    """Attention and MLP, each after a layer norm."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norm1(x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


def train(model: nn.Module, loader: DataLoader, steps: int) -> list[float]:
    """The loss at each step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses: list[float] = []
    while len(losses) < steps:
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses[:steps]


def throughput(model: nn.Module, x: torch.Tensor, label: str) -> benchmark.Measurement:
    """Inference throughput, measured by PyTorch's own tool."""
    with torch.no_grad():
        timer = benchmark.Timer(
            "model(x)", globals={"model": model, "x": x}, num_threads=torch.get_num_threads(),
            description=label)
        return timer.blocked_autorange(min_run_time=0.3)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--width", type=int, default=64)
    options = parser.parse_args()

    torch.manual_seed(0)
    width = options.width
    model = nn.Sequential(*(Block(width, 4) for _ in range(6)))
    x = torch.randn(32, 16, width)
    loader = DataLoader(TensorDataset(x, x.roll(1, dims=1) * 0.5), batch_size=8)

    compiled = weft.compile(model, mode="max-autotune")
    losses = train(compiled, loader, options.steps)
    print("losses", " ".join(f"{loss:.4f}" for loss in losses))
    assert losses[-1] < losses[0]

    model.eval()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-3, atol=1e-4)
    for name, candidate in (("eager", model), ("weft", compiled)):
        measured = throughput(candidate, x, name)
        print(f"{name:6} {x.shape[0] / measured.median:.0f} sequences/s")
    print(weft.stats())


if __name__ == "__main__":
    main()
