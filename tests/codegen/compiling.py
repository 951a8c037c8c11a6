"""Compiles a Python function of tensors through aot and codegen, for tests of codegen alone.

artifact = check(lambda x: x.relu() + 1, torch.randn(3))     # equal to eager, strides too
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch.fx import Graph, GraphModule

from tools import kernel_interpreter
from weft._torch import tree_flatten
from weft.aot.pipeline import compile_aot
from weft.codegen import Artifact, compile_graph, targets
from weft.codegen.lowering import LOWERINGS
from weft.graph_call import GraphCall
from weft.shapes.graph_facts import graph_facts, note_graph


def captured(function: Callable[..., Any], n_inputs: int) -> GraphModule:
    """A graph of one call of `function`: tracing looks inside."""
    graph = Graph()
    inputs = [graph.placeholder(f"x{i}") for i in range(n_inputs)]
    graph.output(graph.call_function(function, tuple(inputs)))
    return GraphModule({}, graph)


def compiled(
    function: Callable[..., Any], *inputs: Any, written: tuple[tuple[int, int], ...] = ()
) -> tuple[Callable[..., Any], Artifact]:
    """The compiled function (boxed) and its artifact; `written`: (output, mutated input) pairs."""
    artifacts: list[Artifact] = []

    def compiler(gm: GraphModule) -> GraphCall:
        if written:
            note_graph(gm, replace(graph_facts(gm), written=written))
        artifacts.append(compile_graph(gm))
        return artifacts[-1].graph_call()

    gm = captured(function, len(inputs))
    call = compile_aot(gm, list(inputs), compiler, lowered=LOWERINGS.__contains__)
    return call, artifacts[0]


def check(
    function: Callable[..., Any], *inputs: Any, oracle: bool = False, **tolerance: float
) -> Artifact:
    """Compile, run twice and compare with eager; `oracle`: by the interpreter, not the C++
    target.
    """
    with torch.no_grad():
        expected = tree_flatten(function(*inputs))[0]
        with interpreted() if oracle else nullcontext():
            call, artifact = compiled(function, *inputs)
        for _ in range(2):
            results = tree_flatten(call(list(inputs)))[0]
            for result, wanted in zip(results, expected, strict=True):
                torch.testing.assert_close(result, wanted, equal_nan=True, **tolerance)
                assert_same_strides(result, wanted)
    return artifact


def interpreted() -> AbstractContextManager[Any]:
    """Kernels that are compiled inside run by the interpreter."""
    return mock.patch.object(targets, "compile_kernels", kernel_interpreter.compile_kernels)


def assert_same_strides(result: torch.Tensor, wanted: torch.Tensor) -> None:
    """Strides of dimensions of size 1 have no meaning."""
    triples = zip(wanted.shape, wanted.stride(), result.stride(), strict=True)
    assert wanted.numel() == 0 or all(n == 1 or a == b for n, a, b in triples)
