"""Removes operators whose results are not used.

    before:  y = aten.relu(x);  z = aten.neg(x);  return (y,)
    after:   y = aten.relu(x);  return (y,)

Random operators stay (eager would advance the generator), as do assertions, nodes that bind
data-dependent sizes, and operators of the program that may raise because of their data
(`keep_errors`).
"""

from __future__ import annotations

import operator
from dataclasses import replace

from torch.fx import GraphModule, Node

from weft._torch import OpOverload, runs_as_written
from weft.shapes.fakes.data_errors import may_raise, reads_values
from weft.shapes.graph_facts import aten_facts, note


def eliminate_dead_code(gm: GraphModule) -> bool:
    """Erase unused nodes, last first."""
    changed = False
    for node in reversed(gm.graph.nodes):
        if not node.users and is_removable(node):
            gm.graph.erase_node(node)
            changed = True
    return changed


def keep_errors(gm: GraphModule) -> bool:
    """Mark the forward's operators whose values nothing reads, but which may raise: `must_run`."""
    read: set[Node] = set()
    marked = False
    for node in reversed(gm.graph.nodes):
        if node in read or node.op == "output" or not is_removable(node):
            if reads_values(node):
                read.update(node.all_input_nodes)
        elif aten_facts(node).phase == "forward" and may_raise(node):
            note(node, replace(aten_facts(node), must_run=True))
            read.update(node.all_input_nodes)
            marked = True
    return marked


def is_removable(node: Node) -> bool:
    """Whether a node has no effect besides its result."""
    facts = aten_facts(node)
    if node.op != "call_function" or facts.binds or facts.must_run:
        return False
    target = node.target
    if target is operator.getitem:
        return True
    if not isinstance(target, OpOverload):
        return False
    if not target._schema.returns:
        return False
    return not runs_as_written(target)
