"""Each pass before and after, as text: `pytest tests/passes --update` rewrites the files."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.fx import Graph, GraphModule

import weft
from weft.aot import graph as aten_graph
from weft.aot.tracing.trace import trace
from weft.diagnostics.graph_text import graph_text
from weft.passes.eliminate_dead_code import eliminate_dead_code
from weft.passes.fold_constants import fold_constants
from weft.passes.merge_equal_nodes import merge_equal_nodes
from weft.passes.simplify import simplify

GOLDEN = Path(__file__).parent / "golden"


def dead_code(x):
    x.exp() + 1
    torch.rand(3)  # stays: the generator advances
    return x.relu()


def equal_nodes(x):
    a = x.exp() + 1.0
    b = x.exp() + 1
    c = x.exp() + 1.0
    torch.rand(3)
    return a, b * c, torch.rand(2) + torch.rand(2), torch.empty(2) + torch.empty(2)


def signs_of_zero(x):
    return x * 0.0, x * -0.0


def constants(x):
    a = torch.full((2, 3), 3.0) * 2
    b = torch.zeros(2, 3).exp().t() + torch.ones(3, 2)
    return x + a, b.sum(), torch.arange(3) * 2


def integer_constants(x):
    return x + torch.full((2, 3), 7) // 2 * torch.tensor(2.0)


def nothing_to_do(x):
    y = (x * 1).t().t()
    z = y.transpose(0, 1).transpose(1, 0).permute(0, 1)
    return (z - 0).view(6).view(3, 2).expand(3, 2)[0:3] + z.float().view(3, 2) + 0.0


def powers_and_integers(x):
    i = x.long() + 0
    return x**1 / 1, i / 1, i * 1 - 0


def copies_of_inputs(x):
    return x.clone(), x.contiguous().clone() + x.clone()


def pieces_without_elements(x):
    empty = torch.zeros(2, 0)
    one, two = torch.cat([empty, x.exp()], 1), torch.cat([x.exp(), empty, x], 1)
    return one + 1, two + 1, torch.cat([torch.zeros(0), x.view(6)]) + 1


CASES: list[tuple[Callable, Callable]] = [
    (eliminate_dead_code, dead_code),
    (merge_equal_nodes, equal_nodes),
    (merge_equal_nodes, signs_of_zero),
    (fold_constants, constants),
    (fold_constants, integer_constants),
    (simplify, nothing_to_do),
    (simplify, powers_and_integers),
    (simplify, copies_of_inputs),
    (simplify, pieces_without_elements),
]


def aten(function: Callable) -> GraphModule:
    """The ATen graph of a function of one (2, 3) tensor."""
    graph = Graph()
    graph.output(graph.call_function(function, (graph.placeholder("x"),)))
    gm = GraphModule(torch.nn.Module(), graph)
    _, traced = trace(gm, [torch.ones(2, 3)])
    traced.close()
    return aten_graph.make(traced.graph)


@pytest.mark.parametrize(("run", "function"), CASES, ids=lambda f: f.__name__)
def test_golden(run: Callable, function: Callable, request: pytest.FixtureRequest) -> None:
    gm = aten(function)
    before = graph_text(gm)
    run(gm)
    aten_graph.verify(gm)
    text = f"# before\n{before}\n\n# after {run.__name__}\n{graph_text(gm)}\n"
    path = GOLDEN / f"{run.__name__}.{function.__name__}.txt"
    if request.config.getoption("--update"):
        path.write_text(text)
    assert path.read_text() == text


@pytest.mark.parametrize("function", [f for _, f in CASES], ids=lambda f: f.__name__)
def test_all_passes_keep_the_meaning(function: Callable) -> None:
    from weft.backends import resolve

    graph = Graph()
    graph.output(graph.call_function(function, (graph.placeholder("x"),)))
    gm = GraphModule(torch.nn.Module(), graph)
    compiled = resolve("aot_eager")(gm, [torch.ones(2, 3)])
    x = torch.tensor([[0.0, -0.0, 1.5], [float("inf"), float("nan"), -2.0]])
    torch.manual_seed(0)
    wanted = torch.utils._pytree.tree_leaves(function(x.clone()))
    torch.manual_seed(0)
    found = compiled([x.clone()])
    for f, w in zip(torch.utils._pytree.tree_leaves(found), wanted, strict=True):
        assert f.dtype == w.dtype
        if function is not equal_nodes or f is not found[-1]:  # uninitialised memory
            torch.testing.assert_close(f, w, equal_nan=True, rtol=0, atol=0)
            assert torch.equal(torch.signbit(f), torch.signbit(w))


@pytest.mark.parametrize("rows", [0, 2])
def test_an_empty_piece_of_a_wider_type_lost_its_type(rows: int) -> None:
    numbers, empty = torch.ones(rows, 4, dtype=torch.int8), torch.empty(0, 4)
    weft.reset()
    found = weft.compile(lambda a, b: torch.cat([a, b]), backend="aot_eager")(numbers, empty)
    torch.testing.assert_close(found, torch.cat([numbers, empty]))
