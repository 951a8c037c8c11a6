"""Rules for user classes derived from `torch.autograd.Function`.

Place in the pipeline: see `weft.capture.library`. A call of `apply` is one node: it runs the
class's forward, on fakes here and on tensors later, and its backward when gradients are needed.
Before that, both are interpreted once, apart from the graph: what they read is guarded, and any
effect besides computing (appending to an outside list, `print`) breaks the graph. With
`allow_in_graph` this is left out. If no gradient can be needed, the forward is inlined like any
function.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import torch

from weft._torch import are_functorch_transforms_active, function_apply, function_base
from weft.capture.core.base import Args, SymbolicValue
from weft.capture.core.breaks import graph_break
from weft.capture.core.constant import boolean
from weft.capture.library.autograd.polyfills import Context, apply_without_gradients, gradients_like
from weft.capture.library.classes.instances import PLAIN_SETTERS
from weft.capture.library.containers.sequences import TupleValue
from weft.capture.library.functions.functions import rule
from weft.capture.library.subgraphs.held_objects import Held, holding, is_shown, split_arguments
from weft.capture.library.subgraphs.late_code import Kept, Read, kept_containers, late_reads
from weft.capture.library.subgraphs.subgraphs import rehearsal
from weft.capture.library.tensors.tensor import TensorValue, record
from weft.markers import is_allowed_in_graph
from weft.shapes.graph_facts import LateReads, ProgramFunction

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter


# of the contexts that autograd makes, in frames of a `forward` that it calls
PLAIN_SETTERS.extend(vars(function_base)[name] for name in (
    "to_save", "non_differentiable", "dirty_tensors"))


@rule(function_apply)
def _apply(tx: Interpreter, function: SymbolicValue, /, *args: SymbolicValue,
           **kwargs: SymbolicValue) -> SymbolicValue:
    cls = function.constant()
    made_inside = cls in tx.classes.made
    if made_inside or not (
            are_functorch_transforms_active() or is_allowed_in_graph(cls) or _is_torchs(cls)):
        inputs = [tx.force(arg) for arg in args]
        needs = TupleValue([
            boolean(isinstance(i, TensorValue) and i.example.requires_grad) for i in inputs])
        if not (kwargs or (torch.is_grad_enabled() and any(n.truth(tx) for n in needs.items))):
            return tx.call_python(apply_without_gradients, [function, needs, *inputs])
        if made_inside:  # its functions' variables only exist in this interpretation
            raise graph_break("unknown-operation", f"gradients of {cls.__name__}, made inside")
        with rehearsal(tx, cls.__name__, [i for i in inputs if is_shown(tx, i)]) as read:
            by_forward, kept = _rehearse(tx, cls, inputs, needs, read)
        shown, held = _split(tx, cls, args, kept)
        reads = late_reads(tx, cls.__name__, read, by_forward, kept)
        return record(tx, _holding(cls, held, reads), shown, kwargs)
    shown, held = _split(tx, cls, args)
    applier = _holding(cls, held) if held else _applier(cls)
    return record(tx, applier, shown, kwargs)


def _split(tx: Interpreter, cls: type, args: Sequence[SymbolicValue],
           kept: Kept = MappingProxyType({})) -> tuple[Args, Held]:
    """Arguments that a graph can show, and by position those that the node's function holds: also
    what the backward `kept`, which may change before."""
    shown, _, held = split_arguments(tx, [*args], {}, cls.__name__, kept)
    objects = any(not tx.force(value).is_constant for i, value in enumerate(args) if i in held)
    if objects and any(value.python_type() is torch.nn.Parameter for value in shown):
        # of an object that has the same parameters: their gradients belong together
        raise graph_break("unknown-operation", f"{cls.__name__} of an object and parameters")
    return shown, held


@functools.cache
def _applier(cls: type[torch.autograd.Function]) -> Any:
    return _holding(cls, {})


def _holding(cls: type[torch.autograd.Function], held: Held, reads: LateReads | None = None
             ) -> ProgramFunction:
    return holding(cls.apply, f"{cls.__name__}_apply", held, reads)


def _is_torchs(cls: type) -> bool:
    return cls.__module__.startswith("torch.")


def _rehearse(tx: Interpreter, cls: type, args: Args, needs: TupleValue, read: Read
              ) -> tuple[Read, Kept]:
    """Interpret the forward, then the backward; in `read` is what the backward reads, the result
    is what the forward reads, and what the backward gets from it."""
    context = tx.call_python(Context, [needs])
    with torch.enable_grad():  # forward may ask its inputs whether they require gradients
        inputs = [record(tx, "clone", [a]) if isinstance(a, TensorValue) else a
                  for a in args]
    function = tx.wrap_fixed(cls, cls.__name__)
    if cls.setup_context is torch.autograd.Function.setup_context:  # type: ignore[attr-defined]
        output = function.getattr(tx, "forward").call(tx, [context, *inputs], {})
    else:
        output = function.getattr(tx, "forward").call(tx, inputs, {})
        function.getattr(tx, "setup_context").call(tx, [context, TupleValue(inputs), output], {})
    by_forward = dict(read)
    read.clear()
    kept = kept_containers(tx, context)
    _rehearse_backward(tx, function, context, tx.force(output))
    return by_forward, kept


def _rehearse_backward(tx: Interpreter, function: SymbolicValue, context: SymbolicValue,
                       output: SymbolicValue) -> None:
    gradients = tx.unpack(tx.call_python(gradients_like, [context, output]))
    name = "backward"
    if function.constant().vjp is not torch.autograd.Function.vjp:
        name = "vjp"
    function.getattr(tx, name).call(tx, [context, *gradients], {})
