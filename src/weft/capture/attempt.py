"""Interpreting one frame until its graph ends where it can end.

Place in the pipeline: called by `compiler`, once for a frame or twice. An interpretation that
finds a graph break at step n has already changed its symbolic values; so the frame is interpreted
again from its start, and the second interpretation ends the graph at step n
(docs/architecture/breaks.md)::

    def f(x):
        y = x + 1
        print("between")     # the first interpretation raises Restart(n) here
        return y * 2         # the second one stops before step n; it emits the print and a
                             # continuation, which is captured by itself when it is called

    tx, emit, reason = Attempt(compiler, state, data_dependent=True).interpret()
"""

from __future__ import annotations

import types
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

from weft.capture.bytecode.continuation import CannotResumeError
from weft.capture.core.breaks import (
    GraphBreak,
    ObservedException,
    Restart,
    Signal,
    SkipFrame,
    StartOver,
    graph_break,
)
from weft.capture.core.frame import Frame
from weft.capture.core.graph_writes import can_undo, has_checks
from weft.capture.core.skips import may_hold_tensors
from weft.capture.core.source import FrameState
from weft.capture.core.stops import BreakHere
from weft.capture.interpreter import SymbolicInterpreter
from weft.capture.library.numbers.data_numbers import note_checks
from weft.capture.library.numbers.symbolic_numbers import number_node
from weft.capture.library.optimizers.early_state import take_back_unreached
from weft.capture.library.tensors.device_modes import enter_devices
from weft.capture.library.tensors.known_data import rely_on
from weft.capture.replacement.break_operations import can_translate
from weft.capture.replacement.emitter import ReplacementEmitter, restore_modes
from weft.capture.replacement.resumption import Resumption
from weft.config import config
from weft.diagnostics import events
from weft.shapes.context import ShapeContext
from weft.shapes.fakes.fake import FakeContext
from weft.stances import breaks_are_errors

if TYPE_CHECKING:
    from weft.capture.core.interpreter_state import ContinuationCompiler

_S = TypeVar("_S", bound=Signal)

_MAX_HANDLERS: Final = 12
"""How many exception handlers of a replacement may be nested (Python allows 20 blocks)."""


@final
class Attempt:
    """Interprets one frame, again and again, until its graph ends where it can end."""

    def __init__(self, compiler: ContinuationCompiler, state: FrameState, *, data_dependent: bool
                 ) -> None:
        self.compiler = compiler
        self.state = state
        self.data_dependent = data_dependent
        self._shapes: ShapeContext | None = None
        self._tried: list[SymbolicInterpreter] = []
        self.final: SymbolicInterpreter | None = None
        """The interpretation that became an entry, if there is one."""
        self.raised: ObservedException | None = None
        """The exception with which the program left the frame, if it did."""
        self._raises_at = -1
        self._earlier: Restart | None = None
        """Why the graph of the last interpretation must end earlier, if it must."""
        self.devices: tuple[str, ...] = ()
        """The default devices that were set when the frame was called."""

    def interpret(self) -> tuple[SymbolicInterpreter, ReplacementEmitter, GraphBreak | None]:
        """The interpreter at its end, the emitted replacement, and the graph break if there was
        one."""
        break_at = -1
        reason: GraphBreak | None = None
        while True:
            tx = self._interpreter(break_at)
            frame = tx.root_frame(self.state.locals, self.state.cells)
            emit = ReplacementEmitter(tx)
            try:
                self._finish(tx, emit, frame)
                return tx, emit, reason
            except StartOver:  # with what was learned, to the same end
                continue
            except Restart as restart:  # a graph break: end there, unless it can be avoided
                if self._can_avoid(tx, restart.reason):
                    break_at, reason, self.raised = -1, None, None
                    continue
                reason = _without_traceback(restart.reason)
                self._report(reason)
                if reason.needs_plain_callers:
                    raise SkipFrame(reason.detail, always=True) from None
                if reason.observes and not (tx.builder.n_calls or may_hold_tensors(self.state)):
                    raise SkipFrame(reason.detail, always=True) from None
                break_at = restart.step
            except ObservedException as error:  # the program raises: end before it does
                if self.raised is not None:
                    raise
                self.raised, reason = _without_traceback(error), None
                break_at = self._raises_at = tx.raised_at(error)
            except BreakHere as here:  # the requested end: if it is impossible, end further out
                outer = self._break(tx, emit, here, reason)
                if outer is None:
                    return tx, emit, reason
                break_at = outer
                if self._earlier is not None and self._earlier.reason.rest_is_eager:
                    reason = _without_traceback(self._earlier.reason)

    def _interpreter(self, break_at: int) -> SymbolicInterpreter:
        """A new interpreter, which is to end the graph at the step `break_at` (-1: nowhere)."""
        code = self.state.code
        if self._tried:
            self._tried[-1].classes.hide_models()
        tx = SymbolicInterpreter(
            code, self.state.globals, FakeContext(), self.compiler.policy(code), self.compiler,
            break_at=break_at, data_dependent=self.data_dependent)
        self._shapes = tx.shapes
        self._tried.append(tx)
        enter_devices(tx, self.devices)
        return tx

    def forget(self) -> None:
        """Drop the references to the program's objects, and take back what interpretations did to
        them that did not become the entry."""
        take_back_unreached(self.final, self._tried)
        for tx in self._tried:
            tx.forget()

    @property
    def symbolic(self) -> bool:
        """Whether sizes or numbers were symbolic in the last interpretation."""
        return self._shapes is not None and bool(self._shapes.sources)

    @property
    def met_data(self) -> bool:
        """Whether the last interpretation put something into the graph that depends on data."""
        return self._shapes is not None and bool(self._shapes.unbacked_symbols.exist)

    def _finish(self, tx: SymbolicInterpreter, emit: ReplacementEmitter, frame: Any) -> None:
        """End the replacement of a frame that was captured to its end: return its value."""
        value = tx.run_root(frame)
        try:
            restore_modes(emit, tx)
            text = emit.value(value)
            tx.effects.replay(emit)
            emit.line(f"return {text}")
        except GraphBreak as signal:
            if signal.step < 0:
                raise SkipFrame("the result or an effect cannot be rebuilt") from None
            raise Restart(signal.step, signal) from None
        if _has_unrecoverable_checks(tx):
            raise Restart(tx.data.checked_at[0], graph_break(
                "data-dependent-branch",
                "a branch that may raise, in a graph whose writes autograd sees"))
        earlier = tx.early_ends.restart(tx, emit)
        if earlier is not None:
            raise earlier

    def _can_avoid(self, tx: SymbolicInterpreter, reason: GraphBreak) -> bool:
        """Whether another interpretation can get past the break; prepares `tx.policy` for it.

        It can if the contents of small inputs are guarded, or (with `fullgraph`) if numbers that
        keep changing are fixed.
        """
        forbidden = breaks_are_errors(reason.error_mode, self.compiler.options.fullgraph)
        if forbidden and reason.kind.id == "varying-argument":
            tx.policy.fixes_all = True
            return True
        if not config.data_dependent:
            return False
        return rely_on(tx, reason, always=forbidden)

    def _report(self, reason: GraphBreak) -> None:
        if breaks_are_errors(reason.error_mode, self.compiler.options.fullgraph):
            raise reason.error() from None

    def _break(self, tx: SymbolicInterpreter, emit: ReplacementEmitter, here: BreakHere,
               reason: GraphBreak | None) -> int | None:
        """Emit the break and its continuations, and return None.

        If the graph cannot end at this instruction, return the step where to try next, in a caller.
        """
        frame = here.frame
        if _has_unrecoverable_checks(tx):
            return tx.data.checked_at[0]
        deep = _frame_over_handler_limit(frame)
        if deep is not None:
            return _outward(deep, graph_break("recursion", "too many nested handlers"))
        try:
            if tx.end.state_changed:
                raise graph_break("state", "a break inside of a transform")
            raises = tx.step == self._raises_at or (reason is not None and reason.rest_is_eager)
            whole = frame.caller is None and tx.builder.n_calls
            if not (whole or raises) and not can_translate(frame.current.name):
                raise graph_break("unknown-opcode", f"a break at {frame.current.name}")
            restore_modes(emit, tx)
            Resumption(tx, emit, self.compiler.compiled).write(frame, raises=raises)
            self._earlier = tx.early_ends.restart(tx, emit)
            if self._earlier is not None:
                return self._earlier.step
        except (GraphBreak, CannotResumeError) as failure:
            return _outward(frame, failure)
        if reason is not None:
            events.count("graph_breaks")
            events.record("graph_break", id=reason.kind.id, reason=reason.reason,
                          stack=reason.stack, hint=reason.kind.hint)
        return None


def _has_unrecoverable_checks(tx: SymbolicInterpreter) -> bool:
    """Whether the graph checks assumptions about data but changes what cannot be restored: if a
    check fails, the frame cannot be run eagerly from its start any more."""
    note_checks(tx, partial(number_node, tx))
    return tx.policy.ends_before_refusals and bool(tx.data.checked_at) and has_checks(
        tx.builder.graph) and not can_undo(tx.builder.graph)


def _without_traceback(error: _S) -> _S:
    """The signal without its traceback, whose frames refer to the interpreter and so would keep the
    program's objects alive until the next garbage collection."""
    error.__traceback__ = error.__context__ = error.__cause__ = None
    return error


def _frame_over_handler_limit(frame: Frame) -> Frame | None:
    """The outermost frame that, with its callers, lies inside more than `_MAX_HANDLERS` exception
    handlers, or None: the replacement would need a `try` block for each.

    In a recursion, it is the first frame whose code also runs further out: a break there gives
    continuations that serve all levels.
    """
    chain = [frame]
    while (caller := chain[-1].caller) is not None:
        chain.append(caller)
    n_handlers = 0
    codes: set[types.CodeType] = set()
    recursive: Frame | None = None
    for place in reversed(chain):
        n_handlers += place.program.handler_of(place.current.index) is not None
        if recursive is None and place.code in codes:
            recursive = place
        if n_handlers > _MAX_HANDLERS:
            return recursive or place
        codes.add(place.code)
    return None


def _outward(frame: Any, failure: Exception) -> int:
    """The step of the nearest caller where the graph can end instead.

    Raises SkipFrame if there is none.
    """
    while frame.caller is not None:
        inner_resumable = frame.resumable
        frame = frame.caller
        if can_translate(frame.current.name) or inner_resumable:
            step: int = frame.step
            return step
    raise SkipFrame(f"no way to end the graph: {failure}", always=True)
