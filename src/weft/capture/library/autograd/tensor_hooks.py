"""Hooks on the gradients of tensors that the program computes: part of the graph.

Place in the pipeline: see `weft.capture.library`. The hook is interpreted once, apart from the
graph: what it reads is guarded, and any effect besides computing breaks the graph. The graph also
breaks if the handle is kept, or if variables of the frame that the hook refers to change before it
runs. Tensors of the graph among them are passed to it::

    y.register_hook(lambda g: g.clamp(-1, 1))      ->  register_hook(y)
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from weft.capture.core.base import MISSING, SymbolicValue
from weft.capture.core.breaks import graph_break
from weft.capture.core.constant import NONE, is_none
from weft.capture.guards.late_reads import LateReads
from weft.capture.library.functions.builtins import BuiltinValue
from weft.capture.library.functions.functions import FunctionValue
from weft.capture.library.subgraphs.held_objects import held_object
from weft.capture.library.subgraphs.late_code import late_reads
from weft.capture.library.subgraphs.subgraphs import rehearsal
from weft.capture.library.tensors.tensor import TensorValue, record, tensor_method
from weft.shapes.graph_facts import ProgramFunction

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter

Maker = Callable[..., Any]


@tensor_method("register_hook")
def _register_hook(tx: Interpreter, tensor: TensorValue, hook: SymbolicValue) -> SymbolicValue:
    hook = tx.force(hook)
    tensors: list[TensorValue] = []
    make = _maker(tx, hook, tensors) if _is_computed_here(tensor) and _is_dropped(tx) else None
    if make is None:
        raise graph_break("gradient-hook", f"a hook on the gradient of {tensor!r}")
    with rehearsal(tx, f"the hook {hook!r}", [tensor, *tensors]) as read:
        gradient = record(tx, torch.empty_like, [tensor])
        result = tx.force(hook.call(tx, [gradient], {}))
        if tx.builder.n_checks:  # of assumptions about data: a backward cannot run eagerly instead
            raise graph_break("gradient-hook", f"the hook {hook!r}, which branches on data")
    if not is_none(result) and not isinstance(result, TensorValue):
        raise graph_break("gradient-hook", f"the hook {hook!r}, which gives no tensor")
    reads = late_reads(tx, f"the hook {hook!r}", read)
    return record(tx, _registrar(make, reads), [tensor, *tensors])


def _is_computed_here(tensor: TensorValue) -> bool:
    """Whether the tensor is not from outside: those may have hooks already, and hooks run in
    order."""
    return tensor.source is None and tensor.example.grad_fn is not None


def _is_dropped(tx: Interpreter) -> bool:
    """Whether the program drops the result of the current call."""
    frame = tx.frame
    return frame is not None and frame.program.instructions[frame.pc].name == "POP_TOP"


def _maker(tx: Interpreter, hook: SymbolicValue, tensors: list[TensorValue]) -> Maker | None:
    """What makes the hook, as a real function, of the graph's tensors that it uses, which are
    appended to `tensors`; None if it is not known before the graph runs."""
    if isinstance(hook, BuiltinValue):
        return lambda: hook.function
    if not isinstance(hook, FunctionValue):
        return None
    if hook.original is not MISSING:
        return lambda: hook.original
    if hook.kwdefaults:
        return None

    def place(value: SymbolicValue | None) -> Any:
        """What gives the object, when the tensors are there."""
        value = NONE if value is None else tx.force(value)
        if isinstance(value, TensorValue):
            tensors.append(value)
            return operator.itemgetter(len(tensors) - 1)
        held = held_object(tx, value, "register_hook", copies=False)
        return lambda _: held

    defaults = [place(value) for value in hook.defaults]
    cells = [place(cell.read(tx)) for cell in hook.closure]
    for cell in hook.closure:
        tx.early_ends.note_cell(tx, cell)

    def make(*tensors_now: object) -> types.FunctionType:
        closure = tuple(types.CellType(of(tensors_now)) for of in cells)
        return types.FunctionType(
            hook.code, hook.globals, hook.name, tuple(of(tensors_now) for of in defaults), closure)

    return make


def _registrar(make: Maker, reads: LateReads) -> ProgramFunction:
    """A function that registers the hook and has a name of its own, which the graph shows."""

    def register_hook(tensor: torch.Tensor, *tensors: torch.Tensor) -> None:
        tensor.register_hook(make(*tensors))

    return ProgramFunction(
        "register_hook", register_hook, late_reads=reads, gradient_hook=make)
