"""What a user's code in the backward does if only some of the results get a tangent.

Place in the pipeline: `joint.py` marks the gradients that a user's `autograd.Function` gets and
gives, and the tracer those that a hook gives; `absent_tangents.py` decides for the tangents that a
backward has, and `backwards.py` removes the marks::

    class Split(torch.autograd.Function):           # both results are returned: a, b
        def backward(ctx, g, h):                    # of g and h, one may be zeros (or None)
            return g + h + 1                        # runs if any of them arrives

    g, h = reached(tangent_a, [tangent_a, tangent_b], True), reached(tangent_b, ..., True)
    gradient = reached(add(add(g, h), 1), [g, h], True)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import torch
from torch.fx import Graph, Node

from weft.shapes.fakes.wrappers import leaves, rebuilt
from weft.shapes.graph_facts import aten_facts, note

_LIBRARY: Final = torch.library.Library("weft", "FRAGMENT")
_LIBRARY.define("reached(Tensor value, Tensor[] gradients, bool zeros) -> Tensor")
_LIBRARY.impl(
    "reached", lambda value, *_: value.new_empty_strided(value.size(), value.stride()), "Meta")

reached: Final = torch.ops.weft.reached.default
"""`value`, a gradient, if any of `gradients` arrives; zeros (or `None`) if it is itself absent."""

Hook = Callable[[torch.Tensor], torch.Tensor | None]


def mark_functions(nodes: Iterable[object]) -> None:
    """Mark what users' functions among autograd nodes get and give."""
    for node in nodes:
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            if len(node._input_metadata) > 1:  # type: ignore[attr-defined]
                zeros = not getattr(node, "gets_none", False)
                node.register_prehook(partial(_marked, zeros))
            node.register_hook(_marked_given)


def _marked(zeros: bool, gradients: Sequence[object]) -> Sequence[object]:
    here = [leaf for g in gradients for leaf in leaves(g)]
    return tuple([rebuilt(g, lambda leaf: reached(leaf, here, zeros)) for g in gradients])


def _marked_given(
    results: Sequence[object], gradients: Sequence[object]
) -> Sequence[object] | None:
    here = [leaf for g in gradients for leaf in leaves(g)]
    if not here:
        return None
    return tuple([rebuilt(g, lambda leaf: reached(leaf, here, True)) for g in results])


def marked_hook(hook: Hook, is_backward: Callable[[], bool]) -> Hook:
    """A hook of a tensor; what it gives is marked in the backward of a joint graph."""

    def call(gradient: torch.Tensor) -> torch.Tensor | None:
        new = hook(gradient)
        return reached(new, [gradient], True) if is_backward() and new is not None else new

    return call


def remove_marks(graph: Graph) -> bool:
    """Remove the marks of a backward graph; whether a function gets `None` in it, which was traced
    with a gradient."""
    lost = False
    for node in graph.find_nodes(op="call_function", target=reached):
        lost = lost or aten_facts(node).gets_none
        node.replace_all_uses_with(node.args[0])
        graph.erase_node(node)
    return lost


def may_get_none(graph: Graph) -> bool:
    """Whether a function in a joint graph may get `None`: then the captured graph runs again."""
    return any(not n.args[2] for n in graph.find_nodes(op="call_function", target=reached))


def narrow(node: Node, absent: Iterable[Node], zeros: Callable[[Node], Node]) -> bool:
    """Adapt a mark to absent gradients; whether it is absent itself.

    `zeros`: makes zeros like a node.
    """
    value, gradients, gets_zeros = node.args
    assert isinstance(gradients, (list, tuple))
    absent = set(absent)
    here = [g for g in gradients if g not in absent]
    if not here:
        return True
    if value in absent:
        value = zeros(node)
        if not gets_zeros:
            note(node, replace(aten_facts(node), gets_none=True))
    node.args = (value, here, gets_zeros)
    return False
