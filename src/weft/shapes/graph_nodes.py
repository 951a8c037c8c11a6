"""Appends nodes with symbolic sizes to torch.fx graphs, quickly and without a warning.

`Graph.create_node` searches every argument for symbolic sizes in order to warn about them, which
takes longer than the rest; ATen graphs hold symbolic sizes on purpose (docs/architecture/aot.md)::

    node = add_node(graph, torch.ops.aten.add.Tensor, (x, 1), {}, {"val": fake})
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from torch.fx import Graph, Node
from torch.fx.node import map_arg


def add_node(
    graph: Graph, target: object, args: tuple[object, ...], kwargs: Mapping[str, object],
    meta: Mapping[str, object]
) -> Node:
    """A `call_function` node at the graph's insertion point."""
    return _add(graph, "call_function", target, args, kwargs, _base_name(target), meta)


def copy_node(graph: Graph, node: Node, copies: Mapping[Node, Node]) -> Node:
    """A copy of `node` that reads the copies of its operands, under its name if that is free."""
    args, kwargs = map_arg((node.args, node.kwargs), copies.__getitem__)
    return _add(graph, node.op, node.target, args, kwargs, node.name, node.meta)


def call_target(node: Node, args: Sequence[object], kwargs: Mapping[str, object]) -> Any:
    """What the function of a `call_function` node gives for these arguments."""
    function: Any = node.target
    return function(*args, **kwargs)


def results_of(graph: Graph) -> Any:
    """What a graph returns: nodes in the structure of its output node."""
    return graph.output_node().args[0]


def copied_graph(graph: Graph) -> Graph:
    """A copy of an ATen graph, its nodes under the same names."""
    copy = Graph()
    env: dict[Node, Node] = {}
    for node in graph.nodes:
        if node.op == "output":
            copy.output(map_arg(node.args[0], env.__getitem__))
        else:
            env[node] = copy_node(copy, node, env)
    return copy


def _add(
    graph: Graph, op: str, target: Any, args: Any, kwargs: Any, name: str,
    meta: Mapping[str, object]
) -> Node:
    names = graph._graph_namespace
    name = names.create_name(name, None)
    node = Node(graph, name, op, target, args, kwargs)
    names.associate_name_with_obj(name, node)
    graph._insert(node)
    graph._find_nodes_lookup_table.insert(node)
    graph._len += 1
    node.meta.update(meta)
    return node


@cache
def _base_name(target: Any) -> str:
    """`add` for `aten.add.Tensor`."""
    schema = getattr(target, "_schema", None)
    name = schema.name.split("::")[1] if schema is not None else target.__name__
    return str(name).strip("_") or "op"
