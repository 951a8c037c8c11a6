"""Reasons to end a graph earlier that show only at its end.

Place in the pipeline: the interpreter and some values note here what may turn out to be a problem;
once the replacement is written, `compiler` asks whether one did. If so, the frame is interpreted
again, and its graph ends before the step that caused it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, final

import torch

from weft.capture.core.breaks import Restart, graph_break

if TYPE_CHECKING:
    from weft.capture.core.protocols import Emitter, Interpreter


@final
class EarlyEnds:
    """What may require that the graph ends earlier."""

    def __init__(self) -> None:
        self.retained: list[tuple[Any, int]] = []
        """Tensors made inside on which `retain_grad` was called, and the steps that did."""
        self.copied_views: list[Any] = []
        """Arrays that share memory with others in NumPy only (`library/numpy/copied_views`)."""
        self.shown_texts: list[Restart] = []
        """The restarts that end the graph before texts of data, which the replacement shows."""
        self._held_cells: list[tuple[Any, Any, int]] = []
        """Variables of functions that the graph holds, what they contained, and the steps that
        passed the functions to the graph."""
        self._generators: list[tuple[Any, int]] = []
        """Generators, and the steps that made them."""
        self._inference_starts: list[Restart] = []
        """For each step that sets inference mode, the restart that ends the graph before it. Until
        then the region is captured without gradients."""
        self._inference_calls: tuple[int, int] | None = None
        """How many operators the graph had when the program entered inference mode, and when it
        left it again."""
        self.all_in_inference = False
        """Whether the graph runs in inference mode as a whole."""

    @property
    def count(self) -> int:
        """How many reasons have been noted."""
        return sum(map(len, (self.retained, self.copied_views, self.shown_texts, self._held_cells,
                             self._generators, self._inference_starts)))

    def note_generator(self, tx: Interpreter, value: object) -> None:
        """Record that the current call made a generator."""
        if tx.frame is not None:
            self._generators.append((value, tx.breaking_step()))

    def note_cell(self, tx: Interpreter, cell: Any) -> None:
        """Record that the graph holds a function with a copy of this variable of the frame."""
        self._held_cells.append((cell, cell.contents, tx.breaking_step()))

    def note_inference(self, tx: Interpreter) -> None:
        """Record that the current instruction sets inference mode."""
        signal = graph_break("state", "tensors that inference mode made")
        signal.stack = tx.stack()
        self._inference_starts.append(Restart(tx.breaking_step(), signal))
        if not tx.state.inference:
            self._inference_calls = (tx.builder.n_calls, -1)

    def note_inference_end(self, tx: Interpreter) -> None:
        """Record that the program left an inference mode."""
        if not tx.state.inference and self._inference_calls is not None:
            self._inference_calls = (self._inference_calls[0], tx.builder.n_calls)

    def restart(self, tx: Interpreter, emit: Emitter) -> Restart | None:
        """The restart that ends the graph earlier, or None if it can stay as it is."""
        if self.shown_texts:
            return min(self.shown_texts, key=lambda restart: restart.step)
        held = self._written_cell(emit)
        if held is not None:
            return Restart(held, graph_break(
                "unknown-operation", "a function in the graph whose variables may change"))
        left = self._left_generator(emit)
        if left is not None:
            return Restart(left, graph_break(
                "watched-object", "a generator that is left in a try block"))
        retained = self._early_retained(tx, emit)
        if retained is not None:
            return Restart(retained, graph_break(
                "state", "retain_grad of a tensor that is used on"))
        copied = next((view for view in self.copied_views if view.shows(tx, emit)), None)
        if copied is not None:
            return Restart(copied.step, graph_break(
                "unknown-operation", "an array that shares memory as no tensor can"))
        return self._early_inference(tx, emit.outputs)

    def _written_cell(self, emit: Emitter) -> int | None:
        """The step that put a function into the graph, if a variable of the function was written
        later, or may be because the program goes on with it; else None."""
        return min((step for cell, contents, step in self._held_cells
                    if cell.contents is not contents or emit.has(cell)), default=None)

    def _left_generator(self, emit: Emitter) -> int | None:
        """The step that made a generator which is dropped while it waits in a `try`, or None.

        Freeing it runs its `finally` blocks, at once: the rest of the program runs as plain Python.
        """
        return next((step for value, step in self._generators
                     if value.acts_when_left and not emit.has(value)), None)

    def _early_retained(self, tx: Interpreter, emit: Emitter) -> int | None:
        """The step of a `retain_grad` that must run before the rest of the graph, or None.

        This is so if the program keeps the tensor and its gradient comes through that rest.
        """
        return next((step for value, step in self.retained
                     if emit.has(value) and "grad" not in value.written
                     and value.proxy(tx).users), None)

    def _early_inference(self, tx: Interpreter, outputs: Iterable[Any]) -> Restart | None:
        """The restart that ends the graph before inference mode is set, or None.

        It is needed if the rest of the program runs in that mode or receives tensors made there,
        unless all operators of the graph are in the region: then it runs in that mode.
        """
        shown = [e for node in outputs
                 if isinstance(e := node.meta["example_value"], torch.Tensor)]
        shows = any(e.is_inference() for e in shown)
        self.all_in_inference = (
            shows and not tx.end.in_inference and self._inference_calls == (0, tx.builder.n_calls))
        leaves = (shows or tx.end.in_inference) and not self.all_in_inference
        return self._inference_starts[0] if self._inference_starts and leaves else None
