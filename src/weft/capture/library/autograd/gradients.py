"""Autograd at the run time of replacements: tensors in the state that the program leaves them in.

Place in the pipeline: called by replacement functions (`rules` emits the
calls).
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.graph import increment_version

from weft._torch import apply_function


class _Spent(torch.autograd.Function):
    """The end of an autograd graph that a backward pass inside the compiled graph has freed."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, *leaves: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.n_inputs = 1 + len(leaves)
        return value.detach()

    @staticmethod
    def backward(ctx: Any, gradient: object) -> Any:
        if gradient is None:  # a later graph took the tensor, and no gradient comes from there
            return (None,) * ctx.n_inputs
        raise RuntimeError(
            "Trying to backward through the graph a second time (or directly access saved tensors "
            "after they have already been freed). Saved intermediate values of the graph are freed "
            "when you call .backward() or autograd.grad(). Specify retain_graph=True if you need "
            "to backward through the graph a second time or if you need to access saved tensors "
            "after calling backward.")


_ANCHOR = torch.empty(0, device="cpu", requires_grad=True)


def spent(value: torch.Tensor, *leaves: torch.Tensor) -> torch.Tensor:
    """`value` as `backward()` leaves it: it requires a gradient, but its graph is freed.

    It still leads to the leaves: a backward that fails here reaches none of them on other ways.
    """
    with torch.enable_grad():
        result: torch.Tensor = apply_function(_Spent, value, _ANCHOR, *leaves)
    return result


def set_data(tensor: torch.Tensor, data: torch.Tensor, n_writes: int) -> None:
    """`tensor.data = data`, where the graph has written to the new data so often already."""
    tensor.data = data
    for _ in range(n_writes):
        increment_version(tensor)


def as_parameter(value: torch.Tensor) -> torch.Tensor:
    """A leaf made by the graph, as an instance of the class that the program gave it."""
    if type(value) is not torch.nn.Parameter:
        value.__class__ = torch.nn.Parameter
    return value
