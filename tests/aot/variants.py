"""The same inputs in other memory layouts, and some with other sizes or values.

    made = VARIANTS["offset"](tensor)       # same values, starts inside its storage

A variant that does not apply to a tensor gives it back. `changed("offset")` is what
`comparing.compare` takes as `change`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from comparing import copies

Variant = Callable[[torch.Tensor], torch.Tensor]
VARIANTS: Final[dict[str, Variant]] = {}


def _variant(function: Variant) -> Variant:
    VARIANTS[function.__name__] = function
    return function


@_variant
def offset(t: torch.Tensor) -> torch.Tensor:
    """Starts inside its storage, as `x[1:]` does."""
    room = torch.zeros(t.numel() + 3, dtype=t.dtype)
    return room[3:].view(t.size()).copy_(t)


@_variant
def strided(t: torch.Tensor) -> torch.Tensor:
    """Every second element of the last dimension of something larger."""
    if t.dim() == 0:
        return t
    room = torch.zeros((*t.size()[:-1], 2 * t.size(-1)), dtype=t.dtype)
    return room[..., ::2].copy_(t)


@_variant
def transposed(t: torch.Tensor) -> torch.Tensor:
    """Dimensions in reverse order in memory."""
    order = tuple(reversed(range(t.dim())))
    return t.permute(order).contiguous().permute(order)


@_variant
def channels_last(t: torch.Tensor) -> torch.Tensor:
    """Channels innermost in memory."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return t.contiguous(memory_format=formats[t.dim()]) if t.dim() in formats else t


@_variant
def padded(t: torch.Tensor) -> torch.Tensor:
    """Rows with a gap behind each."""
    if t.dim() == 0:
        return t
    room = torch.zeros((*t.size()[:-1], t.size(-1) + 1), dtype=t.dtype)
    return room[..., :-1].copy_(t)


@_variant
def expanded(t: torch.Tensor) -> torch.Tensor:
    """The first row for all rows, without memory of their own."""
    return t[:1].expand(t.size()) if t.dim() and t.size(0) else t


@_variant
def overlapping(t: torch.Tensor) -> torch.Tensor:
    """A sliding window: neighbours share elements."""
    if t.dim() < 2 or t.size(-1) < 2 or t.numel() == 0:
        return t
    steps = (*reversed(range(1, t.dim())), 1)
    reach = sum((n - 1) * s for n, s in zip(t.size(), steps, strict=True)) + 1
    return t.reshape(-1)[:reach].clone().as_strided(t.size(), steps)


@_variant
def empty(t: torch.Tensor) -> torch.Tensor:
    """No rows."""
    return t[:0] if t.dim() else t


@_variant
def single(t: torch.Tensor) -> torch.Tensor:
    """One row: a size that broadcasts."""
    return t[:1] if t.dim() else t


@_variant
def special(t: torch.Tensor) -> torch.Tensor:
    """Infinities, NaN, zeros of both signs, the huge and the tiny."""
    if not t.dtype.is_floating_point or t.numel() == 0:
        return t
    limits = torch.finfo(t.dtype)
    values = [torch.nan, torch.inf, -torch.inf, 0.0, -0.0, limits.max / 2, limits.tiny / 4, -1.0]
    flat = t.reshape(-1).clone()
    for i, value in enumerate(values):
        flat[i::17] = value
    return torch.empty_like(t).copy_(flat.view(t.shape))


def changed(name: str) -> Callable[[list[Any]], list[Any]]:
    """A function from inputs to new leaves in the layout `name`."""
    variant = VARIANTS[name]

    def change(inputs: list[Any]) -> list[Any]:
        return copies([_leaf(t, variant) for t in inputs])

    return change


def _leaf(t: torch.Tensor, variant: Variant) -> torch.Tensor:
    if t.layout is not torch.strided or t.is_conj() or t.is_neg():
        return t
    return variant(t.detach()).requires_grad_(t.requires_grad)
