"""K-fold regression with a custom backend that prints each captured graph.

NumPy, scikit-learn and matplotlib run around the compiled model; only torch is captured.

    python examples/kfold_custom_backend.py [--plot fit.png]
"""

import argparse

import matplotlib

matplotlib.use("Agg")
import numpy as np
import torch
from matplotlib import pyplot
from sklearn.metrics import r2_score
from sklearn.model_selection import KFold
from torch import nn

import weft

GRAPHS: list[torch.fx.GraphModule] = []


def my_compiler(gm: torch.fx.GraphModule, example_inputs: list[torch.Tensor]):
    """Prints the graph and runs it as it is: the smallest backend."""
    GRAPHS.append(gm)
    print(f"my_compiler() called with FX graph of {len(example_inputs)} inputs:")
    for node in gm.graph.nodes:
        print(f"  {node.op:14} {node.name:20} {node.target}")
    return gm.forward


class Regression(nn.Module):
    """y = MLP(x)."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(1, 32)
        self.out = nn.Linear(32, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.hidden(x)))


def fit(model: nn.Module, x: torch.Tensor, y: torch.Tensor, epochs: int) -> float:
    """The last loss."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(epochs):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
    return loss.item()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--plot", help="where to save the picture of the fit")
    parser.add_argument("--epochs", type=int, default=200)
    options = parser.parse_args()

    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    inputs = np.sort(rng.uniform(-3, 3, size=(100, 1)).astype(np.float32), axis=0)
    targets = np.sin(inputs) + 0.05 * rng.standard_normal(inputs.shape, dtype=np.float32)

    scores = []
    for train, test in KFold(n_splits=3, shuffle=True, random_state=0).split(inputs):
        model = weft.compile(Regression(), backend=my_compiler)
        fit(model, torch.from_numpy(inputs[train]), torch.from_numpy(targets[train]),
            options.epochs)
        with torch.no_grad():
            predicted = model(torch.from_numpy(inputs[test])).numpy()
        scores.append(r2_score(targets[test], predicted))
        pyplot.plot(inputs[test], predicted, ".")
    print("R2 of each fold:", " ".join(f"{score:.3f}" for score in scores))
    assert min(scores) > 0.9
    assert GRAPHS
    if options.plot:
        pyplot.plot(inputs, np.sin(inputs))
        pyplot.savefig(options.plot)


if __name__ == "__main__":
    main()
