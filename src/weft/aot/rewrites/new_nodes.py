"""Says of nodes that a user's pass has added what weft's passes know of theirs.

Place in the pipeline: after each pass of users on an ATen graph. A pass written for torch.fx adds
nodes without metadata::

    node = graph.call_function(aten.relu.default, (x,))      # meta: val, stack, the phase
"""

from __future__ import annotations

from typing import Final

from torch.fx import Node

from weft._torch import OpOverload
from weft.aot.evaluate import Evaluator
from weft.aot.graph import AtenGraph
from weft.shapes.graph_facts import BACKWARD, FORWARD, aten_facts, note

_SETTLED: Final = ("placeholder", "output")


def complete_metadata(gm: AtenGraph) -> None:
    """Compute the metadata of nodes that have none, in place."""
    for node in gm.graph.nodes:
        if "val" not in node.meta and node.op == "call_function":
            _complete(node)


def _complete(node: Node) -> None:
    if isinstance(node.target, OpOverload):
        node.meta["val"] = Evaluator.current().run(node.target, node.args, node.kwargs).value
    sources = node.all_input_nodes
    node.meta.setdefault("stack", next((s.meta["stack"] for s in sources if s.meta["stack"]), ()))
    late = any(aten_facts(source).phase == "backward" for source in sources)
    note(node, BACKWARD if late else FORWARD)
