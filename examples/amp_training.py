"""A training step in mixed precision: autocast, GradScaler, one graph for forward and backward.

    python examples/amp_training.py [--device cuda] [--steps 20]
"""

import argparse

import torch
from torch import nn

import weft


class Net(nn.Module):
    """Convolutions, then a classifier: both kinds of operators that autocast treats apart."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
            nn.AdaptiveAvgPool2d(4), nn.Flatten(),
        )
        self.head = nn.Sequential(
            nn.Linear(512, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 10)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x))


def train(device: str, steps: int, *, compiled: bool) -> list[float]:
    """The losses of some steps on one batch."""
    torch.manual_seed(0)
    dtype = torch.float16 if device == "cuda" else torch.bfloat16
    model = Net().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler(device)
    x = torch.randn(32, 3, 32, 32, device=device)
    y = torch.randint(0, 10, (32,), device=device)

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device, dtype=dtype):
            return nn.functional.cross_entropy(model(x), y)

    step = weft.compile(loss_of, fullgraph=True) if compiled else loss_of
    losses = []
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=True)
        loss = step(x, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return losses


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    eager = train(arguments.device, arguments.steps, compiled=False)
    losses = train(arguments.device, arguments.steps, compiled=True)
    for number, (a, b) in enumerate(zip(eager, losses, strict=True)):
        print(f"step {number:2}: eager {a:.4f}, weft {b:.4f}")
    worst = max(abs(a - b) for a, b in zip(eager, losses, strict=True))
    print(f"largest difference of the loss: {worst:.4f}; graphs: {weft.stats()['graphs']}")
    assert losses[-1] < losses[0], "the loss must fall"
    assert worst < 0.1, "half precision explains differences of a few hundredths only"


if __name__ == "__main__":
    main()
