"""Which expensive operators the backward may recompute, to save less (`config`'s
`activation_memory_budget`).

Place in the pipeline: used by `partition.py` if the budget is less than 1. The operators that the
minimum cut runs only once are ordered by the cost of recomputing them for each byte that it saves;
the fewest that bring the saved bytes below the limit may be recomputed. More of them never make the
cut more expensive, so a bisection finds how many::

    budget 1    the cut as it is: at most what eager saves
    budget 0.5  half of that, where products and norms may run again
    budget 0    only inputs, and results of random operators
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import torch
from torch.fx import Node

from weft._torch import OpOverload
from weft.aot.graph import result_tensors
from weft.shapes.symnode import hint

Saved: TypeAlias = set[Node]

_PRODUCTS: Final = frozenset(
    {"mm", "addmm", "bmm", "baddbmm", "convolution", "_convolution", "linear",
     "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention",
     "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention"}
)
"""Operators that read each element many times (by packet name)."""


def save_less(
    dear: Sequence[Node], cut: Callable[[set[Node]], Saved], size: Callable[[Saved], int],
    budget: float,
) -> Saved:
    """The values to save if at most the part `budget` of what `cut` saves now may be saved.

    `dear`: operators that may run again; `cut(free)`: the values saved if those in `free` do;
    `size`: bytes.
    """
    ranked = sorted(dear, key=_cost_per_byte)
    saved = cut(set())
    limit = budget * size(saved)
    low, high = 0, len(ranked)
    while low < high and size(saved) > limit:
        middle = (low + high) // 2
        fewer = cut(_with_items(ranked[:middle]))
        if size(fewer) > limit:
            low = middle + 1
        else:
            high = middle
    return cut(_with_items(ranked[:low])) if low else saved


def _with_items(nodes: Sequence[Node]) -> set[Node]:
    """The nodes, and the parts of their results."""
    items = (u for n in nodes for u in n.users if u.target is operator.getitem)
    return {*nodes, *items}


def _cost_per_byte(node: Node) -> float:
    return _work(node) / max(sum(numel(t) for t in result_tensors(node)), 1)


def _work(node: Node) -> float:
    """A rough count of the elements that an operator computes with."""
    read = [numel(t) for a in node.all_input_nodes for t in result_tensors(a)]
    written = [numel(t) for t in result_tensors(node)]
    if _is_product(node) and len(read) > 1:
        largest = sorted(read)[-2:]
        return math.sqrt(float(largest[0]) * largest[1] * max(written, default=1))
    return float(sum(read) + sum(written))


def _is_product(node: Node) -> bool:
    target = node.target
    return isinstance(target, OpOverload) and target._schema.name.split("::")[1] in _PRODUCTS


def numel(tensor: torch.Tensor) -> int:
    """The number of elements, for the sizes of the first call."""
    return math.prod(hint(n) for n in tensor.size())
