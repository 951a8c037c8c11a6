"""Tests for NaN, infinity and failures: what a branch on them decides if all numbers are finite.

Place in the pipeline: asked for branches on data that nothing else decides
(`library/numbers/numbers_from_tensors.py`). Programs test losses, gradients and activations, and
nearly always go the same way; the graph checks that, and if it fails, the frame runs eagerly::

    if torch.isinf(hidden).any(): ...            # False
    if not torch.isfinite(loss): skipped += 1    # isfinite: True
    if (loss == math.inf).any(): ...             # False
    if not torch.any(info): return L             # info of cholesky_ex: any(info) is False
"""

from __future__ import annotations

import math
from typing import Final

from torch import fx

from weft.capture.core.graph import target_name

_OF_FINITE: Final = {
    "isnan": False, "isinf": False, "isposinf": False, "isneginf": False, "isfinite": True,
}
_INFO: Final = {
    "linalg_cholesky_ex": 1, "linalg_inv_ex": 1, "linalg_solve_ex": 1, "linalg_lu_factor_ex": 2,
    "linalg_ldl_factor_ex": 2,
}
"""Operators that tell whether they failed, and the place of that in their results."""
_KEEP: Final = frozenset({
    "any", "all", "bool", "item", "to", "stack", "cat", "detach", "flatten", "view", "reshape",
})
_COUNT: Final = frozenset({"sum", "count_nonzero"})
_NEGATE: Final = frozenset({"invert", "logical_not", "bitwise_not"})
_JOIN: Final = {"or": any, "logical_or": any, "bitwise_or": any,
                "and": all, "logical_and": all, "bitwise_and": all}
_COMPARE: Final = frozenset({"gt", "ne", "eq"})
_PASS_ON: Final = _KEEP | _COUNT | _NEGATE | _JOIN.keys() | _COMPARE


def if_finite(node: fx.Node) -> bool | None:
    """The truth of a node's result if all numbers that are tested are finite; None for what is no
    such test."""
    answers: dict[fx.Node, bool] = {}
    waiting = [node]
    while waiting:
        current = waiting[-1]
        answer = _of_test(current)
        if answer is None and target_name(current).strip("_") in _PASS_ON:
            unknown = [operand for operand in current.all_input_nodes if operand not in answers]
            if unknown:
                waiting += unknown
                continue
            answer = _of_results(current, [answers[operand] for operand in current.all_input_nodes])
        if answer is None:
            return None
        answers[waiting.pop()] = answer
    return answers[node]


def _of_test(node: fx.Node) -> bool | None:
    """The answer of a test itself, or of a constant."""
    name = target_name(node).strip("_")
    if name == "tensor" and isinstance(node.args[0], bool):
        return node.args[0]
    if name in ("ne", "eq") and len(node.args) == 2 and node.args[0] is node.args[1]:
        return name == "eq"  # x != x, if it is NaN
    if name in ("ne", "eq") and any(
            isinstance(number, float) and not math.isfinite(number) for number in node.args):
        return name == "ne"  # x == inf
    operand = node.args[0] if node.args else None
    if name == "getitem" and isinstance(operand, fx.Node) and (
            node.args[1] == _INFO.get(target_name(operand))):
        return False  # `info`, which is 0 where a factorization succeeded
    return _OF_FINITE.get(name)


def _of_results(node: fx.Node, operands: list[bool]) -> bool | None:
    """The answer of an operation on results of tests."""
    name = target_name(node).strip("_")
    if name in _JOIN and operands:
        return _JOIN[name](operands)
    if len(set(operands)) != 1:
        return None
    if name in _NEGATE:
        return not operands[0]
    if name in _KEEP or (name in _COUNT and operands[0] is False):
        return operands[0]
    counts = name in _COMPARE and node.args[1:] == (0,) and operands[0] is False
    return name == "eq" if counts else None
