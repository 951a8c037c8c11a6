"""Conditions on data that a captured graph checks when it runs.

Place in the pipeline: capture adds calls of `hold` to graphs, for the program's own
``torch._check`` and for what operators require of data-dependent sizes; backends run them like any
other function. If one fails, the frame runs eagerly, and the program raises its own error. Compiled
graphs also check their own assumptions (`AssumptionError`)::

    hold(n <= x.shape[0], "too many")        # raises CheckFailed("too many") if that is false
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import torch
from torch.fx import has_side_effect

from weft.errors import WeftError
from weft.shapes.symnode import SymNode, UndecidedValue


class AssumptionError(WeftError, RuntimeError):
    """Data violates an assumption of the compiled graph: the captured graph must run instead. If it
    is an assumption of capture, the program itself must."""


class CheckFailed(WeftError, RuntimeError):
    """Data violates what the program or an operator requires: the program itself must run."""


@has_side_effect
def hold(condition: bool | torch.SymBool, message: str) -> None:
    """Raise `CheckFailed` unless the condition holds; a symbolic condition is learned."""
    _hold(condition, message, CheckFailed)


@has_side_effect
def hold_expected(condition: bool | torch.SymBool, message: str) -> None:
    """As `hold`, for an assumption of capture that the program itself does not make."""
    _hold(condition, message, AssumptionError)


ERRORS: Final[Mapping[Callable[..., None], type[Exception]]] = {
    hold: CheckFailed, hold_expected: AssumptionError,
}
"""What they raise."""


def is_check(function: object) -> bool:
    """Whether the function of a node checks a condition on data."""
    return function is hold or function is hold_expected


def _hold(condition: bool | torch.SymBool, message: str, error: type[Exception]) -> None:
    if isinstance(condition, torch.SymBool):
        node = condition.node
        if isinstance(node, SymNode) and not node.shape_env.data.assuming:
            raise UndecidedValue(node, None)  # whoever traces this does not write checks
        condition = node.expect_true()
    if not condition:
        raise error(message)


def assume(condition: bool, text: str) -> None:
    """Raise `AssumptionError` unless the condition holds."""
    if not condition:
        raise AssumptionError(f"assumed of data: {text}")


def check_places(places: torch.Tensor, size: int, wraps: bool) -> None:
    """Raise `CheckFailed` unless all places are below the size, and at least 0 (or -size)."""
    if places.numel() == 0:
        return
    least, greatest = places.aminmax()
    if int(least) < (-size if wraps else 0) or int(greatest) >= size:
        raise CheckFailed("an index is out of range")
