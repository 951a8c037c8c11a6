"""The smallest part of a graph that still fails.

Place in the pipeline: used by `checks.py` when a compiled graph fails or differs from eager::

    small, inputs = minimize(gm, inputs, fails)        # fails(part, its inputs) -> bool

A part is a set of nodes. The values that it needs from other nodes become inputs, with the values
that the nodes had when the whole graph ran; its unused results are returned. Chunks of nodes are
left out, first halves, then smaller ones down to single nodes, as long as the rest fails ("delta
debugging": Zeller and Hildebrandt, Simplifying and isolating failure-inducing input, 2002).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import torch
from torch import fx

from weft.diagnostics.numerics import copies

Part: TypeAlias = tuple[fx.GraphModule, list[Any]]
"""A graph and its inputs."""
Fails: TypeAlias = Callable[[fx.GraphModule, list[Any]], bool]

_CALLS: Final = ("call_function", "call_method", "call_module")


class _NotAGraph(Exception):
    """A part that needs a value which cannot be an input."""


def minimize(gm: fx.GraphModule, inputs: Sequence[object], fails: Fails) -> Part | None:
    """The part, and its inputs; None if the graph, rebuilt as a part of itself, does not fail."""
    values = _Recorder(gm).recorded(inputs)
    kept = [n for n in gm.graph.nodes if n.op in _CALLS]
    best = _failing(gm, kept, values, fails)
    if best is None:
        return None
    size = max(1, len(kept) // 2)
    while True:
        before = len(kept)
        at = 0
        while at < len(kept):
            fewer = kept[:at] + kept[at + size :]
            smaller = _failing(gm, fewer, values, fails) if fewer else None
            if smaller is None:
                at += size
            else:
                kept, best = fewer, smaller
        if size == 1 and len(kept) == before:
            return best
        size = max(1, size // 2)


def _failing(
    gm: fx.GraphModule, kept: list[fx.Node], values: Mapping[fx.Node, object], fails: Fails
) -> Part | None:
    """The part with these nodes if it exists and fails, else None."""
    try:
        part = part_of(gm, kept, values)
    except _NotAGraph:
        return None
    return part if fails(*part) else None


def part_of(gm: fx.GraphModule, kept: Sequence[fx.Node], values: Mapping[fx.Node, object]) -> Part:
    """The graph of some nodes, in their order, and its inputs."""
    nodes, graph, env, inputs = set(kept), fx.Graph(), {}, []
    needed = dict.fromkeys(a for n in kept for a in n.all_input_nodes if a not in nodes)
    for node in needed:
        if node.op == "get_attr":
            env[node] = graph.node_copy(node)
        elif node in values:
            env[node] = graph.placeholder(node.name)
            inputs.append(values[node])
        else:
            raise _NotAGraph
    for node in kept:
        env[node] = graph.node_copy(node, env.__getitem__)
    returned = set(gm.graph.output_node().all_input_nodes)
    outputs = tuple(env[n] for n in kept
                    if n in values and (n in returned or not nodes & n.users.keys()))
    graph.output(outputs)
    return fx.GraphModule(gm, graph), copies(inputs)


class _Recorder(fx.Interpreter):
    """Runs a graph and keeps what its nodes gave: copies of tensors, and numbers."""

    def recorded(self, inputs: Sequence[object]) -> dict[fx.Node, Any]:
        self.values: dict[fx.Node, Any] = {}
        self.run(*copies(inputs))
        return self.values

    def run_node(self, n: fx.Node) -> object:
        value = super().run_node(n)
        if isinstance(value, torch.Tensor | int | float | bool):
            (self.values[n],) = copies([value])
        return value
