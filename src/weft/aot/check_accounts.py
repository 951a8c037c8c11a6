"""Accounts for the checks of a captured graph: each of them is made when the compiled graph runs.

Place in the pipeline: in strict mode, beside the tracing of a captured graph. Capture writes what
it assumes of data as calls of `hold` and `hold_expected`. Tracing learns their conditions; those
that do not follow from guards become conditions of the ATen graph, which the call sequence checks.
The conditions are written down here without anything that is known, and compared in the end with
what the compiled graph checks::

    accounts.note(node, values)              # u0 >= 1, whatever capture knows of u0
    accounts.verify(symbols, asserts)        # InternalError: unless guards and asserts imply it
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, Final, final

import torch
from torch.fx import GraphModule, Node

from weft.errors import InternalError
from weft.runtime.data_checks import is_check
from weft.shapes.context import ShapeContext
from weft.shapes.guard import AnyCondition, ShapeGuard
from weft.shapes.symnode import UndecidedValue

_CONDITIONS: Final = frozenset({
    operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge, operator.and_,
    operator.or_, torch.sym_not,
})
"""What conditions are made of (`capture/library/numbers/data_numbers.py`)."""


@final
class CheckAccounts:
    """The conditions that one captured graph checks."""

    def __init__(self) -> None:
        self.conditions: list[tuple[AnyCondition, str]] = []

    def note(self, node: Node, values: Mapping[Node, object]) -> None:
        """Write down the condition of a check; `values`: what was computed before."""
        test, message = node.args
        self.conditions.append((_condition(test, values), str(message)))

    def verify(self, symbols: ShapeContext, asserts: Sequence[ShapeGuard]) -> None:
        """Raise InternalError if a condition follows neither from guards nor from `asserts`."""
        known = symbols.without_assumptions()
        for guard in asserts:
            known.learn(guard.condition, True)
        for condition, message in self.conditions:
            if known.decide(condition) is not True:
                raise InternalError(f"the compiled graph does not check: {message}")


def _condition(test: object, values: Mapping[Node, object]) -> AnyCondition:
    if not isinstance(test, Node):
        return bool(test)
    try:
        value: Any = _unknown(test, values, ShapeContext())
    except UndecidedValue:  # a comparison of bools
        value = values[test]
    return value.node.value if isinstance(value, torch.SymBool) else bool(value)


def _unknown(value: object, values: Mapping[Node, object], context: ShapeContext) -> object:
    """A value in a context that knows nothing and so decides nothing."""
    if not isinstance(value, Node):
        return value
    if value.target in _CONDITIONS:
        return value.target(*(_unknown(arg, values, context) for arg in value.args))
    number = values[value]
    if isinstance(number, torch.SymInt):
        return torch.SymInt(context.int_node(number.node.value))
    if isinstance(number, torch.SymFloat):
        return torch.SymFloat(context.float_node(number.node.value))
    if isinstance(number, torch.SymBool):
        return torch.SymBool(context.bool_node(number.node.value))
    return number


def verify_passes(before: int, gm: GraphModule) -> None:
    """Raise InternalError if passes removed checks from the captured graph."""
    lost = before - n_checks(gm)
    if lost > 0:
        raise InternalError(f"passes removed {lost} checks of data from the captured graph")


def n_checks(gm: GraphModule) -> int:
    """How many checks of data a captured graph makes."""
    return sum(is_check(node.target) for node in gm.graph.nodes)
