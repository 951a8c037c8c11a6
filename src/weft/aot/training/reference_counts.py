"""How many references a tensor has that autograd passes to a backward: measured, because it is not
documented.

Place in the pipeline: used by `tangents.py` and `saved_values.py`, which take or free a tensor that
only autograd holds::

    seen_in_backward(lambda ctx, tangents: sys.getrefcount(tangents[0]), torch.exp)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from weft._torch import apply_function, run_backward_directly

T = TypeVar("T")


def seen_in_backward(
    look: Callable[[Any, Sequence[torch.Tensor]], T], use: Callable[[torch.Tensor], torch.Tensor]
) -> T:
    """The result of `look(ctx, tangents)` in the backward of a function that saved a tensor and
    whose result was passed to `use`."""
    answers: list[T] = []

    class Probe(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x.exp())
            return x.clone()

        @staticmethod
        def backward(ctx: Any, *tangents: Any) -> Any:
            answers.append(look(ctx, tangents))
            return tangents[0]

    run_backward_directly(Probe)  # as the functions of compiled graphs
    leaf = torch.zeros(1, device="cpu", requires_grad=True)
    with torch.enable_grad():
        use(apply_function(Probe, leaf)).mul(2).sum().backward()
    return answers[0]
