"""Calls of what capture cannot look into: each is one operation between the graphs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import weft
from tests.capture.harness import check
from weft.errors import GraphBreakError


@pytest.mark.filterwarnings("ignore")
def test_a_method_in_c_of_an_unknown_object_broke_twice_and_was_compiled_at_each_call() -> None:
    """It was bound in one piece and called in the next, which was guarded by the bound method."""
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.quantize_per_tensor(x, 0.1, 10, torch.quint8).dequantize() * 2

    check(f, (torch.ones(3),), graphs=1, breaks=2, repeat=4)
    assert weft.stats()["recompiles"] == 0


def test_hooks_on_autograd_nodes_broke_twice_and_were_compiled_at_each_call() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        h = torch.relu(x @ w)
        h.grad_fn.register_hook(lambda inputs, outputs: (inputs[0] * 2,))
        return h.sum()

    weft.reset()
    compiled = weft.compile(f, backend="eager")
    for _ in range(4):
        gradients = []
        for function in (f, compiled):
            x = torch.arange(6.0).view(2, 3).requires_grad_()
            function(x, torch.ones(3, 4)).backward()
            gradients.append(x.grad)
        torch.testing.assert_close(gradients[1], gradients[0])
    stats = weft.stats()
    assert (stats["graphs"], stats["graph_breaks"], stats["recompiles"]) == (2, 1, 0)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.linear(x))


@pytest.mark.filterwarnings("ignore")
def test_a_scripted_module_broke_in_its_caller_and_in_torch() -> None:
    module = torch.jit.script(Layer())
    check(lambda x: module(x * 2) + 1, (torch.ones(2, 4),), graphs=2, breaks=1)
    with pytest.raises(GraphBreakError, match=r"a module that torch.jit compiled"):
        weft.compile(lambda x: module(x * 2), fullgraph=True, backend="eager")(torch.ones(2, 4))


def test_an_interpreter_of_fx_broke_in_its_progress_bar() -> None:
    """Then each node's turn was a continuation within torch.fx."""
    traced = torch.fx.symbolic_trace(Layer())
    check(lambda x: torch.fx.Interpreter(traced).run(x) * 2, (torch.ones(2, 4),), breaks=2)
    assert weft.stats()["recompiles"] == 0


def test_a_break_within_a_library_named_the_library_only() -> None:
    traced = torch.fx.symbolic_trace(Layer())

    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.fx.Interpreter(traced).run(x)

    text = weft.explain(f)(torch.ones(2, 4)).graph_breaks[0].place
    here, _, library = text.partition(" (within ")
    assert f"{__file__}:{f.__code__.co_firstlineno + 1}" in here
    assert "torch/fx" in library


def test_the_break_at_assigned_data_had_no_place() -> None:
    layer = nn.Linear(4, 4)

    def f(x: torch.Tensor) -> torch.Tensor:
        layer.weight.data = layer.weight.data * 0.5
        return layer(x).sum()

    place = weft.explain(f)(torch.ones(2, 4)).graph_breaks[0].place
    assert f"{__file__}:{f.__code__.co_firstlineno + 1}" in place


def test_continuations_at_the_end_of_a_loop_were_named_after_no_line() -> None:
    def f(x: torch.Tensor, limits: list[int]) -> torch.Tensor:
        for limit in limits:
            if not (x.sum() < limit):
                x = x + limit
        return x

    breaks = weft.explain(f)(torch.ones(3), [5, 4, 1]).graph_breaks
    first = f.__code__.co_firstlineno
    lines = (first + 2, first + 3)  # the jump belongs to the test from CPython 3.12 on
    assert breaks[1].stack[-1].function.endswith(
        tuple(f"f.<resumed at line {line}>" for line in lines))
