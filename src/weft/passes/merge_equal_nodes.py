"""Common subexpression elimination: equal operators on equal arguments are computed once.

    before:  a = aten.exp(x);  b = aten.exp(x);  c = aten.add(a, b)
    after:   a = aten.exp(x);  c = aten.add(a, a)

Never merged: random operators, uninitialised memory, operators without results, operators that
activation checkpointing runs again with those of the first run, and operators of a backward that
read inputs with those of the forward: the program may write to the inputs in between.
"""

from __future__ import annotations

import operator
from typing import Any, Final

import torch
from torch.fx import GraphModule, Node

from weft._torch import OpOverload, runs_as_written
from weft.passes.node_key import exact_key
from weft.shapes.graph_facts import aten_facts

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
        key = (node.target, aten_facts(node).runs_again, _reads_late(node), exact_key(node.args),
               exact_key(tuple(node.kwargs.items())))
        first = seen.setdefault(key, node)
        if first is not node:
            node.replace_all_uses_with(first)
            gm.graph.erase_node(node)
            changed = True
    return changed


def _reads_late(node: Node) -> bool:
    """Whether it computes something of the graph's inputs, as they are in the backward."""
    if aten_facts(node).phase != "backward" or _is_view(node):
        return False
    return any(_viewed(a).op == "placeholder" for a in node.all_input_nodes)


def _viewed(node: Node) -> Node:
    """What the node is a view of."""
    while _is_view(node):
        node = node.all_input_nodes[0]
    return node


def _is_view(node: Node) -> bool:
    returns = node.target._schema.returns if isinstance(node.target, OpOverload) else ()
    return bool(node.all_input_nodes) and any(r.alias_info is not None for r in returns)


def _mergeable(node: Node) -> bool:
    target = node.target
    if aten_facts(node).binds:
        return False  # each has symbols of its own
    if target is operator.getitem:
        return True
    if not isinstance(target, OpOverload) or not target._schema.returns:
        return False
    if target.overloadpacket in _UNINITIALISED:
        return False
    return not runs_as_written(target)
