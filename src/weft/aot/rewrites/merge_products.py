"""Merges products of one matrix with several parameters into one: queries, keys and values.

    before:  q = aten.addmm(b, x, aten.t(w));   k = aten.addmm(c, x, aten.t(v))
    after:   both = aten.addmm(bc, x, aten.t(wv))      # bc, wv: further inputs, cat of parameters
             q, k = aten.slice(both, 1, 0, n), aten.slice(both, 1, n, m)

The merged parameters are kept between calls (`runtime/kept_forms.py`). A slice has longer strides
than the product that it replaces: views are made of it as they were of the product, and where
something else reads it, the layout is restored. That costs nothing if the reader is a formula, and
attention reads any rows; products with other readers stay.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import torch
from torch.fx import Graph, Node

from weft._torch import FakeTensor, OpOverload
from weft.aot.evaluate import Evaluator
from weft.aot.graph import AtenGraph
from weft.aot.views import Unsupported
from weft.shapes.algebra.views import viewed_strides
from weft.shapes.graph_nodes import add_node
from weft.shapes.symnode import expr_of

aten = torch.ops.aten

PRODUCTS: Final = frozenset({aten.mm.default, aten.addmm.default})
VIEWS: Final = frozenset({aten.view.default, aten._unsafe_view.default, aten.reshape.default})
MOVES: Final = frozenset({
    aten.transpose.int, aten.permute.default, aten.unsqueeze.default, aten.slice.Tensor,
})
"""Views of anything, whatever its strides."""
ATTENTION: Final = aten._scaled_dot_product_flash_attention_for_cpu.default
MIN_PRODUCTS: Final = 1 << 21
"""Multiplications of a product from which on merging is worth the memory."""


@final
@dataclass(frozen=True, slots=True)
class Merged:
    """Parameters (positions of inputs) that are concatenated to a further input of the graph."""

    parts: tuple[int, ...]

    def __call__(self, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """The concatenation."""
        return torch.cat([inputs[i].detach() for i in self.parts])


def merge_products(gm: AtenGraph, usable: Collection[int]) -> list[Merged]:
    """Merge what pays, if its parameters are among the inputs `usable`; returns what the new
    inputs, behind the others, are made of."""
    inputs = gm.graph.find_nodes(op="placeholder")
    positions = {inputs[i]: i for i in usable}
    merged: list[Merged] = []
    for products in _groups(gm.graph, positions):
        if len(products) > 1 and all(map(_can_be_a_slice, products)):
            merged += _merge(gm.graph, products, positions)
    return merged


def _groups(graph: Graph, positions: Collection[Node]) -> list[list[Node]]:
    """Products of one matrix by transposed parameters, all with a bias or all without."""
    groups: dict[Any, list[Node]] = defaultdict(list)
    for node in graph.nodes:
        if node.target in PRODUCTS and _is_of_parameters(node, positions):
            groups[node.target, node.args[-2]].append(node)
    return list(groups.values())


def _is_of_parameters(node: Node, positions: Collection[Node]) -> bool:
    left, right = node.args[-2:]
    if node.kwargs or not isinstance(left, Node) or not isinstance(right, Node):
        return False
    if right.target is not aten.t.default or not positions_include(positions, right.args[0]):
        return False
    if node.target is aten.addmm.default and not positions_include(positions, node.args[0]):
        return False
    sizes = (*left.meta["val"].shape, right.meta["val"].shape[1])
    weight = right.all_input_nodes[0].meta["val"]
    if not all(type(n) is int for n in sizes) or not weight.is_contiguous():
        return False
    if weight.dtype != torch.float32 or weight.device.type != "cpu":
        return False
    bias = node.args[0] if node.target is aten.addmm.default else None
    if isinstance(bias, Node) and tuple(bias.meta["val"].shape) != (sizes[-1],):
        return False
    products: int = math.prod(sizes)
    return products >= MIN_PRODUCTS


def positions_include(positions: Collection[Node], value: object) -> bool:
    """Whether an argument is one of the inputs."""
    return isinstance(value, Node) and value in positions


# -- readers ---------------------------------------------------------------------------------------


def _can_be_a_slice(product: Node) -> bool:
    """Whether all readers, behind views, are formulas or attention."""
    return bool(product.users) and all(map(_reads_any_rows, _readers(product)))


def _readers(node: Node) -> Iterator[Node]:
    for user in node.users:
        if user.target in VIEWS or user.target in MOVES:
            yield from _readers(user)
        else:
            yield user


def _reads_any_rows(user: Node) -> bool:
    target = user.target
    if target is ATTENTION or target is aten.cat.default:
        return True
    return isinstance(target, OpOverload) and torch.Tag.pointwise in target.tags


# -- merging ---------------------------------------------------------------------------------------


def _merge(graph: Graph, products: list[Node], positions: dict[Node, int]) -> list[Merged]:
    """One product for several, the first of which it precedes."""
    first, evaluator = products[0], Evaluator.current()
    weights = [p.all_input_nodes[-1].all_input_nodes[0] for p in products]
    sources: list[list[Any]] = [weights]
    if first.target is aten.addmm.default:
        sources.append([p.args[0] for p in products])
    parts = [Merged(tuple(positions[s] for s in nodes)) for nodes in sources]
    weight, *bias = (_new_input(graph, nodes, evaluator) for nodes in sources)
    with graph.inserting_before(first):
        emit = _emitter(graph, first, evaluator)
        op = aten.addmm.default if bias else aten.mm.default
        whole = emit(op, *bias, first.args[-2], emit(aten.t.default, weight))
        start = 0
        for product in products:
            end = start + product.meta["val"].shape[1]
            piece = emit(aten.slice.Tensor, whole, 1, start, end)
            _replace(graph, product, piece, evaluator)
            start = end
    return parts


def _new_input(graph: Graph, parts: Sequence[Node], evaluator: Evaluator) -> Node:
    value = evaluator.run(aten.cat.default, (list(parts),), {}).value
    last = graph.find_nodes(op="placeholder")[-1]
    with graph.inserting_after(last):
        node = graph.placeholder("merged")
    node.meta.update({**parts[0].meta, "val": value})
    return node


def _emitter(graph: Graph, place: Node, evaluator: Evaluator) -> Callable[..., Node]:
    def emit(op: OpOverload, *args: object, **kwargs: object) -> Node:
        value = evaluator.run(op, args, kwargs).value
        return add_node(graph, op, args, kwargs, {**place.meta, "val": value})

    return emit


def _replace(graph: Graph, old: Node, new: Node, evaluator: Evaluator) -> None:
    """Let the readers of a node read one with the same elements in other strides."""
    for user in list(old.users):
        with graph.inserting_before(user):
            emit = _emitter(graph, user, evaluator)
            if user.target in VIEWS and _is_viewable(new, user):
                view = emit(aten.view.default, new, *user.args[1:])
                _replace(graph, user, view, evaluator)
            elif isinstance(user.target, OpOverload) and user.target in MOVES:
                moved = emit(user.target, new, *user.args[1:], **user.kwargs)
                _replace(graph, user, moved, evaluator)
            elif user.target is ATTENTION and new.meta["val"].stride(-1) == 1:
                user.replace_input_with(old, new)
            else:
                user.replace_input_with(old, _as_before(emit, new, old.meta["val"]))


def _is_viewable(node: Node, view: Node) -> bool:
    value, wanted = node.meta["val"], view.meta["val"]
    extents = value.size(), value.stride(), wanted.size()
    before, steps, after = (tuple(expr_of(n) for n in extent) for extent in extents)
    return viewed_strides(before, steps, after) is not None


def _as_before(emit: Callable[..., Node], node: Node, expected: FakeTensor) -> Node:
    """The node's elements in the expected layout."""
    strides = expected.stride()
    order = sorted(range(expected.dim()), key=lambda d: (-strides[d], d))
    moved = emit(aten.permute.default, node, order)
    copy = emit(aten.clone.default, moved, memory_format=torch.contiguous_format)
    back = emit(aten.permute.default, copy, [order.index(d) for d in range(len(order))])
    if back.meta["val"].stride() != strides:
        raise Unsupported("a product's readers in a layout with gaps")
    return back
