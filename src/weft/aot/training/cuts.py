"""The captured graph run again, tied to the results of its first run that the program still holds.

Place in the pipeline: made by `layers.py` for a backward that is differentiated, used by
`double_backward.py`. What the program computes from such gradients depends on its own `h`, so what
reads `h` in the other run reads the program's, behind a cut::

    x --+--> h (the program's) -> cut -> loss'      gradients of loss' end at the cut, those of h'
        +--> h' (the other run's)                   are taken for it

Autograd ties results that a formula saves (that of `tanh`) to their own node, here to that of h'.
What gradients of gradients pass to it belongs to `h`: `_Home` nodes in front of `h'`, which know
the way to `h`, bring it there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import torch

from weft._torch import current_graph_task


@final
class Cuts:
    """The inner results where gradients end within a block, when the captured graph runs again.
    Gradients of gradients, taken after the block, do not end there.

    `live`: the results that the program holds.
    """

    def __init__(self, live: dict[int, torch.Tensor]) -> None:
        self.live = live
        self.tensors: dict[int, torch.Tensor] = {}
        self._passage = _Passage()
        self.run: tuple[list[Any], Sequence[torch.Tensor]] | None = None
        """What the graph gave and gradients are taken for, for the other layers."""

    def inputs(self, tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """The inputs of the other run that gradients are taken for."""
        return self._home(*tensors) if self.live else views(tensors)

    @torch.enable_grad()  # the program may have disabled gradients to write to the result
    def add(self, key: int, tensor: torch.Tensor) -> torch.Tensor:
        """A cut behind an inner result, computed as `tensor`."""
        held = self.live.get(key)
        if held is not None and tensor.grad_fn is not None:
            self._passage.leads_home(key, tensor)
            (tensor,) = self._home(held)
        self.tensors[key] = cut = _cut(self._passage, tensor)
        return cut

    def _home(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return _home(self._passage, tuple(self.live), *self.live.values(), *tensors)

    def __enter__(self) -> None:
        self._passage.ends_gradients = True

    def __exit__(self, *error: object) -> None:
        self._passage.ends_gradients = False


@final
class _Passage:
    """What the autograd nodes and hooks of another run share: they must not hold its results."""

    def __init__(self) -> None:
        self.ends_gradients = False
        self._arrived: dict[int, torch.Tensor] = {}
        self._backward = -1

    def leads_home(self, key: int, tensor: torch.Tensor) -> None:
        """Gradients of gradients that arrive at `tensor` go to the result `key` instead."""
        at = tensor.output_nr

        def take(tangents: tuple[torch.Tensor | None, ...]) -> Any:
            tangent = tangents[at]
            if tangent is None or self.ends_gradients:
                return None
            arrived = self._of_this_backward()
            arrived[key] = arrived[key] + tangent if key in arrived else tangent
            return *tangents[:at], None, *tangents[at + 1 :]

        tensor.grad_fn.register_prehook(take)  # type: ignore[union-attr]

    def bring(self, keys: Sequence[int]) -> list[torch.Tensor | None]:
        """What has arrived for the results `keys`, once."""
        arrived = self._of_this_backward()
        return [arrived.pop(k, None) for k in keys]

    def _of_this_backward(self) -> dict[int, torch.Tensor]:
        if self._backward != current_graph_task():
            self._backward = current_graph_task()
            self._arrived.clear()
        return self._arrived


def views(tensors: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """The same tensors with autograd nodes of their own: what gradients are taken for has its hooks
    called, and those of the program's tensors are called in its own backward."""
    return [t.view_as(t) for t in tensors]


class _Home(torch.autograd.Function):
    """Passes tensors on; leads to the results of the first run, too."""

    @staticmethod
    def forward(
        ctx: Any, passage: _Passage, keys: tuple[int, ...], *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.passage, ctx.keys = passage, keys
        ctx.set_materialize_grads(False)
        return tuple(views(tensors[len(keys) :]))

    @staticmethod
    def backward(ctx: Any, *tangents: Any) -> Any:
        return None, None, *ctx.passage.bring(ctx.keys), *tangents


class _Cut(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, passage: _Passage, tensor: torch.Tensor) -> torch.Tensor:
        ctx.passage = passage
        ctx.set_materialize_grads(False)
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *tangents: Any) -> Any:
        return None, None if ctx.passage.ends_gradients else tangents[0]


_home: Callable[..., tuple[torch.Tensor, ...]] = _Home.apply
_cut: Callable[[_Passage, torch.Tensor], torch.Tensor] = _Cut.apply
