"""Parts of torch.func that would import torch.compile's machinery, in plain torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def gradients(
    outputs: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor],
    grad_outputs: Sequence[torch.Tensor] | None = None, retain_graph: bool = False,
    create_graph: bool = True,
) -> tuple[torch.Tensor, ...]:
    """torch.autograd.grad; outputs may be independent of the inputs, whose gradient is then
    zero."""
    used = [i for i, output in enumerate(outputs) if output.requires_grad]
    if not used:
        return tuple(torch.zeros_like(x) for x in inputs)
    grads = torch.autograd.grad(
        [outputs[i] for i in used], inputs,
        None if grad_outputs is None else [grad_outputs[i] for i in used],
        retain_graph=retain_graph, create_graph=create_graph, allow_unused=True)
    return tuple(torch.zeros_like(x) if grad is None else grad
                 for grad, x in zip(grads, inputs, strict=True))
