"""Rules for user classes derived from `torch.autograd.Function`.

Place in the pipeline: see `handlers/__init__`. A call of `apply` is one node: the class's forward
runs on fakes here and on tensors later, its backward when gradients are asked for. Both are
interpreted once before, apart from the graph: what they read is guarded, and what they do besides
computing (a list that they append to, `print`) makes the call a graph break. `allow_in_graph` of
the class leaves that out.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import torch

from weft._torch import are_functorch_transforms_active
from weft.capture.breaks import graph_break
from weft.capture.polyfills.autograd_context import Context
from weft.capture.subgraphs import SubgraphBuilder
from weft.capture.values.base import Args, Kwargs, SymbolicValue
from weft.capture.values.constant import NONE, boolean
from weft.capture.values.functions import rule
from weft.capture.values.sequences import TupleValue
from weft.capture.values.tensors import TensorValue, run
from weft.markers import is_allowed_in_graph

if TYPE_CHECKING:
    from weft.capture.interpreter import Interpreter


@rule(torch.autograd.Function.apply.__func__)  # type: ignore[attr-defined]
def _apply(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    cls = args[0].constant()
    if not (are_functorch_transforms_active() or is_allowed_in_graph(cls)):
        _rehearse(tx, cls, args[1:])
    return run(tx, "call_function", _applier(cls), args[1:], kwargs)


@functools.cache
def _applier(cls: type[torch.autograd.Function]) -> Any:
    """A function of its own name that applies the class: what the graph shows."""

    def apply(*args: Any, **kwargs: Any) -> Any:
        return cls.apply(*args, **kwargs)

    apply.__name__ = apply.__qualname__ = f"{cls.__name__}_apply"
    return apply


def _rehearse(tx: Interpreter, cls: type, args: Args) -> None:
    """Interprets forward and backward into a graph that is thrown away."""
    if cls.__module__.startswith("torch."):
        return
    outer, effects = tx.builder, len(tx.effects)
    grad_mode = torch.is_grad_enabled()
    tx.builder = SubgraphBuilder(outer)
    outer.has_subgraphs = True
    torch.set_grad_enabled(False)
    try:
        _rehearse_both(tx, cls, [tx.force(arg) for arg in args], grad_mode)
    finally:
        torch.set_grad_enabled(grad_mode)
        tx.builder = outer
    if len(tx.effects) != effects:
        raise graph_break("unknown-operation", f"{cls.__name__} changes outside state")


def _rehearse_both(tx: Interpreter, cls: type, args: Args, grad_mode: bool) -> None:
    needs = [boolean(isinstance(a, TensorValue) and a.example.requires_grad) for a in args]
    context = tx.wrap_fixed(Context, "Context").call(tx, [TupleValue(list(needs))], {})
    inputs = [run(tx, "call_method", "clone", [a], {}) if isinstance(a, TensorValue) else a
              for a in args]
    function = tx.wrap_fixed(cls, cls.__name__)
    if cls.setup_context is torch.autograd.Function.setup_context:  # type: ignore[attr-defined]
        output = function.getattr(tx, "forward").call(tx, [context, *inputs], {})
    else:
        output = function.getattr(tx, "forward").call(tx, inputs, {})
        function.getattr(tx, "setup_context").call(tx, [context, TupleValue(inputs), output], {})
    if grad_mode and any(flag.truth(tx) for flag in needs):
        _rehearse_backward(tx, function, context, tx.force(output))


def _rehearse_backward(tx: Interpreter, function: SymbolicValue, context: SymbolicValue,
                       output: SymbolicValue) -> None:
    outputs = tx.unpack(output) if isinstance(output, TupleValue) else [output]
    gradients = [run(tx, "call_function", torch.empty_like, [tx.force(o)], {})
                 if isinstance(tx.force(o), TensorValue) else NONE for o in outputs]
    name = "backward"
    if function.constant().vjp is not torch.autograd.Function.vjp:
        name = "vjp"
    function.getattr(tx, name).call(tx, [context, *gradients], {})
