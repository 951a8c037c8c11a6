"""Rules for torch.func: the levels of vmap, grad and jvp become nodes of the graph.

Place in the pipeline: see `weft.capture.library`. The Python part of the transforms is inlined.
What remains are C functions that enter a level, wrap and unwrap tensors, and leave the level: they
run on fakes while capturing and are recorded, so the graph does the same on tensors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from weft._torch import (
    VariableFunctions,
    are_functorch_transforms_active,
    enter_dual_level,
    exit_dual_level,
    functorch,
    functorch_autograd_grad,
    lazy_load_decompositions,
    peek_interpreter_stack,
    set_forward_grad_enabled,
)
from weft.capture.core.base import SymbolicValue
from weft.capture.core.breaks import graph_break
from weft.capture.core.constant import NONE, boolean, constant, known_objects, python_object
from weft.capture.core.rules import breaking
from weft.capture.library.containers.sequences import TupleValue
from weft.capture.library.functions.functions import polyfill, rule
from weft.capture.library.higher_order import functorch_polyfills
from weft.capture.library.numbers.symbolic_numbers import SymbolicNumberValue
from weft.capture.library.tensors.tensor import TensorValue, record

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter


def _level(function: Any) -> None:
    """The rule of a function that enters or leaves a level: it runs now and is recorded as a
    node."""

    @rule(function)
    def handler(tx: Interpreter, *args: SymbolicValue) -> SymbolicValue:
        objects = known_objects(tx, args, function, _plain_or_symbolic)
        recorded = [arg.proxy(tx) if isinstance(arg, SymbolicNumberValue) else o
                    for arg, o in zip(args, objects, strict=True)]
        tx.builder.effect(function, tuple(recorded), tx.stack())
        return tx.wrap_new(function(*objects))


def _plain_or_symbolic(tx: Interpreter, value: SymbolicValue) -> object:
    """The Python object; vmap accepts symbolic numbers of rows."""
    return value.example if isinstance(value, SymbolicNumberValue) else python_object(tx, value)


for _name in ("_vmap_increment_nesting", "_vmap_decrement_nesting", "_grad_increment_nesting",
              "_grad_decrement_nesting", "_jvp_increment_nesting", "_jvp_decrement_nesting",
              "set_inplace_requires_grad_allowed", "set_single_level_autograd_function_allowed"):
    _level(getattr(functorch, _name))


_level(set_forward_grad_enabled)


@rule(enter_dual_level)
def _enter_dual(tx: Interpreter) -> SymbolicValue:
    """Enter a level of torch.autograd.forward_ad; `tx.state` can leave it if capture stops
    inside."""
    tx.builder.effect(enter_dual_level, (), tx.stack())
    tx.state.dual_levels.append(enter_dual_level())
    return constant(tx.state.dual_levels[-1])


@rule(exit_dual_level)
def _exit_dual(tx: Interpreter, level: SymbolicValue) -> SymbolicValue:
    number = level.constant()
    tx.builder.effect(exit_dual_level, (), tx.stack(), {"level": number})
    exit_dual_level(level=number)
    tx.state.dual_levels.remove(number)
    return NONE


def _wrapping(function: object) -> None:
    """The rule of a function that wraps or unwraps a tensor: a graph operation."""

    @rule(function)
    def handler(tx: Interpreter, value: SymbolicValue, /, *others: SymbolicValue,
                **named: SymbolicValue) -> SymbolicValue:
        if not isinstance(value, TensorValue):
            return value
        tensors = [part for part in (value, *others) if isinstance(part, TensorValue)]
        tx.autograd.wrapped.update((id(tensor.example), tensor) for tensor in tensors)
        return _as_object(tx, record(tx, function, [value, *others], named))


def _as_object(tx: Interpreter, result: SymbolicValue) -> SymbolicValue:
    """What a wrapper holds is the tensor that was wrapped, if nothing else took its place."""
    if isinstance(result, TensorValue):
        known = tx.autograd.wrapped.get(id(result.example))
        return result if known is None or known.example is not result.example else known
    if isinstance(result, TupleValue):
        result.items = [_as_object(tx, item) for item in result.items]
    return result


for _name in ("_add_batch_dim", "_remove_batch_dim", "_unwrap_batched", "_wrap_for_grad",
              "_unwrap_for_grad", "get_unwrapped"):
    _wrapping(getattr(functorch, _name))

for _name in ("_make_dual", "_unpack_dual"):
    _wrapping(getattr(VariableFunctions, _name))


def _question(function: Any) -> None:
    """The rule of a function that asks about wrappers: answered on fakes."""

    @rule(function)
    def handler(tx: Interpreter, *values: SymbolicValue) -> SymbolicValue:
        if values and not isinstance(values[0], TensorValue):
            return boolean(False)
        return constant(function(*(value.fake(tx) for value in values)))


for _name in ("is_batchedtensor", "is_gradtrackingtensor", "is_functorch_wrapped_tensor",
              "is_functionaltensor", "maybe_get_level", "maybe_get_bdim", "maybe_current_level",
              "get_inplace_requires_grad_allowed", "is_legacy_batchedtensor",
              "get_single_level_autograd_function_allowed", "get_dynamic_layer_stack_depth"):
    _question(getattr(functorch, _name))


@rule(peek_interpreter_stack)
def _peek(tx: Interpreter) -> SymbolicValue:
    if functorch.maybe_current_level() is None:
        return NONE
    raise graph_break("unknown-c-function", "peek_interpreter_stack under a transform")


@rule(are_functorch_transforms_active)
def _active(tx: Interpreter) -> SymbolicValue:
    return boolean(are_functorch_transforms_active())


rule(torch.func.linearize)(breaking("transform", "torch.func.linearize"))


@rule(lazy_load_decompositions)
def _nothing(tx: Interpreter) -> SymbolicValue:
    lazy_load_decompositions()
    return NONE


# `torch.autograd.grad` without its switch for torch.compile, which would import that.
polyfill(functorch_autograd_grad, functorch_polyfills.gradients)
