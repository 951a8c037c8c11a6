"""The ATen graph, which aot gives to passes and code generation: rules, verifier, owners of memory.

An `AtenGraph` is a `torch.fx.GraphModule` whose graph holds

- placeholders, one per input (`meta["val"]`: a fake tensor, a symbolic or a plain integer),
- `call_function` nodes on `OpOverload`s (and `operator.getitem` on those with several results),
  all of them functional: no argument is written, results alias only what the operator's schema
  says,
- one output: a flat tuple of nodes, constants and symbolic integers.

Every node has `meta["val"]` (fake tensors with eager's metadata), `meta["stack"]` (source lines)
and facts (`shapes/graph_facts.py`): the phase, and what passes must keep.
"""

from __future__ import annotations

import operator

import torch
from torch.fx import Graph, GraphModule, Node

from weft._torch import FakeTensor, LazyGraphModule, OpOverload, tree_flatten
from weft.aot.operators import Kind, facts
from weft.errors import VerificationError

AtenGraph = GraphModule
aten = torch.ops.aten


def make(graph: Graph) -> AtenGraph:
    """The graph module of a graph."""
    return LazyGraphModule(torch.nn.Module(), graph, class_name="AtenGraph")


def verify(gm: AtenGraph) -> None:
    """Raise VerificationError if `gm` breaks a rule of ATen graphs."""
    gm.graph.lint()
    nodes = list(gm.graph.nodes)
    if not nodes or nodes[-1].op != "output" or type(nodes[-1].args[0]) is not tuple:
        raise VerificationError("an ATen graph ends in an output of one tuple")
    for node in nodes[:-1]:
        problem = _problem(node)
        if problem:
            raise VerificationError(f"{problem}: {node.format_node()}")


def _problem(node: Node) -> str | None:
    """What is wrong with a node, if anything."""
    if "val" not in node.meta:
        return "no meta['val']"
    if node.op == "placeholder":
        return None
    if node.op != "call_function":
        return f"{node.op} in an ATen graph"
    if node.target is operator.getitem:
        return None
    if not isinstance(node.target, OpOverload):
        return "a call of something that is no operator overload"
    if facts(node.target).kind not in (Kind.FUNCTIONAL, Kind.VIEW, Kind.COMPOSITE, Kind.COLLECTIVE):
        return "an operator that writes its arguments"
    if any(isinstance(i, torch.Tensor) for i in _leaves(node.args)):
        return "a tensor among the arguments"
    return None


def _leaves(value: object) -> list[object]:
    if isinstance(value, (tuple, list)):
        return [leaf for v in value for leaf in _leaves(v)]
    return [value]


def result_tensors(node: Node) -> list[FakeTensor]:
    """The metadata of the tensors that a node gives."""
    return [v for v in tree_flatten(node.meta.get("val"))[0] if isinstance(v, FakeTensor)]


def is_view(node: Node) -> bool:
    """Whether the node's operator gives a view of its first argument."""
    target = node.target
    return isinstance(target, OpOverload) and facts(target).kind is Kind.VIEW


def memory_owner(node: Node) -> Node:
    """The node whose memory `node` views."""
    while node.op == "call_function" and isinstance(node.target, OpOverload):
        if facts(node.target).kind is not Kind.VIEW and node.target not in _MAY_ALIAS:
            break
        first = node.args[0]
        assert isinstance(first, Node)
        node = first
    return node


_MAY_ALIAS = frozenset({aten._unsafe_view.default, aten.reshape.default, aten.contiguous.default})
