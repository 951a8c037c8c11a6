"""A pass of your own on the captured graph, and a backend that runs it before the default compiler.

    python examples/constant_folding_pass.py

The pass folds additions of numbers, `(x + 2) + 3` into `x + 5`. It is used in both ways: registered
with weft, where it runs before each compilation and is seen in the log, and called by a backend.
"""

import operator

import torch
from torch.fx import GraphModule
from torch.fx.passes.infra.pass_base import PassBase, PassResult

import weft

ADDITIONS = (operator.add, torch.add)


class FoldAdditions(PassBase):
    """`(x + a) + b` becomes `x + (a + b)` for numbers a and b."""

    def call(self, gm: GraphModule) -> PassResult:
        folded = 0
        for node in gm.graph.nodes:
            inner = node.args[0] if node.args else None
            if not (adds_number(node) and adds_number(inner)):
                continue
            node.args = (inner.args[0], inner.args[1] + node.args[1])
            folded += 1
        gm.graph.eliminate_dead_code()
        gm.recompile()
        print(f"FoldAdditions: {folded} folded, {len(gm.graph.nodes)} nodes left")
        return PassResult(gm, folded > 0)


def adds_number(node: object) -> bool:
    """Is this the sum of a tensor and an integer? (With floats, folding would change rounding.)"""
    return (
        isinstance(node, torch.fx.Node)
        and node.target in ADDITIONS
        and isinstance(node.args[0], torch.fx.Node)
        and isinstance(node.args[1], int)
        and not node.kwargs
    )


def folding_backend(gm: GraphModule, example_inputs: list[torch.Tensor]):
    """Prints the graph, runs the pass, prints it again, and goes on with weft's compiler."""
    gm.graph.print_tabular()
    FoldAdditions()(gm)
    gm.graph.print_tabular()
    return weft.compile_fx(gm, example_inputs)


def program(x: torch.Tensor) -> torch.Tensor:
    y = x + 2
    y = y + 3
    y = y + 4
    return y.relu() * 2


def main() -> None:
    x = torch.randint(-20, 20, (8,))
    expected = program(x)

    print("As part of a backend:")
    torch.testing.assert_close(weft.compile(program, backend=folding_backend)(x), expected)

    print("\nRegistered with weft:")
    weft.register_pass(FoldAdditions, before="aot")
    weft.set_logs(graph=True)
    torch.testing.assert_close(weft.compile(program)(x), expected)
    weft.unregister_pass("FoldAdditions")


if __name__ == "__main__":
    main()
