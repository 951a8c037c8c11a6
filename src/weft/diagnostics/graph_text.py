"""Graphs as Python code, with each value's type and source line.

Place in the pipeline: logs, traces, explanations and tests of passes print captured graphs and ATen
graphs with it::

    # x: float32[2, 3]
    def forward(self, x):
        exp = torch.ops.aten.exp.default(x)  # float32[2, 3]  model.py:12
        return (exp,)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx

from weft.quoting import one_line

Remarks = Callable[[fx.Node], str]


def _no_remarks(node: fx.Node) -> str:
    return ""


def graph_text(graph: object, remarks: Remarks = _no_remarks) -> str:
    """The code of a GraphModule, with remarks on its nodes; anything else as it prints itself."""
    if not isinstance(graph, fx.GraphModule):
        return str(graph)
    return "\n".join([*_inputs(graph, remarks), *_statements(graph, remarks)])


def _inputs(gm: fx.GraphModule, remarks: Remarks) -> Iterator[str]:
    for node in gm.graph.find_nodes(op="placeholder"):
        yield f"# {node.name}: {_type_of(node)}{remarks(node)}"


def _statements(gm: fx.GraphModule, remarks: Remarks) -> Iterator[str]:
    """The lines of torch.fx's code, without its deletions of values that are no longer needed."""
    nodes = {node.name: node for node in gm.graph.nodes if node.op != "output"}
    for line in gm.graph.python_code("self").src.strip().splitlines():
        statement = line.partition(";  ")[0].rstrip()
        node = nodes.get(statement.strip().partition(" ")[0])
        if node is not None:
            statement += f"  # {_type_of(node)}{_line_of(node)}{remarks(node)}"
        yield statement


def _line_of(node: fx.Node) -> str:
    stack = node.meta.get("stack") or ()
    return f"  {one_line(stack[-1].file.rpartition('/')[2])}:{stack[-1].line}" if stack else ""


def _type_of(node: fx.Node) -> str:
    return type_text(node.meta.get("val", node.meta.get("example_value")))


def type_text(value: object) -> str:
    """`float32[2, 3]` for a tensor, `float32[2, 3]:(1, 2)` where it is not row-major."""
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return f"{dtype}[{', '.join(map(str, value.size()))}]{_strides_text(value)}"
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(type_text, value))})"
    return one_line(type(value).__name__)


def _strides_text(tensor: torch.Tensor) -> str:
    if tensor.layout is not torch.strided:
        return f":{tensor.layout}"
    row_major: Any = 1
    for size, stride in zip(reversed(tensor.size()), reversed(tensor.stride()), strict=True):
        if str(size) != "1" and str(stride) != str(row_major):  # texts: symbolic sizes add no guard
            return f":({', '.join(map(str, tensor.stride()))})"
        row_major = row_major * size
    return ""
