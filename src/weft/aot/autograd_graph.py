"""PyTorch's autograd graph: the nodes that the forward of a tensor has made.

Place in the pipeline: under capture and aot, which run the program's operators on fake tensors and
then ask what their gradients depend on. An edge leads from a node to the nodes of its operator's
arguments, so the leaves lie behind all others::

    y = (x * w).sum()
    nodes_behind([y.grad_fn])     # the node of the sum, that of the product, and those of x and w
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def nodes_behind(starts: Iterable[Any], *, end: type | tuple[type, ...] = ()) -> set[Any]:
    """These nodes and all those behind them, but none behind a node of the type `end`.

    None, where a tensor has no history, is skipped.
    """
    nodes: set[Any] = set()
    waiting = list(starts)
    while waiting:
        node = waiting.pop()
        if node is not None and node not in nodes:
            nodes.add(node)
            if not isinstance(node, end):
                waiting.extend(after for after, _ in node.next_functions)
    return nodes
