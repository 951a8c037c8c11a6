"""Removes operators whose results are not used.

    before:  y = aten.relu(x);  z = aten.neg(x);  return (y,)
    after:   y = aten.relu(x);  return (y,)

Random operators stay (eager would advance the generator), as do assertions, nodes that bind
data-dependent sizes, and operators of the program that may raise because of their data
(`keep_errors`).
"""

from __future__ import annotations

import operator

from torch.fx import GraphModule, Node

from weft._torch import OpOverload, runs_as_written
from weft.shapes.fakes.data_errors import may_raise, reads_values


def eliminate_dead_code(gm: GraphModule) -> bool:
    """Erase unused nodes, last first."""
    changed = False
    for node in reversed(gm.graph.nodes):
        if not node.users and is_removable(node):
            gm.graph.erase_node(node)
            changed = True
    return changed


def keep_errors(gm: GraphModule) -> None:
    """Mark the forward's operators whose values nothing reads, but which may raise: `must_run`.

    To be called before passes replace operators by others and leave the former unused.
    """
    read: set[Node] = set()
    for node in reversed(gm.graph.nodes):
        if node in read or node.op == "output" or not is_removable(node):
            if reads_values(node):
                read.update(node.all_input_nodes)
        elif node.meta.get("phase") == "forward" and may_raise(node):
            node.meta["must_run"] = True
            read.update(node.all_input_nodes)


def is_removable(node: Node) -> bool:
    """Whether a node has no effect besides its result."""
    if node.op != "call_function" or "binds" in node.meta or "must_run" in node.meta:
        return False
    target = node.target
    if target is operator.getitem:
        return True
    if not isinstance(target, OpOverload):
        return False
    if not target._schema.returns:
        return False
    return not runs_as_written(target)
