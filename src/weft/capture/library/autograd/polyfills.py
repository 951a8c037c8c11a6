"""The `ctx` of an autograd function while its forward and backward are interpreted.

Place in the pipeline: used by `function_rules.py`.
"""

from __future__ import annotations

from typing import Any

import torch


class Context:
    """Keeps what forward saves and gives it to backward; has no other effect."""

    def __init__(self, needs_input_grad: tuple[bool, ...]) -> None:
        self.needs_input_grad = needs_input_grad
        self.saved_tensors: tuple[Any, ...] = ()
        self.materialize_grads = True
        self.non_differentiable: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: object) -> None:
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: object) -> None:
        pass

    def mark_dirty(self, *tensors: object) -> None:
        pass

    def mark_non_differentiable(self, *tensors: object) -> None:
        self.non_differentiable = tensors

    def set_materialize_grads(self, value: bool) -> None:
        self.materialize_grads = value


def gradients_like(context: Context, output: object) -> list[object]:
    """Gradients of all outputs, such as backward may receive."""
    outputs = output if isinstance(output, tuple) else (output,)
    return [_gradient_like(context, item) for item in outputs]


def _gradient_like(context: Context, output: object) -> object:
    if isinstance(output, list):  # of an operator
        return [_gradient_like(context, item) for item in output]
    if not isinstance(output, torch.Tensor):
        return None
    if not context.materialize_grads:
        floats = output.is_floating_point() or output.is_complex()
        if not floats or any([output is excluded for excluded in context.non_differentiable]):  # noqa: C419
            return None
    return torch.empty_like(output)


def apply_without_gradients(
    function: Any, needs_input_grad: tuple[bool, ...], *args: Any
) -> object:
    """`function.apply(*args)` if no gradient can be needed: just its forward."""
    context = Context(needs_input_grad)
    with torch.no_grad():
        if function.setup_context is torch.autograd.Function.setup_context:
            output = function.forward(context, *args)
        else:
            output = function.forward(*args)
            function.setup_context(context, args, output)
    if isinstance(output, tuple):
        return tuple([_without_gradient(item) for item in output])
    return _without_gradient(output)


def _without_gradient(output: Any) -> object:
    needs = isinstance(output, torch.Tensor) and output.requires_grad
    return output.detach() if needs else output
