"""Compiles a function of tensors with symbolic sizes through aot and codegen, for tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch.fx import GraphModule

from tests.codegen.compiling import captured, interpreted
from weft.aot.pipeline import compile_aot
from weft.codegen import Artifact, compile_graph
from weft.codegen.lowering import LOWERINGS
from weft.graph_call import GraphCall
from weft.shapes.context import ShapeContext
from weft.shapes.fakes.fake import FakeContext
from weft.shapes.graph_facts import captured_facts, note


def compiled_dynamic(
    function: Callable[..., Any],
    inputs: list[torch.Tensor],
    dynamic: Mapping[int, set[int]],
    *,
    oracle: bool = True,
) -> tuple[Callable[..., Any], Artifact]:
    """`dynamic[i]` are the dimensions of (row-major) input i whose sizes are symbols."""
    shapes, fakes = ShapeContext(), FakeContext()
    gm = captured(function, len(inputs))
    placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
    for i, (node, tensor) in enumerate(zip(placeholders, inputs, strict=True)):
        sizes = [
            shapes.size(n, ("input", i, d)) if d in dynamic.get(i, ()) else n
            for d, n in enumerate(tensor.shape)
        ]
        strides: list[Any] = [1]
        for n in reversed(sizes[1:]):
            strides.append(strides[-1] * n)
        fake = fakes.fake(tensor, sizes=tuple(sizes), strides=tuple(strides[::-1][: len(sizes)]))
        node.meta["example_value"] = fake
    _note_dispatcher(gm, fakes, function, [node.meta["example_value"] for node in placeholders])
    artifacts: list[Artifact] = []

    def compiler(graph: GraphModule) -> GraphCall:
        artifacts.append(compile_graph(graph))
        return artifacts[-1].graph_call()

    with interpreted() if oracle else nullcontext():
        call = compile_aot(gm, inputs, compiler, lowered=LOWERINGS.__contains__)
    return call, artifacts[0]


def _note_dispatcher(
    gm: GraphModule, fakes: FakeContext, function: Callable[..., Any], inputs: list[Any]
) -> None:
    """Say in the graph, as capture does, whether the call needs PyTorch's Python dispatcher."""
    if fakes.mode.run(function, inputs, {})[1]:
        call = next(node for node in gm.graph.nodes if node.op == "call_function")
        note(call, replace(captured_facts(call), by_python=True))
