"""An ATen graph for the sizes of one call: plain integers instead of symbolic ones.

Place in the pipeline: off the path; checks of numerics run ATen graphs through torch.fx::

    gm = with_plain_sizes(gm, inputs)       # full([s0, 4], 1.0)  ->  full([8, 4], 1.0)
    gm(*inputs)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import fx
from torch.fx.node import map_aggregate

from weft.aot.graph import AtenGraph
from weft.aot.symbols import SYMBOLIC, input_symbols, size_text


def with_plain_sizes(gm: AtenGraph, inputs: Sequence[object]) -> fx.GraphModule:
    """A copy of the graph with the sizes of these inputs.

    Raises NameError if a size depends on data that no input gives.
    """
    placeholders = gm.graph.find_nodes(op="placeholder")
    sources = input_symbols(n.meta["val"] for n in placeholders)
    values = {name: source.read(inputs) for name, source in sources.items()}

    def plain(value: object) -> Any:
        if not isinstance(value, SYMBOLIC):
            return value
        return eval(size_text(value), {"math": math}, values)

    graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    for node in gm.graph.nodes:
        args, kwargs = map_aggregate((node.args, node.kwargs), plain)
        args, kwargs = fx.node.map_arg((args, kwargs), env.__getitem__)
        copy = env[node] = graph.create_node(node.op, node.target, args, kwargs, node.name)
        copy.meta["stack"] = node.meta.get("stack")
    return fx.GraphModule(gm, graph)
