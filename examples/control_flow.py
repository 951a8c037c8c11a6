"""Branches on data: inside the graph with `torch.cond`, or as a graph break; and loops.

    python examples/control_flow.py
"""

import torch
from torch import nn

import weft


class Gated(nn.Module):
    """One of two weights, chosen by the data; then three rounds of sin + cos."""

    def __init__(self) -> None:
        super().__init__()
        self.positive = nn.Linear(8, 8)
        self.negative = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.positive(x) if x.mean() > 0 else self.negative(x)
        for _ in range(3):
            x = x.sin() + x.cos()
        return x


class GatedInGraph(Gated):
    """The same with the branch as an operator: no break, both sides compiled."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.cond(x.mean() > 0, self.positive, self.negative, (x,))
        for _ in range(3):
            x = x.sin() + x.cos()
        return x


def main() -> None:
    torch.manual_seed(0)
    plain, whole = Gated(), GatedInGraph()
    whole.load_state_dict(plain.state_dict())
    compiled = weft.compile(plain, dynamic=True)
    in_graph = weft.compile(whole, dynamic=True, fullgraph=True)
    with torch.no_grad():
        for batch, sign in ((4, 1), (6, -1), (9, 1), (5, -1)):
            x = sign * torch.rand(batch, 8)
            torch.testing.assert_close(compiled(x), plain(x))
            torch.testing.assert_close(in_graph(x), plain(x))
        print(weft.explain(plain, dynamic=True)(torch.rand(4, 8)))

        try:
            weft.compile(plain, fullgraph=True)(torch.rand(4, 8))
        except weft.errors.GraphBreakError as error:
            print(f"\nwith fullgraph=True:\n{error}")
        else:
            raise AssertionError("fullgraph=True must raise at a branch on data")


if __name__ == "__main__":
    main()
