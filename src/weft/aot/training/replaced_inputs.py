"""Inputs whose memory the program replaces between forward and backward (`p.data = other`).

Place in the pipeline: `compile.py` asks how a backward reads the inputs that are saved, and
`autograd_function.py` what they were. Eager's autograd saves tensors, not memory: what it saved of
a parameter is what the parameter is when the backward runs, but views of it that it saved are still
views of the old memory::

    y = x @ w.t() * w     # saved: the view, for the product with x; and w
    w.data = other
    y.sum().backward()    # reads the old w.t(), and the new w
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import final

import torch
from torch.fx import Graph, Node

from weft._torch import FakeTensor
from weft.aot.graph import is_view, memory_owner
from weft.aot.training.saved_inputs import is_in_checkpoint
from weft.runtime.held_tensors import has_layout
from weft.shapes.graph_facts import aten_facts

_ALIGNED = 64
"""What kernels may expect of an address."""


@final
class Reads(Enum):
    """How a backward reads an input."""

    AS_IT_WAS = "what it was in the forward"
    AS_IT_IS = "what it is now"
    BOTH = "both"


def reads_in_eager(graph: Graph, inputs: Iterable[Node]) -> dict[Node, Reads]:
    """How eager's backward reads the inputs of a joint graph, before passes change it."""
    itself: set[Node] = set()
    views: set[Node] = set()
    for node in graph.nodes:
        if node.op == "call_function" and aten_facts(node).phase == "backward":
            for read in map(_in_forward, node.all_input_nodes):
                (itself if read.op == "placeholder" else views).add(memory_owner(read))
    return {n: _reads(n in itself or is_in_checkpoint(n), n in views) for n in inputs}


def _in_forward(node: Node) -> Node:
    """What a backward's own views are views of; for what a checkpoint computes again, the input."""
    while is_view(node) and _is_of_backward(node):
        assert isinstance(node.args[0], Node)
        node = node.args[0]
    return node


def _is_of_backward(node: Node) -> bool:
    facts = aten_facts(node)
    return facts.phase == "backward" or facts.runs_again


def _reads(itself: bool, views: bool) -> Reads:
    if itself:
        return Reads.BOTH if views else Reads.AS_IT_IS
    return Reads.AS_IT_WAS


def reads_of_saved(backward: Graph, saved: Sequence[Node], in_eager: Mapping[Node, Reads]
                   ) -> tuple[Reads, ...]:
    """How a compiled backward has to read its first placeholders, which are the inputs `saved`."""
    places = [n for n in backward.nodes if n.op == "placeholder"]
    return tuple(
        Reads.BOTH if in_eager[node] is Reads.AS_IT_IS and _is_computed_with(place)
        else in_eager[node] for node, place in zip(saved, places, strict=False))


def _is_computed_with(place: Node) -> bool:
    """Whether something of the forward is computed again from the input."""
    return any(aten_facts(user).phase == "forward" and not is_view(user)
               and not aten_facts(user).runs_again for user in place.users)


def has_memory(value: object) -> bool:
    """Whether a tensor like the fake can be held."""
    return isinstance(value, FakeTensor) and value.layout is torch.strided


def fits_kernels(now: torch.Tensor, old: torch.Tensor) -> bool:
    """Whether compiled code that was called with `old` may read `now`."""
    return has_layout(now, old) and now.data_ptr() % _ALIGNED == 0


class _AsItWas(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, tensor: torch.Tensor, old: torch.Tensor) -> torch.Tensor:
        return old.detach()

    @staticmethod
    def backward(ctx: object, *tangents: torch.Tensor) -> tuple[torch.Tensor, None]:
        return tangents[0], None


as_it_was: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = _AsItWas.apply
"""A tensor with the memory of the second one, whose gradient is that of the first."""
