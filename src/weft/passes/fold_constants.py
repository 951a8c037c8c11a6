"""Constant folding: operators on constants alone are computed now.

    before:  a = aten.full([2], 3.0);  b = aten.mul(a, 2);  c = aten.add(x, b)
    after:   b = aten.full([2], 6.0);  c = aten.add(x, b)

Folded are pointwise operators whose tensor arguments are all *uniform* (`full`, `zeros`, `ones`,
scalars): the result is uniform too, so nothing has to be stored. The operator itself computes the
value, on one element.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch.fx import GraphModule, Node

from weft._torch import FakeTensor, OpOverload, runs_as_written, tree_flatten
from weft.shapes.graph_nodes import call_target

aten = torch.ops.aten

_VIEWS: Final = frozenset(
    {aten.expand.default, aten.view.default, aten.t.default, aten.transpose.int, aten.alias.default,
     aten.permute.default, aten.unsqueeze.default, aten.squeeze.dim, aten.clone.default,
     aten._to_copy.default}
)
_SOURCES: Final[dict[Any, Callable[[Node], Any]]] = {
    aten.full.default: lambda node: node.args[1],
    aten.full_like.default: lambda node: node.args[1],
    aten.new_full.default: lambda node: node.args[2],
    aten.scalar_tensor.default: lambda node: node.args[0],
    aten.zeros.default: lambda node: 0,
    aten.zeros_like.default: lambda node: 0,
    aten.new_zeros.default: lambda node: 0,
    aten.ones.default: lambda node: 1,
    aten.ones_like.default: lambda node: 1,
    aten.new_ones.default: lambda node: 1,
}


def fold_constants(gm: GraphModule) -> bool:
    """Replace uniform results by `aten.full`."""
    uniform: dict[Node, Any] = {}
    changed = False
    nodes: list[Node] = list(gm.graph.nodes)
    for node in nodes:
        if node.op != "call_function" or not isinstance(node.meta["val"], FakeTensor):
            continue
        source = _SOURCES.get(node.target)
        if source is not None:
            uniform[node] = source(node)
        elif _foldable(node, uniform):
            folded = _fold(gm, node, uniform)
            if folded is not None:
                changed = True
    return changed


def _foldable(node: Node, uniform: Mapping[Node, object]) -> bool:
    """Whether a node is a pointwise operator, or a view, on uniform tensors only."""
    inputs = node.all_input_nodes
    if not inputs or any(i not in uniform for i in inputs):
        return False
    target = node.target
    if not isinstance(target, OpOverload) or runs_as_written(target):
        return False
    return target in _VIEWS or (torch.Tag.pointwise in target.tags and not _is_symbolic(node))


def _is_symbolic(node: Node) -> bool:
    """Whether a node computes with symbolic sizes."""
    leaves, _ = tree_flatten((node.args, node.kwargs))
    return any(isinstance(v, torch.SymInt | torch.SymFloat | torch.SymBool) for v in leaves)


def _fold(gm: GraphModule, node: Node, uniform: dict[Node, Any]) -> Node | None:
    """`node` as an `aten.full`; None if the value is no plain number."""
    value = node.meta["val"]
    if any(type(n) is not int for n in value.size()) or not value.is_contiguous():
        return None
    number = _number(node, uniform)
    if number is None:
        return None
    with gm.graph.inserting_before(node):
        full = gm.graph.create_node(
            "call_function", aten.full.default, (list(value.size()), number),
            {"dtype": value.dtype, "device": value.device, "pin_memory": False},
        )
    full.meta.update(node.meta)
    node.replace_all_uses_with(full)
    gm.graph.erase_node(node)
    uniform[full] = number
    return full


def _number(node: Node, uniform: Mapping[Node, object]) -> Any:
    """The one value of a uniform result."""
    if node.target in _VIEWS:
        first = node.all_input_nodes[0]
        tensor = _scalar(first, uniform[first])
        return None if tensor is None else tensor.to(node.meta["val"].dtype).item()
    scalars = {n: _scalar(n, uniform[n]) for n in node.all_input_nodes}
    if any(s is None for s in scalars.values()):
        return None
    args = torch.fx.node.map_arg(node.args, scalars.__getitem__)
    kwargs = torch.fx.node.map_arg(node.kwargs, scalars.__getitem__)
    result = call_target(node, args, kwargs)
    if result.dim() > 1 or result.numel() != 1 or result.dtype.is_complex:
        return None
    return result.item()


def _scalar(node: Node, value: Any) -> torch.Tensor | None:
    """A tensor of one element (with a dimension if the node's tensor has any, because promotion
    depends on that)."""
    if type(value) not in (int, float, bool):
        return None
    meta = node.meta["val"]
    return torch.full([1] * min(meta.dim(), 1), value, dtype=meta.dtype, device="cpu")
