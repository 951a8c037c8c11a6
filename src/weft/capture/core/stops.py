"""When an interpretation stops before the program ends.

Place in the pipeline: part of the interpreter (`tx.stops`). The interpreter counts its steps, and
asks here at the first step where something may be due: the step at which the compiler wants the
graph to end, or a limit on steps. While objects are watched (`core/lifetimes.py`), that is every
step::

    if tx.step >= tx.stops.at:
        tx.stops.check(tx, frame)      # raises BreakHere, Restart or SkipFrame, or returns
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from weft.capture.core.breaks import Restart, SkipFrame, graph_break
from weft.capture.core.frame import Frame
from weft.config import config

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter

_IDLE_STEPS: Final = 300_000
"""A frame is left to Python after this many instructions without a tensor operation."""

_STEPS_PER_CALL: Final = 2_000
"""How many more instructions each tensor operation allows."""


@final
class BreakHere(Exception):
    """The interpretation reached the step at which it should end the graph."""

    def __init__(self, frame: Frame) -> None:
        super().__init__()
        self.frame = frame


@final
class Stops:
    """The steps at which one interpretation must stop, or must ask whether to stop."""

    __slots__ = ("_break_at", "_limit", "_watching", "at")

    def __init__(self, break_at: int) -> None:
        self._break_at = break_at
        self._limit = break_at if break_at >= 0 else _IDLE_STEPS
        """Where the limits on steps are computed next."""
        self._watching = False
        self.at = self._limit
        """The first step at which `check` has something to do."""

    def watch(self) -> None:
        """From now on, check at every step that the watched objects are alive."""
        self._watching = True
        self.at = 0

    def allow(self, tx: Interpreter, steps: int) -> bool:
        """Whether the next `steps` steps may be made without a look at each."""
        return not (self._watching or tx.step < self._break_at <= tx.step + steps)

    def check(self, tx: Interpreter, frame: Frame) -> None:
        """End the graph at the requested step; else look after watched objects and the limits."""
        if tx.step == self._break_at:
            raise BreakHere(frame)
        if self._watching:
            self._check_watched(tx, frame)
        self.check_limits(tx)

    def _check_watched(self, tx: Interpreter, frame: Frame) -> None:
        if not tx.lifetimes.all_held(tx):
            raise Restart(tx.lifetimes.step, graph_break(
                "watched-object", "an object that is watched is let go"))
        while frame.caller is not None:
            frame = frame.caller
        tx.lifetimes.step = frame.step

    def check_limits(self, tx: Interpreter) -> None:
        """Raise SkipFrame if the frame took too many steps for its number of tensor operations."""
        if tx.step < self._limit:
            return
        allowed = min(_IDLE_STEPS + _STEPS_PER_CALL * tx.builder.n_calls, config.step_limit)
        if tx.step >= allowed:
            raise SkipFrame("too many instructions", always=True)
        self._limit = allowed
        self.at = 0 if self._watching else allowed
