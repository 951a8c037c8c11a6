"""Graphs with tensors made of tensors: the same graph on their parts.

Place in the pipeline: before tracing. Inputs and outputs that are wrappers
(`shapes/fakes/wrappers.py`) are replaced by their parts. In between, the recorder leaves operations
on wrappers to their class, and records what it does with the parts::

    graph(w: Scaled, x)           graph(w_0, w_1, x)
                                      w = joined(w_0, w_1)
        y = x @ w                     y = x @ w             # Scaled.__torch_dispatch__
        return y, w                   return y, w.data_, w.scale
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, final

import torch
from torch.fx import Graph, GraphModule, Node

from weft.shapes.fakes.wrappers import is_wrapper, leaves, parts, rebuilt

Call = Callable[..., Any]


@final
class Joined:
    """Makes a wrapper like `like` from its parts."""

    __name__ = "joined"

    def __init__(self, like: torch.Tensor) -> None:
        self.like = like

    def __call__(self, *pieces: torch.Tensor) -> Any:
        rest = iter(pieces)
        return rebuilt(self.like, lambda _: next(rest))


def _is_wrapped(value: object) -> bool:
    return isinstance(value, torch.Tensor) and is_wrapper(type(value))


def _values(gm: GraphModule) -> tuple[list[Any], list[Any]]:
    """The example values of the graph's inputs and outputs."""
    inputs = [n.meta.get("example_value") for n in gm.graph.nodes if n.op == "placeholder"]
    output = gm.graph.output_node().args[0]
    nodes = output if isinstance(output, (tuple, list)) else ()
    return inputs, [n.meta.get("example_value") if isinstance(n, Node) else n for n in nodes]


def has_wrappers(gm: GraphModule) -> bool:
    """Whether an input or output is a wrapper."""
    inputs, outputs = _values(gm)
    return any(map(_is_wrapped, (*inputs, *outputs)))


def can_unwrap(gm: GraphModule) -> bool:
    """Whether the graph can be written on parts: no gradients of wrappers, no symbolic sizes in
    them (but of nested tensors, which have the sizes of their parts)."""
    inputs, outputs = _values(gm)
    wrapped = [value for value in (*inputs, *outputs) if _is_wrapped(value)]
    return not any(
        w.requires_grad
        or (not w.is_nested and any(type(n) is not int for n in (*w.size(), *w.stride())))
        for w in wrapped
    )


def unwrapped_graph(gm: GraphModule) -> GraphModule:
    """The graph with parts as inputs and outputs."""
    graph, env = Graph(), dict[Node, Node]()
    for node in gm.graph.nodes:
        value = node.meta.get("example_value")
        if node.op == "placeholder" and _is_wrapped(value):
            pieces = tuple(_input(graph, f"{node.name}_{i}", leaf)
                           for i, leaf in enumerate(leaves(value)))
            env[node] = graph.call_function(Joined(value), pieces)
            env[node].meta = dict(node.meta)
        elif node.op == "output":
            graph.output(tuple(piece for result in node.args[0] for piece in _pieces(
                graph, env.get(result, result), result)))
        else:
            env[node] = graph.node_copy(node, env.__getitem__)
    made = GraphModule(gm, graph)
    made.meta.update(gm.meta)
    return made


def _input(graph: Graph, name: str, leaf: torch.Tensor) -> Node:
    node = graph.placeholder(name)
    node.meta["example_value"] = leaf
    return node


def _pieces(graph: Graph, node: Any, was: Any) -> Iterator[Any]:
    """The parts of a result, as nodes."""
    return _parts_of(graph, node, was.meta.get("example_value") if isinstance(was, Node) else None)


def _parts_of(graph: Graph, node: Node, value: Any) -> Iterator[Node]:
    if not _is_wrapped(value):
        yield node
        return
    for name in parts(value)[0]:
        inner = getattr(value, name)
        if not isinstance(inner, torch.Tensor):
            continue
        part = graph.call_function(getattr, (node, name))
        part.meta = {**node.meta, "example_value": inner}
        yield from _parts_of(graph, part, inner)


def unwrapped_inputs(inputs: Sequence[Any]) -> list[Any]:
    """The inputs with wrappers replaced by their parts."""
    return [piece for value in inputs
            for piece in (leaves(value) if _is_wrapped(value) else (value,))]


def wrap_outputs(call: Call, gm: GraphModule) -> Call:
    """`call`, which works on parts, as a callable with the inputs and outputs of `gm`."""
    outputs = [Joined(value) if _is_wrapped(value) else None for value in _values(gm)[1]]
    counts = [1 if join is None else len(leaves(join.like)) for join in outputs]
    boxed = getattr(call, "boxed", False)

    def on_wrappers(*inputs: Any) -> list[Any]:
        pieces = unwrapped_inputs(inputs)
        results = iter(call(pieces) if boxed else call(*pieces))
        taken = [[next(results) for _ in range(count)] for count in counts]
        return [own[0] if join is None else join(*own)
                for join, own in zip(outputs, taken, strict=True)]

    return on_wrappers
