"""State that capture has made for an optimizer ahead of its first step, and takes back.

Place in the pipeline: noted by `rules.py`, where `_init_group` runs while the step is captured. The
state must not be there if capture ends the graph before the step, or if the graph fails and eager
raises before the step: the replacement asks for it before it runs the frame eagerly::

    note_state(tx, optimizer, parameters)
    ...                                  # the step has not run
    take_back_states()                   # optimizer.state is as it was
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, final
from weakref import ReferenceType, ref

import torch

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter


@final
@dataclass(slots=True)
class _EarlyState:
    """A parameter's state that no step has used so far, as far as known."""

    optimizer: ReferenceType[torch.optim.Optimizer]
    parameter: ReferenceType[torch.Tensor]
    versions: dict[str, int]
    maker: ReferenceType[Interpreter]
    """The interpretation that made it,"""
    user: ReferenceType[Interpreter] | None = field(default=None, init=False)
    """and the last one that came to the step."""

    def is_unused(self) -> bool:
        """Whether it is as capture has made it."""
        optimizer, parameter = self.optimizer(), self.parameter()
        return optimizer is not None and parameter is not None and (
            _versions(optimizer.state.get(parameter, {})) == self.versions)

    def take_back(self) -> None:
        """Remove it, unless a step has used it."""
        optimizer, parameter = self.optimizer(), self.parameter()
        if optimizer is not None and parameter is not None and self.is_unused():
            del optimizer.state[parameter]


_EARLY: Final[list[_EarlyState]] = []


def note_state(
    tx: Interpreter, optimizer: torch.optim.Optimizer, parameters: Iterable[torch.Tensor]
) -> None:
    """Remember that capture has made the state of these parameters."""
    _EARLY.extend(
        _EarlyState(ref(optimizer), ref(p), _versions(state), ref(tx))
        for p in parameters if (state := optimizer.state.get(p)))


def note_step(tx: Interpreter, optimizer: object) -> None:
    """Remember that an interpretation has come to a step of the optimizer."""
    for state in _EARLY:
        if state.optimizer() is optimizer:
            state.user = ref(tx)


def take_back_unreached(final: Interpreter | None, tried: Iterable[Interpreter]) -> None:
    """Remove what the interpretations of a frame have made for steps to which the final one, if
    any, did not come."""
    makers = list(tried)
    unreached = [s for s in _EARLY
                 if s.maker() in makers and (final is None or s.user is None
                                             or s.user() is not final)]
    for state in unreached:
        state.take_back()
        _EARLY.remove(state)


def _versions(state: Mapping[str, object]) -> dict[str, int]:
    """How often each tensor of a state was written."""
    return {name: value._version for name, value in state.items()
            if isinstance(value, torch.Tensor) and not value.is_inference()}


def take_back_states() -> None:
    """Remove all state that capture has made and no step has used."""
    for state in _EARLY:
        state.take_back()
    _EARLY.clear()


def undo_of_states() -> Callable[[], None] | None:
    """`take_back_states`, if there is something that it would remove."""
    _EARLY[:] = [state for state in _EARLY if state.is_unused()]
    return take_back_states if _EARLY else None
