"""Which inputs a backward reads as they are when it runs, and which as they were in the forward.

Place in the pipeline: before `partition.py` cuts a joint graph. The program may change its tensors
between forward and backward, by an optimizer's step or below autograd (`p.data.add_`). What eager
computed in the forward and saved is still as it was; what it saved itself is as it is now::

    y = w.sigmoid() * w        # eager saves w and the sigmoid
    w.data.zero_()             # the backward reads zeros, and the old sigmoid

So an operator of the backward reads an input itself only if eager saves it. What is computed again
from an input reads a copy, whose memory counts as that of any saved value. The exceptions are
activations of more than `LARGE` bytes, which would be copied in vain nearly always, and what a
checkpoint computes again, which reads inputs as they are in eager too.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Final

import torch
from torch.fx import Graph, Node

from weft.aot.graph import is_view
from weft.shapes.graph_facts import aten_facts
from weft.shapes.graph_nodes import add_node

aten = torch.ops.aten

LARGE: Final = 1 << 20
"""Bytes of an activation from which on it is read itself."""


def is_in_checkpoint(node: Node) -> bool:
    """Whether a checkpoint computes something of the input again."""
    return any(aten_facts(user).runs_again for user in node.users)


def insert_references(graph: Graph, inputs: Iterable[Node], late: Container[Node]
                      ) -> dict[Node, Node]:
    """Let the nodes in `late` read the inputs, and views of them, through aliases: what is saved is
    then the input itself. Returns the input of each alias."""
    first = next(n for n in graph.nodes if n.op != "placeholder")
    inputs_of: dict[Node, Node] = {}
    for node in inputs:
        chain = [n for n in _views(node, late) if _read_late(n, late)]
        if chain:
            with graph.inserting_before(first):
                alias = add_node(graph, aten.alias.default, (node,), {}, node.meta)
            inputs_of[alias] = node
            _read_instead(graph, chain, {node: alias}, late)
    return inputs_of


def _views(node: Node, late: Container[Node]) -> list[Node]:
    """The input and what the forward has of it: views, and copies in another layout, which passes
    made."""
    views = [node]
    for current in views:
        views += [u for u in current.users
                  if (is_view(u) or _is_layout(u)) and u not in late and u not in views]
    return views


def _is_layout(node: Node) -> bool:
    return (node.target is aten.clone.default and "memory_format" in node.kwargs
            and not aten_facts(node).copies_input)


def _read_late(node: Node, late: Container[Node]) -> set[Node]:
    return {user for user in node.users if user in late}


def _read_instead(graph: Graph, chain: list[Node], twins: dict[Node, Node], late: Container[Node]
                  ) -> None:
    """Let the late users of the views in `chain` read views of the alias."""
    for node in chain:
        twin = _twin(graph, node, twins)
        for user in _read_late(node, late):
            user.replace_input_with(node, twin)


def _twin(graph: Graph, node: Node, twins: dict[Node, Node]) -> Node:
    """The same view of the alias."""
    twin = twins.get(node)
    if twin is None:
        source = node.args[0]
        assert isinstance(source, Node)
        args = (_twin(graph, source, twins), *node.args[1:])
        with graph.inserting_after(node):
            twin = add_node(graph, node.target, args, dict(node.kwargs), node.meta)
        twins[node] = twin
    return twin
