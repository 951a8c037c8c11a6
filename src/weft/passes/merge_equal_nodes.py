"""Common subexpression elimination: equal operators on equal arguments are computed once.

    before:  a = aten.exp(x);  b = aten.exp(x);  c = aten.add(a, b)
    after:   a = aten.exp(x);  c = aten.add(a, a)

Never merged: random operators, uninitialised memory, operators without results, and operators that
activation checkpointing runs again with those of the first run.
"""

from __future__ import annotations

import operator
from typing import Any, Final

import torch
from torch.fx import GraphModule, Node

from weft._torch import OpOverload, runs_as_written
from weft.passes.node_key import exact_key

aten = torch.ops.aten
_UNINITIALISED: Final = frozenset(
    {aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty, aten.new_empty_strided}
)


def merge_equal_nodes(gm: GraphModule) -> bool:
    """Replace each node by an equal earlier one."""
    seen: dict[Any, Node] = {}
    changed = False
    for node in list(gm.graph.nodes):
        if node.op != "call_function" or not _mergeable(node):
            continue
        key = (node.target, "runs_again" in node.meta, exact_key(node.args),
               exact_key(tuple(node.kwargs.items())))
        first = seen.setdefault(key, node)
        if first is not node:
            node.replace_all_uses_with(first)
            gm.graph.erase_node(node)
            changed = True
    return changed


def _mergeable(node: Node) -> bool:
    target = node.target
    if "binds" in node.meta:
        return False  # each has symbols of its own
    if target is operator.getitem:
        return True
    if not isinstance(target, OpOverload) or not target._schema.returns:
        return False
    if target.overloadpacket in _UNINITIALISED:
        return False
    return not runs_as_written(target)
