"""The ATen graph: what aot gives to passes and code generation; its rules, its verifier, its
printer.

An `AtenGraph` is a `torch.fx.GraphModule` whose graph holds

- placeholders, one per input (`meta["val"]`: a fake tensor, a symbolic or a plain integer),
- `call_function` nodes on `OpOverload`s (and `operator.getitem` on those with several results),
  all of them functional: no argument is written, results alias only what the operator's schema
  says,
- one output: a flat tuple of nodes, constants and symbolic integers.

Every node has `meta["val"]` (fake tensors with eager's metadata), `meta["stack"]` (source lines)
and `meta["phase"]` ("forward" or "backward").
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from weft._torch import FakeTensor, LazyGraphModule, OpOverload
from weft.aot.operators import Kind, facts
from weft.errors import VerificationError
from weft.shapes.symnode import is_row_major

AtenGraph = GraphModule


def make(graph: Graph) -> AtenGraph:
    """The graph module of a graph."""
    return LazyGraphModule(torch.nn.Module(), graph, class_name="AtenGraph")


def outputs(gm: AtenGraph) -> tuple[Any, ...]:
    """The values that the graph returns."""
    result: tuple[Any, ...] = gm.graph.output_node().args[0]  # type: ignore[assignment]
    return result


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
    if facts(node.target).kind not in (Kind.FUNCTIONAL, Kind.VIEW, Kind.COMPOSITE):
        return "an operator that writes its arguments"
    if any(isinstance(i, torch.Tensor) for i in _leaves(node.args)):
        return "a tensor among the arguments"
    return None


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, (tuple, list)):
        return [leaf for v in value for leaf in _leaves(v)]
    return [value]


def text(gm: AtenGraph) -> str:
    """The graph as Python: one line per node with its type and source line."""
    lines = []
    for node in gm.graph.nodes:
        if node.op == "placeholder":
            lines.append(f"{node.name}: {_type(node)}")
        elif node.op == "output":
            lines.append(f"return {node.args[0]}")
        else:
            lines.append(f"{node.name}: {_type(node)} = {_call(node)}{_where(node)}")
    return "\n".join(lines) + "\n"


def _call(node: Node) -> str:
    args = [repr(a) for a in node.args] + [f"{k}={v!r}" for k, v in node.kwargs.items()]
    name = "getitem" if node.target is operator.getitem else str(node.target)
    return f"{name}({', '.join(args)})"


def _type(node: Node) -> str:
    value = node.meta.get("val")
    return type_text(value)


def type_text(value: Any) -> str:
    """`f32[2, 3]` for a tensor, `f32[2, 3]:(1, 2)` where it is not contiguous."""
    if isinstance(value, FakeTensor):
        dtype = str(value.dtype).removeprefix("torch.")
        dims = ", ".join(str(s) for s in value.size())
        strides = "" if is_row_major(value) else f":{tuple(value.stride())}"
        return f"{dtype}[{dims}]{strides}"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(type_text(v) for v in value)})"
    return type(value).__name__


def _where(node: Node) -> str:
    stack = node.meta.get("stack") or ()
    return f"  # {stack[-1].file}:{stack[-1].line}" if stack else ""
