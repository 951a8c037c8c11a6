"""Layer by layer: which part of a model breaks graphs, and which is off in its numbers?

    python examples/diagnose_layers.py
"""

import torch
from torch import nn

import weft


class Gate(nn.Module):
    """A layer that decides in Python, from data: it breaks the graph."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.abs().max().item() < 100 else x / 2


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), Gate(), nn.LayerNorm(16)).eval()
    x = torch.randn(4, 8)

    print(f"{'layer':12} {'graphs':>6} {'breaks':>6} {'error':>8}  why")
    broken = []
    with torch.no_grad():
        for name, layer in model.named_children():
            told = weft.explain(layer)(x)
            expected = layer(x)
            error = (weft.compile(layer)(x) - expected).abs().max().item()
            why = told.graph_breaks[0].reason if told.graph_breaks else ""
            print(f"{name + ' ' + type(layer).__name__:12} {len(told.graphs):6} "
                  f"{len(told.graph_breaks):6} {error:8.1e}  {why}")
            if told.graph_breaks:
                broken.append(type(layer).__name__)
            assert error < 1e-5
            x = expected
    assert broken == ["Gate"], broken


if __name__ == "__main__":
    main()
