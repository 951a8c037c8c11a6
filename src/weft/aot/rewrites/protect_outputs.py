"""Gives every output its own memory: no output is an input, a view of one, or returned twice.

    before:  v = aten.view(x, [6]);  return (v, y, y)
    after:   v = aten.view(x, [6]);  c = aten.clone(v);  d = aten.clone(y);  return (c, y, d)
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from weft.aot.graph import memory_owner
from weft.shapes.graph_nodes import add_node

aten = torch.ops.aten


def protect_outputs(gm: GraphModule) -> bool:
    """Copy the outputs whose memory belongs to something else."""
    node = gm.graph.output_node()
    taken: set[Node] = set()
    outputs: Any = node.args[0]
    results: list[Any] = []
    for value in outputs:
        if isinstance(value, Node) and not isinstance(value.meta["val"], torch.SymInt):
            value = _with_own_memory(gm.graph, node, value, taken)
        results.append(value)
    node.args = (tuple(results),)
    return any(copy is not value for copy, value in zip(results, outputs, strict=True))


def _with_own_memory(graph: Graph, output: Node, value: Node, taken: set[Node]) -> Node:
    """`value`, or a copy of it if its memory belongs to something else."""
    owner = memory_owner(value)
    if owner.op != "placeholder" and owner not in taken:
        taken.add(owner)
        return value
    with graph.inserting_before(output):
        copy = add_node(graph, aten.clone.default, (value,), {}, value.meta)
    taken.add(copy)
    return copy
