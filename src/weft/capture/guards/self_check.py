"""The guards of a new variant hold for the very call that it was made from.

Place in the pipeline: after the capture, before the entry is used; two walks of its guards for each
compilation. A guard that does not hold makes a variant that never fits: the function would be
compiled again and again. The first walk takes the checks' slow ways, from which they learn; the
second one the quick ways of later calls::

    require_fit(entry, state)        # raises UnfitGuardError: 'x is a Tensor of …, requires_grad'
"""

from __future__ import annotations

from typing import Any, final

from weft.capture.core.source import FrameState
from weft.capture.guards.recompiles import changes_since
from weft.diagnostics import events
from weft.diagnostics.changes import Change
from weft.errors import InternalError


@final
class UnfitGuardError(InternalError):
    """A new variant does not fit the call that it was made from."""

    def __init__(self, change: Change) -> None:
        super().__init__(f"a new variant does not fit its own call: {change.guard}: {change}")


def fits(entry: Any, state: FrameState) -> bool:
    """Whether the guards of the new entry hold for the frame it was made from."""
    entry.guards.check(*state[1:])
    return not changes_since([entry], state)


def require_fit(entry: object, state: FrameState) -> None:
    """Raise UnfitGuardError if a guard of the new entry fails for the frame it was made from.

    The guards are over the state at the frame's entry: the replacement must not have run yet.
    """
    for change in () if fits(entry, state) else changes_since([entry], state):
        events.count("unfit_guards")
        raise UnfitGuardError(change)
