"""Decides, for each inlined call, whether it is interpreted or repeats an earlier one.

Place in the pipeline: between an inlined function and the interpreter's loop::

    tx.repeats.run(frame, function, args, kwargs)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, final

from weft.capture.core.base import MISSING, Args, Kwargs, SymbolicValue
from weft.capture.core.frame import Frame
from weft.capture.core.interpreter_state import CallState
from weft.capture.core.source import Source
from weft.capture.repeats.moments import moment
from weft.capture.repeats.recordings import (
    Recording,
    can_be_result,
    match,
    tensor_form,
    tensors_in,
)
from weft.capture.repeats.replay import Replay
from weft.config import config

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter

_FEWEST_STEPS: Final = 25
"""Shorter calls are interpreted as fast as they are compared."""
_MOST_RECORDINGS: Final = 2
"""So many calls of a function are remembered, the last ones."""
_PATIENCE: Final = 6
"""A function whose calls so often repeated none is compared no more."""


@final
class RepeatedCalls(CallState):
    """The calls of one interpretation that later ones may repeat, and the operators in them."""

    def __init__(self, builder: Any) -> None:
        super().__init__()
        self._builder = builder
        """The graph itself: calls in subgraphs are interpreted."""
        self._recordings: dict[SymbolicValue, list[Recording]] = {}
        self._misses: dict[SymbolicValue, int] = {}

    def run(self, tx: Interpreter, frame: Frame, function: SymbolicValue, args: Args,
            kwargs: Kwargs, module_path: Callable[[Source], str]) -> SymbolicValue:
        """The result of a call whose frame has its arguments."""
        is_made_inside = function.real() is MISSING  # it may have variables that change
        if is_made_inside or self._misses.get(function, 0) > _PATIENCE or not self._may(tx):
            return tx.run(frame)
        begin = moment(tx)
        if begin.held is None:
            return tx.run(frame)
        for recording in reversed(self._recordings.get(function, ())):
            steps = recording.end.step - recording.begin.step
            if begin.finds_what_was_found_at(recording.begin) and tx.stops.allow(tx, steps):
                repeated = match(tx, recording, args, kwargs)
                if repeated is not None:
                    self._misses[function] = 0
                    return Replay(tx, repeated, module_path).run()
        tensors = {id(value): (tensor_form(value.example),
                               value.proxy(tx) if value.source is None else None)
                   for value in tensors_in([*args, *kwargs.values()])}
        result = tx.run(frame)
        end = moment(tx)
        if end.step - begin.step < _FEWEST_STEPS or end.calls == begin.calls:
            self._misses[function] = _PATIENCE + 1
            return result
        self._misses[function] = self._misses.get(function, -1) + 1
        if end.only_computed_since(begin) and can_be_result(result) and self._may(tx):
            recordings = self._recordings.setdefault(function, [])
            recordings.append(Recording(
                list(args), dict(kwargs), begin, end, result, tensors, tx.stack(),
                tx.module_stack(), (tx.direct_call, tx.frames_left_out)))
            del recordings[:-_MOST_RECORDINGS]
        return result

    def _may(self, tx: Interpreter) -> bool:
        """Whether calls are remembered, and repeated, at this place of the program."""
        return (
            config.repeat_calls and tx.policy.repeats_calls and tx.builder is self._builder
            and tx.guards.noted is None and not tx.shapes.sources
            and not tx.shapes.unbacked_symbols.exist and not tx.modes.functions
            and not tx.modes.overriding
            and (tx.frame is None or tx.frame.handled_exception() is None))

    def forget(self) -> None:
        """Let the program's objects go."""
        self.nodes, self.n_effects = [], 0
        self._recordings.clear()
        self._misses.clear()
