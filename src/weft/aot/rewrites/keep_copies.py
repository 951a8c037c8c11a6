"""Marks the program's copies of inputs that it may write to between forward and backward.

    before:  c = aten.clone(x);  …                    # MoCo's queue: x changes before the backward
    after:   the same, `AtenFacts.copies_input` of c

The backward reads the copies instead of the inputs: passes keep marked nodes, and the cut does not
compute them again from the input.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.fx import GraphModule

from weft.aot.graph import is_view
from weft.shapes.graph_facts import aten_facts, note

aten = torch.ops.aten


def keep_copies(gm: GraphModule) -> bool:
    """Mark the clones of inputs in a joint graph."""
    marked = False
    for node in gm.graph.nodes:
        if node.target is aten.clone.default and not node.kwargs.get("memory_format"):
            source = node.args[0]
            while is_view(source):
                source = source.args[0]
            if source.op == "placeholder" and aten_facts(node).phase == "forward":
                note(node, replace(aten_facts(node), copies_input=True))
                marked = True
    return marked
