"""What a backward graph computes if some values get no tangent, or some gradients are not needed.

Place in the pipeline: `backwards.py` narrows a copy of the backward graph for each pattern of
tangents and gradients that occurs. As in autograd, nothing flows where no tangent arrives (which is
more than a zero: `0 * inf` is never computed), and a sum with an absent term is its other term::

    before:  s = mul(t_logits, w);  g = add(s, h);  return g, sum(t_logits)
    after:   return h, None                                    # t_logits is absent

Operators without an entry in `_RULES` receive zeros.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection
from typing import Any, Final

import torch
from torch.fx import Graph, Node

from weft._torch import OpOverload
from weft.aot.evaluate import Evaluator
from weft.aot.operators import Kind, facts
from weft.aot.tracing.arrivals import narrow, reached
from weft.shapes.graph_nodes import add_node
from weft.shapes.tensor_layouts import memory_order

aten = torch.ops.aten

Rule = Callable[[Node, Collection[Node]], Node | bool | None]
"""(node, absent nodes) -> True if it is absent too; another node that it equals; None for
neither."""


def remove_tangents(graph: Graph, absent_tangents: Collection[Node]) -> set[Node]:
    """Remove these placeholders and what they contribute; outputs without a tangent become None.

    Returns the operators that receive zeros instead of an absent tangent.
    """
    absent: set[Node] = set()
    with_zeros: set[Node] = set()
    for node in list(graph.nodes):
        if node.op == "placeholder":
            if node in absent_tangents:
                absent.add(_zeros(node))
                graph.erase_node(node)
        elif node.op == "call_function" and node not in absent:
            _visit(node, absent, with_zeros)
    _drop_outputs(graph, absent)
    return with_zeros


def _visit(node: Node, absent: set[Node], with_zeros: set[Node]) -> None:
    if absent.isdisjoint(node.all_input_nodes):
        return
    if node.target is reached:
        if narrow(node, absent, _zeros_like):
            absent.add(node)
        return
    outcome = _rule(node)(node, absent)
    if outcome is True:
        absent.add(node)
    elif isinstance(outcome, Node) and outcome.meta["val"] is node.meta["val"]:
        node.replace_all_uses_with(outcome)
    else:
        with_zeros.add(node)


def _zeros(tangent: Node) -> Node:
    """A zero tensor instead of an absent tangent, for operators that need one."""
    zeros = _zeros_like(tangent)
    tangent.replace_all_uses_with(zeros)
    return zeros


def _zeros_like(node: Node) -> Node:
    """Zeros with the metadata of a node, made before all operators."""
    graph, value = node.graph, node.meta["val"]
    order = memory_order(value.stride())
    evaluator = Evaluator.current()
    later = next(n for n in graph.nodes if n.op != "placeholder")
    with graph.inserting_before(later):
        size = [value.size(d) for d in order.order]
        options = {"dtype": value.dtype, "device": value.device, "pin_memory": False}
        meta = {**node.meta, "val": evaluator.run(aten.full.default, (size, 0), options).value}
        zeros = add_node(graph, aten.full.default, (size, 0), options, meta)
        if not order.is_identity:
            back = list(order.inverse().order)
            zeros = add_node(graph, aten.permute.default, (zeros, back), {}, node.meta)
    return zeros


def _drop_outputs(graph: Graph, absent: Collection[Node]) -> None:
    output = graph.output_node()
    results: Any = output.args[0]
    output.args = (tuple(None if r in absent else r for r in results),)


# -- rules -----------------------------------------------------------------------------------------


def _linear_in_first(node: Node, absent: Collection[Node]) -> bool | None:
    """Linear in the first argument."""
    return node.args[0] in absent or None


def _bilinear(node: Node, absent: Collection[Node]) -> bool | None:
    """Linear in each of the first two arguments."""
    return any(a in absent for a in node.args[:2]) or None


def _sum(node: Node, absent: Collection[Node]) -> Node | bool | None:
    """The sum of two terms."""
    left, right = node.args[:2]
    if left in absent and right in absent:
        return True
    if left in absent:
        plain = node.target is aten.add.Tensor and node.kwargs.get("alpha", 1) == 1
        return right if plain and isinstance(right, Node) else None
    return left  # type: ignore[return-value]


def _linear_in_list(node: Node, absent: Collection[Node]) -> bool | None:
    """Linear in a list of tensors: absent only if all of them are."""
    terms = node.args[0]
    assert isinstance(terms, (list, tuple))
    return all(a in absent for a in terms) or None


def _selection(node: Node, absent: Collection[Node]) -> bool | None:
    """A selection between two values: absent if both are absent or zero."""
    chosen = node.args[1:3]
    return all(a in absent or _is_zero(a) for a in chosen) or None


def _masked_fill(node: Node, absent: Collection[Node]) -> bool | None:
    """Some elements are replaced by zeros."""
    return (node.args[0] in absent and _is_zero(node.args[2])) or None


def _pad(node: Node, absent: Collection[Node]) -> bool | None:
    """Zeros are added around it."""
    value = node.args[2] if len(node.args) > 2 else 0
    return (node.args[0] in absent and _is_zero(value)) or None


def _partial_write(position: int) -> Rule:
    """A copy of the first argument with some elements from another one."""

    def rule(node: Node, absent: Collection[Node]) -> bool | None:
        base = node.args[0]
        return ((base in absent or _is_zero(base)) and node.args[position] in absent) or None

    return rule


def _other_operator(node: Node, absent: Collection[Node]) -> bool | None:
    """Views and derivatives are linear in the first argument; nothing is known about other
    operators."""
    target = node.target
    if target is operator.getitem:
        return _linear_in_first(node, absent)
    if not isinstance(target, OpOverload) or target.namespace != "aten":
        return None
    derivative = "backward" in target._schema.name and _takes_gradient_first(target)
    return _linear_in_first(node, absent) if derivative or facts(target).kind is Kind.VIEW else None


def _takes_gradient_first(op: OpOverload) -> bool:
    return op._schema.arguments[0].name.startswith("grad")


def _is_zero(value: object) -> bool:
    """Whether a number or a tensor is entirely zero."""
    while isinstance(value, Node) and value.target in _SAME_VALUE:
        value = value.args[0]
    if not isinstance(value, Node):
        return type(value) in (int, float) and value == 0
    if value.target in _ZEROS:
        return True
    at = _FILLS.get(value.target)
    return at is not None and _is_zero(value.args[at])


_SAME_VALUE: Final = {aten.expand.default, aten.view.default, aten.permute.default,
                      aten.clone.default, aten._to_copy.default}
_ZEROS: Final = {aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default}
_FILLS: Final[dict[Any, int]] = {
    aten.full.default: 1, aten.full_like.default: 1, aten.scalar_tensor.default: 0,
    aten.new_full.default: 2,
}

_LINEAR: Final = (
    "neg", "clone", "_to_copy", "sum", "mean", "div", "cumsum", "flip", "roll", "repeat", "index",
    "gather", "index_select", "conj_physical", "_conj_physical", "tril", "triu", "split",
    "split_with_sizes", "unbind", "chunk", "_unsafe_view", "reshape", "contiguous", "trace",
    "diag_embed", "real", "imag", "_fft_c2c", "_fft_c2r", "_fft_r2c",
)
"""Operators that are linear in their first argument (by name)."""

_RULES: Final[dict[str, Rule]] = {
    **dict.fromkeys(_LINEAR, _linear_in_first),
    **dict.fromkeys(("mul", "mm", "bmm", "mv", "dot", "outer"), _bilinear),
    **dict.fromkeys(("add", "sub"), _sum),
    **dict.fromkeys(("cat", "stack"), _linear_in_list),
    "where": _selection,
    "masked_fill": _masked_fill,
    "constant_pad_nd": _pad,
    "index_put": _partial_write(2),
    **dict.fromkeys(("scatter", "scatter_add", "index_add", "index_copy"), _partial_write(3)),
    **dict.fromkeys(("select_scatter", "slice_scatter", "diagonal_scatter", "as_strided_scatter"),
                    _partial_write(1)),
}
"""The rules, by the operator's name."""


def _rule(node: Node) -> Rule:
    target = node.target
    if not isinstance(target, OpOverload) or target.namespace != "aten":
        return _other_operator
    return _RULES.get(target._schema.name.split("::")[1], _other_operator)
