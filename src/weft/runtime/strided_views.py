"""`as_strided` with offsets from the tensor's first element, as ATen graphs have them; copies with
gaps.

Place in the pipeline: called by whatever runs an ATen graph, instead of the operators. ATen counts
offsets from the start of the storage, which an input that starts inside its storage shares with
other data. The functionaliser (`aot/tracing/record_special.py`) records the distance from the
viewed value's own first element::

    CALLS[aten.as_strided.default](x, [2, 2], [4, 1], 3)    # x.flatten()[3], [4], [7], [8]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

aten = torch.ops.aten


def view_at(
    x: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int | None = None
) -> torch.Tensor:
    """The elements of `x`'s memory from its `offset`-th on."""
    return x.as_strided(size, stride, x.storage_offset() + (offset or 0))


def write_at(
    x: torch.Tensor, source: torch.Tensor, size: Sequence[int], stride: Sequence[int],
    offset: int | None = None,
) -> torch.Tensor:
    """A copy of `x` with `source` in that view of it."""
    copy = torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device=x.device)
    copy.copy_(x)
    copy.as_strided(size, stride, offset or 0).copy_(source)
    return copy


def laid_out(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """A copy with these strides; ATen has no operator for strides with gaps or overlaps."""
    copy = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
    target = copy
    for d, stride in enumerate(strides):
        if stride == 0 and tensor.shape[d] > 1:  # expanded: all elements share memory
            target, tensor = target.narrow(d, 0, 1), tensor.narrow(d, 0, 1)
    target.copy_(tensor)
    return copy


CALLS: Final[dict[Any, Callable[..., Any]]] = {
    aten.as_strided.default: view_at,
    aten.as_strided_scatter.default: write_at,
}
"""What to call for an operator of a graph instead of the operator itself."""


def with_strides(tensor: torch.Tensor, strides: tuple[int, ...]) -> torch.Tensor:
    """The tensor itself if its strides differ only where that has no meaning, else a copy with
    these strides."""
    pairs = zip(tensor.shape, tensor.stride(), strides, strict=True)
    if tensor.numel() == 0 or all(n == 1 or a == b for n, a, b in pairs):
        return tensor
    return laid_out(tensor, strides)
