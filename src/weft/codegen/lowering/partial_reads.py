"""Operators that may raise, of whose results kernels would compute some elements only.

Place in the pipeline: asked by `graph.py` for each node. A formula is computed where it is read. If
the program reads a part, an error in the other part would go unnoticed; then ATen computes the
whole, as eager does (on GPUs, where such errors are not exceptions, formulas stay)::

    x[i][0]                        # ATen's index
    a, b = x[i].chunk(2)           # a formula, if both parts are read
"""

from __future__ import annotations

import operator
from typing import Any, Final, final

import torch
from torch.fx import Node

from weft._torch import OpOverload
from weft.codegen.lowering.materialization import RESHAPING
from weft.shapes.fakes.data_errors import may_raise, reads_values

aten = torch.ops.aten

_MOVES_ALL: Final = RESHAPING | {
    aten._to_copy.default, aten.flip.default, aten.roll.default, aten.cat.default,
    aten.stack.default, aten.squeeze.dims, aten.squeeze.default, aten.detach.default,
}
"""Operators that show every element of their operands."""
_SPLITS: Final = frozenset({
    aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int, aten.unsafe_split.Tensor,
    aten.unsafe_chunk.default, aten.chunk.default,
})
_SLICES: Final = frozenset({aten.slice.Tensor, aten.select.int})
_PART: Final = _SLICES | _SPLITS | {
    aten.as_strided.default, aten.diagonal.default, aten.tril.default, aten.triu.default,
    aten.unfold.default,
}
_INDEXED: Final = frozenset({
    aten.index.Tensor, aten.index_select.default, aten.gather.default, aten.embedding.default,
    aten.take.default, aten._unsafe_index.Tensor,
})
"""Operators that read single elements or rows of their first operand, and the others' all."""


@final
class PartialReads:
    """What is known about the nodes of one graph."""

    def __init__(self) -> None:
        self._wholly: dict[Node, bool] = {}

    def hides_errors(self, node: Node) -> bool:
        """Whether kernels would skip elements of the node's formula whose computation may raise."""
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
            return False
        return bool(node.users) and may_raise(node) and not self._is_whole(node)

    def _is_whole(self, node: Node) -> bool:
        """Whether something reads all elements of a node."""
        known = self._wholly.get(node)
        if known is None:
            known = self._wholly[node] = any(
                self._reads_all(user, node) for user in node.users) or self._parts_are_all(node)
        return known

    def _reads_all(self, user: Node, node: Node) -> bool:
        target = user.target
        if not reads_values(user):
            return False
        if target in _PART:
            return target in _SPLITS and self._splits_into_all(user)
        if target in _INDEXED:
            return user.args[0] is not node and self._is_whole(user)
        if target is aten.constant_pad_nd.default:
            widths: Any = user.args[1]
            return all(type(n) is int and n >= 0 for n in widths) and self._is_whole(user)
        pointwise = isinstance(target, OpOverload) and torch.Tag.pointwise in target.tags
        if pointwise or target in _MOVES_ALL:
            return self._is_whole(user)
        return True

    def _splits_into_all(self, split: Node) -> bool:
        items = {user.args[1]: user for user in split.users if user.target is operator.getitem}
        count = len(split.meta["val"])
        return len(items) == count and all(map(self._is_whole, items.values()))

    def _parts_are_all(self, node: Node) -> bool:
        """Whether slices along one dimension, each of them read, have all elements."""
        parts = [p for user in node.users if (p := _part(user)) is not None
                 and self._is_whole(user)]
        for dim in {dim for dim, _, _ in parts}:
            reached = 0
            for _, start, end in sorted(p for p in parts if p[0] == dim):
                if start > reached:
                    break
                reached = max(reached, end)
            if reached == node.meta["val"].size(dim):
                return True
        return False


def _part(node: Node) -> tuple[int, int, int] | None:
    """The dimension, start and end of a slice of known numbers."""
    if node.target not in _SLICES or node.kwargs:
        return None
    whole, dim, *bounds = (*node.args, 0)[: max(len(node.args), 2)]
    sizes = whole.meta["val"].size()  # type: ignore[union-attr]
    if type(dim) is not int or type(sizes[dim]) is not int or not all(
            n is None or type(n) is int for n in bounds):
        return None
    size = sizes[dim]
    if node.target is aten.select.int:
        start: Any = bounds[0]
        return dim % len(sizes), start % size, start % size + 1
    begin, end, step = slice(*[*bounds, None, None, None][:3]).indices(size)
    return (dim % len(sizes), begin, end) if step == 1 else None
