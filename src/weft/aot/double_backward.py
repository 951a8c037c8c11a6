"""Gradients of gradients: the captured graph runs again through autograd, with `create_graph=True`.

Place in the pipeline: called by the compiled function's backward if it must be differentiable::

    double = DoubleBackward(gm, traced, gradient_inputs, stale)
    double(inputs, {0: tangent}, None, None)   # one gradient (or None) per gradient input
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, final

import torch
from torch.fx import GraphModule

from weft._torch import tree_flatten
from weft.aot.autograd_function import DoubleBackwardError
from weft.aot.backwards import Indices
from weft.aot.global_state import AutocastState, RandomState
from weft.aot.trace import Traced


@final
class DoubleBackward:
    """Runs the captured graph again and differentiates it."""

    def __init__(self, gm: GraphModule, traced: Traced, gradient_inputs: Sequence[int],
                 stale: set[int]) -> None:
        self.gm = gm
        self.mutated = traced.mutated
        self.n_inputs = traced.n_inputs
        self.gradient_inputs = gradient_inputs
        self.stale = stale  # overwritten inputs whose old value the outputs need
        self.autocast = AutocastState.current()
        self.position = _positions(traced)

    def __call__(
        self, inputs: list[Any], tangents: dict[int, torch.Tensor], random: RandomState | None,
        wanted: Indices | None,
    ) -> list[torch.Tensor | None]:
        """The `wanted` gradients (None: all), differentiable if gradients are enabled."""
        create_graph = torch.is_grad_enabled()
        chosen = [k for k in range(len(self.gradient_inputs)) if wanted is None or k in wanted]
        gradients: list[torch.Tensor | None] = [None] * len(self.gradient_inputs)
        if not tangents or not chosen:
            return gradients
        self._check(tangents)
        replay = nullcontext() if random is None else random.replayed()
        with torch.enable_grad(), replay:
            given = list(inputs)
            for i in self.mutated:
                given[i] = given[i].clone()
            with self.autocast:
                flat, _ = tree_flatten(self.gm.forward(*given[: self.n_inputs]))
            values = [self._value(flat, k, tangent) for k, tangent in tangents.items()]
            found = torch.autograd.grad(
                values, [inputs[self.gradient_inputs[k]] for k in chosen],
                list(tangents.values()), create_graph=create_graph, allow_unused=True,
            )
        for k, gradient in zip(chosen, found, strict=True):
            gradients[k] = gradient
        return gradients

    def _check(self, tangents: dict[int, torch.Tensor]) -> None:
        """Refuse inputs with which the graph would not repeat the forward's computation."""
        if self.stale:
            raise _refused("an input that the compiled graph overwrote")
        if any(k not in self.position for k in tangents):
            raise _refused("outputs that share memory")

    def _value(self, flat: list[Any], k: int, tangent: torch.Tensor) -> torch.Tensor:
        """Value `k` of the forward: an output, or what an output is a view of."""
        position, is_view = self.position[k]
        found = flat[position]._base if is_view else flat[position]
        if found is None or found.size() != tangent.size():
            raise _refused("outputs that share memory")
        return found  # type: ignore[no-any-return]


def _refused(reason: str) -> DoubleBackwardError:
    return DoubleBackwardError(
        f"create_graph=True through this compiled graph would need {reason}",
        do="exclude the function that needs gradients of gradients with weft.disable",
    )


def _positions(traced: Traced) -> dict[int, tuple[int, bool]]:
    """For each value of the forward, the output of the captured graph that is that value, or (True)
    a view of it."""
    found: dict[int, tuple[int, bool]] = {}
    for position, spec in enumerate(traced.outputs):
        if spec.kind == "value" and not spec.steps:
            found[spec.index] = position, False
        elif spec.kind == "value" and not spec.detached:
            found.setdefault(spec.index, (position, True))
    return found
