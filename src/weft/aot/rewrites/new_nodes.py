"""Says of nodes that a user's pass has added or changed what weft's passes know of theirs.

Place in the pipeline: around each pass of users on an ATen graph. A pass written for torch.fx adds
nodes without metadata, and changes nodes without a thought for theirs::

    node = graph.call_function(aten.relu.default, (x,))      # meta: val, stack, the phase
    other.target = aten.sum.default                          # other sizes, here and behind
"""

from __future__ import annotations

import operator
from typing import Any, Final, final

import torch
from torch.fx import Node

from weft._torch import OpOverload, tree_flatten
from weft.aot import graph as aten_graph
from weft.aot.evaluate import Evaluator
from weft.aot.graph import AtenGraph
from weft.aot.views import Unsupported
from weft.errors import PassError, VerificationError
from weft.shapes.graph_facts import BACKWARD, FORWARD, aten_facts, note
from weft.shapes.graph_nodes import results_of

_MEND: Final = "mend the pass, or leave it out"


@final
class PassOfUser:
    """The calls of a graph before a user's pass, and what must hold after it."""

    def __init__(self, gm: AtenGraph) -> None:
        self.calls = {node: (node.target, node.args, node.kwargs) for node in gm.graph.nodes}
        self.outputs = [_form(value) for value in _outputs(gm)]

    def complete(self, gm: AtenGraph, name: str) -> None:
        """Compute the metadata of what is new; raises PassError if the graph breaks a rule."""
        try:
            self._compute(gm)
            aten_graph.verify(gm)
        except (VerificationError, Unsupported, RuntimeError, TypeError, KeyError) as error:
            raise PassError(f"the pass {name} left a graph that is none of ATen operators: {error}",
                            do=_MEND) from error
        after = [_form(value) for value in _outputs(gm)]
        if after != self.outputs:
            changed = next(
                (f"{a} became {b}" for a, b in zip(self.outputs, after, strict=False) if a != b),
                f"{len(self.outputs)} became {len(after)}")
            raise PassError(f"the pass {name} changed what the graph returns: {changed}", do=_MEND)

    def _compute(self, gm: AtenGraph) -> None:
        stale: set[Node] = set()
        for node in gm.graph.nodes:
            is_new = not self._knows(node)
            if node.op != "call_function" or aten_facts(node).binds or not (
                    is_new or not stale.isdisjoint(node.all_input_nodes)):
                continue
            if is_new and "stack" not in node.meta:
                _place(node)
            value = _value_of(node)
            if "val" not in node.meta or _layout(value) != _layout(node.meta["val"]):
                stale.add(node)
                node.meta["val"] = value

    def _knows(self, node: Node) -> bool:
        """Whether a call is as it was before the pass."""
        target, args, kwargs = self.calls.get(node, (None, None, None))
        return target is node.target and args is node.args and kwargs is node.kwargs


def _value_of(node: Node) -> Any:
    """The metadata of a call's result."""
    if isinstance(node.target, OpOverload):
        return Evaluator.current().run(node.target, node.args, node.kwargs).value
    if node.target is not operator.getitem:
        raise VerificationError(f"{node.target} is no operator overload")
    source, index = node.args
    assert isinstance(source, Node)
    return source.meta["val"][index]


def _place(node: Node) -> None:
    """Give a new node the lines of what it reads, and their side of a joint graph."""
    sources = node.all_input_nodes
    node.meta["stack"] = next((s.meta["stack"] for s in sources if s.meta.get("stack")), ())
    late = any(aten_facts(source).phase == "backward" for source in sources)
    note(node, BACKWARD if late else FORWARD)


def _outputs(gm: AtenGraph) -> list[object]:
    results = results_of(gm.graph)
    return [r.meta["val"] if isinstance(r, Node) else r for r in results]


def _layout(value: object) -> tuple[str, list[str]]:
    """All that is known of a result."""
    tensors = (v for v in tree_flatten(value)[0] if isinstance(v, torch.Tensor))
    return _form(value), [str(v.stride()) for v in tensors]


def _form(value: object) -> str:
    """What must not change of a result: types and sizes (strides may)."""
    return ", ".join(
        f"{str(v.dtype).removeprefix('torch.')}{list(v.size())} on {v.device}"
        if isinstance(v, torch.Tensor) else str(v) for v in tree_flatten(value)[0])
