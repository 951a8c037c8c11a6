"""Rules for torch.optim: its optimizers become operations that graphs can hold.

Place in the pipeline: see `weft.capture.library`. Optimizers are inlined like any program; under
compilers they keep step counts in tensors. The rules here handle code that reads these counts:
operators that take numbers, branches on the step, fused kernels (weft fuses by itself).
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Final

import torch

from weft._torch import (
    amp_unscale,
    foreach_scaled,
    group_tensors_by_device_and_dtype,
    optimizer_number,
)
from weft.capture.core.base import MISSING, SymbolicValue
from weft.capture.core.breaks import StartOver
from weft.capture.core.constant import FALSE, constant
from weft.capture.library.containers.sequences import ListValue, TupleValue
from weft.capture.library.functions.functions import inline, polyfill, rule
from weft.capture.library.optimizers import gradient_polyfills, polyfills
from weft.capture.library.optimizers.early_state import note_state, note_step
from weft.capture.library.tensors.tensor import TensorValue, record

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter


polyfill(group_tensors_by_device_and_dtype, polyfills.group_tensors)
polyfill(amp_unscale, polyfills.unscale)
polyfill(optimizer_number, polyfills.number_of)
polyfill(torch.nn.Module.zero_grad, gradient_polyfills.zero_module_gradients)
polyfill(torch.optim.Optimizer.zero_grad, gradient_polyfills.zero_optimizer_gradients)
polyfill(torch.optim.Optimizer.zero_grad.__wrapped__,  # type: ignore[attr-defined]
         gradient_polyfills.zero_optimizer_gradients)


def _with_tensor_scalars(original: object, python: object) -> None:
    """The operator; where it would read scalars from tensors, its parts."""

    @rule(original)
    def handler(
        tx: Interpreter, tensors: SymbolicValue, first: SymbolicValue, second: SymbolicValue, /,
        scalars: SymbolicValue | None = None, **options: SymbolicValue,
    ) -> SymbolicValue:
        args = [tensors, first, second, *([] if scalars is None else [scalars])]
        if scalars is not None and _has_tensors(tx, tx.force(scalars)):
            return tx.call_python(python, args, options)
        return record(tx, original, args, options)


def _has_tensors(tx: Interpreter, value: SymbolicValue) -> bool:
    if isinstance(value, (ListValue, TupleValue)):
        return any(isinstance(tx.force(item), TensorValue) for item in value.all(tx))
    return isinstance(value, TensorValue)


for _operator, _parts in zip(foreach_scaled, (
        polyfills.foreach_addcdiv_, polyfills.foreach_addcmul_), strict=True):
    _with_tensor_scalars(_operator, _parts)


def _optimizer(module: str, name: str) -> types.FunctionType | None:
    function = vars(import_module(f"torch.optim.{module}")).get(name)
    return function if isinstance(function, types.FunctionType) else None


def _state_made_first(function: types.FunctionType) -> None:
    """A rule that creates the optimizer's state now, so that the captured step is the one that runs
    later."""

    @rule(function)
    def handler(tx: Interpreter, optimizer: SymbolicValue, group: SymbolicValue, /,
                *lists: SymbolicValue, **named: SymbolicValue) -> SymbolicValue:
        if not named and _make_state(tx, function, optimizer, group, lists):
            raise StartOver
        note_step(tx, optimizer.real())
        return inline(tx, function, [optimizer, group, *lists], named)


def _make_state(tx: Interpreter, function: types.FunctionType, owner: SymbolicValue,
                target: SymbolicValue, targets: Sequence[SymbolicValue]) -> bool:
    """Run `_init_group` on the real optimizer; returns whether that changed its state."""
    optimizer = owner.real()
    group = tx.force(target)
    if not isinstance(optimizer, torch.optim.Optimizer) or group.real() is MISSING:
        return False
    lists = [tx.force(values) for values in targets]
    if not all(isinstance(values, ListValue) and not values.items for values in lists):
        return False
    with_gradient = _parameters_with_gradients(tx, group)
    fresh = [p for p in with_gradient if not optimizer.state.get(p)]
    if not fresh or group.real().get("differentiable"):
        return False
    with _gradients_for(group.real()["params"], with_gradient), torch.no_grad():
        function(optimizer, group.real(), *([] for _ in lists))
    note_state(tx, optimizer, fresh)
    return any(optimizer.state.get(p) for p in fresh)


def _parameters_with_gradients(tx: Interpreter, group: SymbolicValue) -> list[torch.Tensor]:
    parameters = []
    for value in tx.unpack(group.getitem(tx, constant("params"))):
        value = tx.force(value)
        if isinstance(value, TensorValue) and isinstance(value.original, torch.Tensor):
            gradient = value.getattr(tx, "grad")
            if isinstance(gradient, TensorValue) and gradient.example.layout is torch.strided:
                parameters.append(value.original)
    return parameters


@contextmanager
def _gradients_for(parameters: list[torch.Tensor], wanted: list[torch.Tensor]) -> Iterator[None]:
    """Give these parameters, and no others, a `.grad`: their own memory."""
    before = [p.grad for p in parameters]
    chosen = {id(p) for p in wanted}
    try:
        for p in parameters:
            p.grad = p.detach() if id(p) in chosen else None
        yield
    finally:
        for p, gradient in zip(parameters, before, strict=True):
            p.grad = gradient


for _class in vars(torch.optim).values():
    if isinstance(_class, type) and isinstance(
            vars(_class).get("_init_group"), types.FunctionType):
        _state_made_first(vars(_class)["_init_group"])


def _without_branches(function: types.FunctionType, n_counts: int) -> None:
    """The form of the step that selects by `where`, because step counts are tensors."""
    selecting = polyfills.without_branches(function, n_counts)

    @rule(function)
    def handler(tx: Interpreter, /, *args: SymbolicValue, capturable: SymbolicValue = FALSE,
                **options: SymbolicValue) -> SymbolicValue:
        kwargs = {**options, "capturable": capturable}
        if capturable.is_constant and capturable.constant():
            return inline(tx, function, [*args], kwargs)
        return tx.call_python(selecting, [*args], kwargs)


def _unfuse(function: types.FunctionType, plain: types.FunctionType) -> None:
    """A fused kernel as its operations, unless it includes a gradient scaler."""
    parameters = inspect.signature(function)

    @rule(function)
    def handler(tx: Interpreter, /, *args: SymbolicValue, **kwargs: SymbolicValue) -> SymbolicValue:
        values = parameters.bind(*args, **kwargs).arguments
        scaled = any(isinstance(tx.force(values[name]), TensorValue)
                     for name in ("grad_scale", "found_inf"))
        return inline(tx, function if scaled else plain, [*args], kwargs)


_BRANCHING: Final = (("radam", "_single_tensor_radam", 1), ("radam", "_multi_tensor_radam", 1),
                     ("asgd", "_single_tensor_asgd", 3), ("asgd", "_multi_tensor_asgd", 3))
"""Step functions that branch on numbers, and how many of their last lists are these numbers."""
_FUSED: Final = (("adam", "_fused_adam", "_multi_tensor_adam"),
                 ("sgd", "_fused_sgd", "_single_tensor_sgd"),
                 ("adagrad", "_fused_adagrad", "_multi_tensor_adagrad"))

for _module, _name, _n_counts in _BRANCHING:
    _function = _optimizer(_module, _name)
    if _function is not None:
        _without_branches(_function, _n_counts)

for _module, _name, _other in _FUSED:
    _function, _plain = _optimizer(_module, _name), _optimizer(_module, _other)
    if _function is not None and _plain is not None:
        _unfuse(_function, _plain)
