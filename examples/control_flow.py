"""A branch on data: one graph break, both branches right, and the same as an error.

    python examples/control_flow.py
"""

import torch

import weft


def toy(x: torch.Tensor) -> torch.Tensor:
    """relu, then doubled if anything is left."""
    x = x.relu()
    if x.sum() > 0:
        x = x * 2
    return x


def main() -> None:
    compiled = weft.compile(toy)
    for x in (torch.ones(4), -torch.ones(4), torch.ones(4)):
        torch.testing.assert_close(compiled(x), toy(x))

    print(weft.explain(toy)(torch.ones(4)))

    try:
        weft.compile(toy, fullgraph=True)(torch.ones(4))
    except weft.errors.GraphBreakError as error:
        print(f"\nwith fullgraph=True:\n{error}")
    else:
        raise AssertionError("fullgraph=True must raise at a branch on data")


if __name__ == "__main__":
    main()
