"""Rules for user classes derived from `torch.autograd.Function`.

Place in the pipeline: see `handlers/__init__`. A call of `apply` is one node: it runs the class's
forward, on fakes here and on tensors later, and its backward when gradients are needed. Before
that, both are interpreted once, apart from the graph: what they read is guarded, and any effect
besides computing (appending to an outside list, `print`) breaks the graph. With `allow_in_graph`
this is left out. If no gradient can be needed, the forward is inlined like any function.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from weft._torch import are_functorch_transforms_active
from weft.capture.breaks import graph_break
from weft.capture.polyfills.autograd_context import (
    Context,
    apply_without_gradients,
    gradients_like,
)
from weft.capture.subgraphs import rehearsal
from weft.capture.values.base import Args, Kwargs, SymbolicValue
from weft.capture.values.constant import boolean
from weft.capture.values.containers.sequences import TupleValue
from weft.capture.values.objects.functions import rule
from weft.capture.values.tensors.tensor import TensorValue, run
from weft.markers import is_allowed_in_graph

if TYPE_CHECKING:
    from weft.capture.interpreter import Interpreter


@rule(torch.autograd.Function.apply.__func__)  # type: ignore[attr-defined]
def _apply(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    cls = args[0].constant()
    made = cls in tx.classes.made
    if made or not (
            are_functorch_transforms_active() or is_allowed_in_graph(cls) or _is_torchs(cls)):
        inputs = [tx.force(arg) for arg in args[1:]]
        needs = TupleValue([
            boolean(isinstance(i, TensorValue) and i.example.requires_grad) for i in inputs])
        if not (kwargs or (torch.is_grad_enabled() and any(n.truth(tx) for n in needs.items))):
            forward = tx.wrap_fixed(apply_without_gradients, "apply_without_gradients")
            return forward.call(tx, [args[0], needs, *inputs], {})
        if made:  # its functions' variables only exist in this interpretation
            raise graph_break("unknown-operation", f"gradients of {cls.__name__}, made inside")
        with rehearsal(tx, cls.__name__, inputs):
            _rehearse(tx, cls, inputs, needs)
    return run(tx, "call_function", _applier(cls), args[1:], kwargs)


@functools.cache
def _applier(cls: type[torch.autograd.Function]) -> Any:
    """A function that applies the class and has a name of its own, which the graph shows."""

    def apply(*args: Any, **kwargs: Any) -> Any:
        return cls.apply(*args, **kwargs)

    apply.__name__ = apply.__qualname__ = f"{cls.__name__}_apply"
    apply.runs_unseen_code = True  # type: ignore[attr-defined]
    return apply


def _is_torchs(cls: type) -> bool:
    return cls.__module__.startswith("torch.")


def _rehearse(tx: Interpreter, cls: type, args: Args, needs: TupleValue) -> None:
    context = tx.wrap_fixed(Context, "Context").call(tx, [needs], {})
    inputs = [run(tx, "call_method", "clone", [a], {}) if isinstance(a, TensorValue) else a
              for a in args]
    function = tx.wrap_fixed(cls, cls.__name__)
    if cls.setup_context is torch.autograd.Function.setup_context:  # type: ignore[attr-defined]
        output = function.getattr(tx, "forward").call(tx, [context, *inputs], {})
    else:
        output = function.getattr(tx, "forward").call(tx, inputs, {})
        function.getattr(tx, "setup_context").call(tx, [context, TupleValue(inputs), output], {})
    _rehearse_backward(tx, function, context, tx.force(output))


def _rehearse_backward(tx: Interpreter, function: SymbolicValue, context: SymbolicValue,
                       output: SymbolicValue) -> None:
    like = tx.wrap_fixed(gradients_like, "gradients_like")
    gradients = tx.unpack(like.call(tx, [context, output], {}))
    name = "backward"
    if function.constant().vjp is not torch.autograd.Function.vjp:
        name = "vjp"
    function.getattr(tx, name).call(tx, [context, *gradients], {})
