"""Tests for NaN and infinity: what a branch on them decides if all numbers are finite.

Place in the pipeline: asked for branches on data that nothing else decides
(`handlers/data_numbers.py`). Programs test losses, gradients and activations, and nearly always go
the same way; the graph checks that, and if it fails, the frame runs eagerly::

    if torch.isinf(hidden).any(): ...            # False
    if not torch.isfinite(loss): skipped += 1    # isfinite: True
"""

from __future__ import annotations

from typing import Final

from torch import fx

from weft.capture.graph import target_name

_OF_FINITE: Final = {
    "isnan": False, "isinf": False, "isposinf": False, "isneginf": False, "isfinite": True,
}
_KEEP: Final = frozenset({
    "any", "all", "bool", "item", "to", "stack", "cat", "detach", "flatten", "view", "reshape",
})
_COUNT: Final = frozenset({"sum", "count_nonzero"})
_NEGATE: Final = frozenset({"invert", "logical_not", "bitwise_not"})
_JOIN: Final = {"or": any, "logical_or": any, "bitwise_or": any,
                "and": all, "logical_and": all, "bitwise_and": all}


def if_finite(node: fx.Node) -> bool | None:
    """The truth of a node's result if all numbers that are tested are finite; None for what is no
    such test."""
    answers: dict[fx.Node, bool | None] = {}
    for one in node.graph.nodes:
        answers[one] = _answer(one, [answers[given] for given in one.all_input_nodes])
        if one is node:
            break
    return answers.get(node)


def _answer(node: fx.Node, given: list[bool | None]) -> bool | None:
    name = target_name(node).strip("_")
    if name in _OF_FINITE:
        return _OF_FINITE[name]
    if name == "tensor" and isinstance(node.args[0], bool):
        return node.args[0]
    if name in ("ne", "eq") and len(node.args) == 2 and node.args[0] is node.args[1]:
        return name == "eq"  # x != x, if it is NaN
    if not given or None in given:
        return None
    if name in _JOIN:
        return _JOIN[name](given)
    if len(set(given)) > 1:
        return None
    if name in _NEGATE:
        return not given[0]
    if name in _KEEP or (name in _COUNT and given[0] is False):
        return given[0]
    counts = name in ("gt", "ne", "eq") and node.args[1:] == (0,) and given[0] is False
    return name == "eq" if counts else None
