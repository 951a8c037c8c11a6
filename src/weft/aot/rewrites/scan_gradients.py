"""The gradient of a cumulative product, as the library computes it.

Place in the pipeline: after `expand.py`. Eager asks the data whether there is a zero, and if there
is none, needs one scan only. While tracing there is no data to ask, so the graph has the formula
for both cases, which has four scans. On CPUs the library's function replaces it::

    where(first_zero, …, masked_fill(scanned(tangent * y) / …, x == 0, 0))      # y = cumprod(x)
    ->  cumprod_backward(tangent, x, dim, y)
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

from weft.shapes.graph_nodes import add_node

aten = torch.ops.aten


def use_library_gradients(gm: GraphModule) -> bool:
    """Replace the formulas of gradients that the library computes with fewer scans."""
    graph, changed = gm.graph, False
    if not graph.find_nodes(op="call_function", target=aten.cumprod.default):
        return False
    for node in graph.find_nodes(op="call_function", target=aten.where.self):
        operands = _cumprod_gradient(node)
        if operands is not None:
            with graph.inserting_before(node):
                call = add_node(
                    graph, aten.cumprod_backward.default, operands, {}, dict(node.meta))
            node.replace_all_uses_with(call)
            changed = True
    return changed


def _cumprod_gradient(node: Node) -> tuple[object, ...] | None:
    """The operands of `cumprod_backward` if a node is its formula, else None."""
    first, at_zero, elsewhere = _arguments(node)
    quotient = _operand(elsewhere, aten.masked_fill.Scalar)
    product = _scanned(_operand(quotient, aten.div.Tensor))
    is_zero = _operand(first, aten.bitwise_and.Tensor)
    if product is None or is_zero is None or is_zero.target is not aten.eq.Scalar:
        return None
    tangent, y = _arguments(product)
    x = _arguments(is_zero)[0]
    if not _is_call(y, aten.cumprod.default) or y.args[0] is not x or y.kwargs:
        return None
    other = _scanned(at_zero)
    if other is None or other.args[0] is not tangent or x.meta["val"].device.type != "cpu":
        return None
    return tangent, x, y.args[1], y


def _scanned(node: Any) -> Node | None:
    """The product in `flip(cumsum(flip(product)))`, or None."""
    for operator in (aten.flip.default, aten.cumsum.default, aten.flip.default):
        node = _operand(node, operator)
    return node if _is_call(node, aten.mul.Tensor) else None


def _arguments(node: Node) -> tuple[Any, ...]:
    return node.args


def _operand(node: Any, operator: Any) -> Node | None:
    """The first operand of a call of the operator; None for anything else."""
    operand: Any = node.args[0] if _is_call(node, operator) else None
    return operand if isinstance(operand, Node) else None


def _is_call(node: object, operator: object) -> bool:
    return isinstance(node, Node) and node.target is operator
