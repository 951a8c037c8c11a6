"""The call of a replacement's graph, and what surrounds it: draws, checks, locks, an eager run.

Place in the pipeline: used by `emitter.py`, whose own lines follow the call::

    if not (v[3] >= 2): raise RunEagerly(…)
    try:
        out0, = graph([v[0], v[1]])
    except Exception as error:
        raise RunEagerly(error, …)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, final

from torch import fx

from weft._frame import RunEagerly
from weft._torch import StopRecomputation
from weft.capture.core.graph import GraphInput
from weft.capture.core.graph_writes import may_refuse_data
from weft.capture.core.ignored_warnings import ignoring
from weft.capture.library.numbers.symbolic_numbers import condition_of_inputs
from weft.capture.library.optimizers.early_state import undo_of_states
from weft.capture.library.random.generators import draw_lines, drawn_from, state_restorer
from weft.capture.library.standard.locks import GuardsUnderLock, let_go, take, taken_locks
from weft.capture.replacement.reruns import end_frames, random_state_saver
from weft.errors import NumericsError
from weft.graph_call import GraphCall
from weft.interrupts import surface
from weft.shapes.graph_facts import captured_facts

if TYPE_CHECKING:
    from weft.capture.core.protocols import Emitter


@final
class GraphCallWriter:
    """Writes the first lines of a replacement: all that happens before the graph has returned."""

    def __init__(self, emit: Emitter) -> None:
        self.emit, self.tx = emit, emit.tx
        self.goes_on = False
        """Whether continuations follow the graph."""
        self.on_error: Callable[[Exception], None] | None = None
        """Set if the frame runs eagerly when the graph raises; called if the eager run then does
        not raise."""
        self.on_unexpected: Callable[[Exception], None] | None = None
        """Set if the frame runs eagerly when a check fails before the graph runs."""
        self.irreversible_errors: tuple[type[Exception], ...] = ()
        """Errors that the program gets from the graph, since what it wrote cannot be undone."""
        self.region = ""
        """How profiles name the graph's calls."""
        self.guards_under_lock: GuardsUnderLock | None = None
        """If the graph runs under locks of the program: asks the guards once more."""
        self._locks: list[str] = []
        """Expressions of these locks."""

    def lines(
        self, graph: GraphCall | None, inputs: list[GraphInput], early: list[str]
    ) -> list[str]:
        """The lines up to the call; `early` ones stand in front of it."""
        self._locks = taken_locks(self.emit)
        body = [*self._draws(), *self._early_checks(), *early, *self._call(graph, inputs)]
        if self._locks:
            self.guards_under_lock = GuardsUnderLock()
            again = self.emit.constant(self.guards_under_lock)
            locks = ", ".join(self._locks)
            body.insert(0, f"{self.emit.constant(take)}(({locks},), {again}, v)")
        return body

    @property
    def may_run_eagerly(self) -> bool:
        """Whether the frame may run from its start, after an operator or a check failed."""
        return self.on_error is not None and may_refuse_data(self.tx.builder.graph)

    @property
    def may_rerun(self) -> bool:
        """Whether the replacement may give up before it has changed anything."""
        return self.on_error is not None or self.on_unexpected is not None or bool(self._locks)

    def _early_checks(self) -> list[str]:
        """Statements that give up, before anything else happens, if a number is not as it should
        be."""
        checks = self.tx.data.early_checks
        if not checks:
            return []
        undo = [self._release()] if self._locks else []
        undo += self._states_taken_back()
        undo += ["restore_drawn()"] if self.tx.numbers.draws else []
        signal, report = self.emit.constant(RunEagerly), self.emit.constant(self.on_unexpected)
        lines = []
        for check in checks:
            error = f"{self.emit.constant(check.error)}({check.message!r})"
            lines += [f"if not ({condition_of_inputs(self.emit, check.condition)}):",
                      *(f"    {step}" for step in [*undo, f"raise {signal}({error}, {report})"])]
        return lines

    def _call(self, graph: GraphCall | None, inputs: list[GraphInput]) -> list[str]:
        if graph is None:
            return []
        read = _read([item.source.collect() for item in inputs])
        arguments = ", ".join(read)
        results = "".join(f"out{i}, " for i in range(len(self.emit.outputs)))
        before: list[str] = []
        if graph.boxed:
            listed = _as_list(read)
            before = [f"inputs = {listed}"] if self.goes_on else []
            arguments = "inputs" if before else listed
        call = f"{results}= graph({arguments})" if results else f"graph({arguments})"
        lines = self._guarded_call(call)
        ignored = tuple(self.tx.modes.ignored_warnings)
        if ignored:
            region = f"{self.emit.constant(ignoring)}({self.emit.constant(ignored)})"
            lines = [f"with {region}:", *(f"    {line}" for line in lines)]
        return [*before, *lines, *(["del inputs"] if before else [])]

    def _draws(self) -> list[str]:
        """What is drawn before the graph. If the frame may run eagerly, the generators' states are
        saved first."""
        lines = draw_lines(self.emit)
        if not lines or self.on_error is None:
            return lines
        lines = _guarded(self._letting_go(lines), "Exception as error", [
            f"{self.emit.constant(surface)}(error)", *self._states_taken_back(), "restore_drawn()",
            self._rerun()])
        saver = self.emit.constant(state_restorer)
        return [f"restore_drawn = {saver}({', '.join(drawn_from(self.emit))})", *lines]

    def _letting_go(self, lines: list[str]) -> list[str]:
        """The lines; if they raise, the locks are let go."""
        if not self._locks:
            return lines
        return _guarded(lines, "BaseException", [self._release(), "raise"])

    def _release(self) -> str:
        return f"{self.emit.constant(let_go)}(({', '.join(self._locks)},))"

    def _states_taken_back(self) -> list[str]:
        """The statement that removes what capture has made ahead of an optimizer's first step."""
        undo = undo_of_states()
        return [] if undo is None else [f"{self.emit.constant(undo)}()"]

    def _rerun(self) -> str:
        """The statement that lets C run the frame eagerly."""
        return f"raise {self.emit.constant(RunEagerly)}(error, {self.emit.constant(self.on_error)})"

    def _guarded_call(self, call: str) -> list[str]:
        """The call of the graph, in the `try` blocks that handle its errors."""
        lines = self._letting_go([call])
        if any(map(_changes_modes, self.tx.builder.graph.nodes)):
            restore = self.emit.constant(self.tx.state.restore)
            lines = _guarded(lines, "BaseException", [f"{restore}()", "raise"])
        if self.on_error is not None:
            # A checkpoint around it has all that it needs; or a check of numerics failed.
            passed_on = ", ".join(map(self.emit.constant, (
                StopRecomputation, NumericsError, *self.irreversible_errors)))
            lines = _guarded(lines, f"({passed_on})", ["raise"])
            undo = self._states_taken_back()
            undo += ["restore_drawn()"] if self.tx.numbers.draws else []
            kept = random_state_saver(self.tx.builder.graph)
            if kept is not None:
                lines.insert(0, f"random = {self.emit.constant(kept)}()")
                undo.append("random.restore()")
            lines += _handler("Exception as error", [
                f"{self.emit.constant(surface)}(error)",
                f"{self.emit.constant(end_frames)}(error)", *undo, self._rerun()])
        return lines


_SLICED: Final = 8
"""The least number of adjacent slots that are read as one slice (a model's parameters)."""


def _read(slots: list[int]) -> list[str]:
    """Argument expressions that read some slots."""
    texts: list[str] = []
    for _, row in itertools.groupby(enumerate(slots), lambda pair: pair[1] - pair[0]):
        run = [slot for _, slot in row]
        whole = len(run) >= _SLICED
        texts += [f"*v[{run[0]}:{run[-1] + 1}]"] if whole else [f"v[{slot}]" for slot in run]
    return texts


def _as_list(texts: list[str]) -> str:
    """An expression for a new list of these arguments."""
    only = texts[0] if len(texts) == 1 else ""
    return only[1:] if only.startswith("*") else f"[{', '.join(texts)}]"


def _guarded(lines: list[str], kind: str, handler: list[str]) -> list[str]:
    return ["try:", *(f"    {line}" for line in lines), *_handler(kind, handler)]


def _handler(kind: str, lines: list[str]) -> list[str]:
    return [f"except {kind}:", *(f"    {line}" for line in lines)]


def _changes_modes(node: fx.Node) -> bool:
    """Whether the node sets a global mode, which must be undone if a later node raises."""
    return captured_facts(node).has_effect and not node.all_input_nodes
