"""Dropping gradients, as torch.optim and torch.nn do, without testing whether there are any.

(They do test that, which would be guarded: the first step, without gradients, would be compiled
separately.)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def zero_optimizer_gradients(self: Any, set_to_none: bool = True) -> None:
    """`Optimizer.zero_grad`."""
    for group in self.param_groups:
        zero_gradients(group["params"], set_to_none)


def zero_module_gradients(self: Any, set_to_none: bool = True) -> None:
    """`Module.zero_grad`."""
    zero_gradients(self.parameters(), set_to_none)


def zero_gradients(parameters: Iterable[Any], set_to_none: bool) -> None:
    """None, or zeros where there is a gradient."""
    for p in parameters:
        if set_to_none:
            p.grad = None
        elif p.grad is not None:
            if p.grad.grad_fn is not None:
                p.grad.detach_()
            else:
                p.grad.requires_grad_(False)
            p.grad.zero_()
