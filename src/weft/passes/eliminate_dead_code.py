"""Removes operators whose results are not used.

    before:  y = aten.relu(x);  z = aten.neg(x);  return (y,)
    after:   y = aten.relu(x);  return (y,)

Random operators stay (eager would advance the generator), as do assertions, and nodes that bind
data-dependent sizes.
"""

from __future__ import annotations

import operator

from torch.fx import GraphModule, Node

from weft._torch import OpOverload, runs_as_written


def eliminate_dead_code(gm: GraphModule) -> bool:
    """Erase unused nodes, last first."""
    changed = False
    for node in reversed(gm.graph.nodes):
        if not node.users and is_removable(node):
            gm.graph.erase_node(node)
            changed = True
    return changed


def is_removable(node: Node) -> bool:
    """Whether a node has no effect besides its result."""
    if node.op != "call_function" or "binds" in node.meta:
        return False
    target = node.target
    if target is operator.getitem:
        return True
    if not isinstance(target, OpOverload):
        return False
    if not target._schema.returns:
        return False
    return not runs_as_written(target)
