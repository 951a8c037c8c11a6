"""How tangents reach a compiled backward: in the memory order that it expects, and owned by it.

Place in the pipeline: used by `autograd_function.py` at every backward. The autograd engine holds
the tangents until a backward returns. Eager's nodes need one for an operator or two; a compiled
backward would keep the gradient of the logits, say, until the last parameter has its gradient. So a
large tangent without other holders is emptied, and its memory is moved into a tensor of the
backward's own, which frees it after its last use::

    mine = layout.fit_own(grads, 0)     # grads[0] may have no elements now
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Final, final

import torch

from weft._frame import is_lazy
from weft.aot.training.reference_counts import seen_in_backward
from weft.shapes.algebra.layout import row_major
from weft.shapes.tensor_layouts import memory_order
from weft.storable import storable

_LARGE: Final = 1 << 12
"""The least bytes of a tangent whose references are counted, which takes three microseconds."""


@storable
@final
@dataclass(frozen=True, slots=True)
class TangentLayout:
    """The memory order of a tangent that the compiled backward expects; makes zeros in that
    order."""

    order: tuple[int, ...] | None  # dimensions from the outermost; None: row-major
    back: tuple[int, ...]
    size: tuple[int, ...] | None  # None: the sizes change between calls
    strides: tuple[int, ...] | None  # in that order; None: as the size
    dtype: torch.dtype
    device: torch.device

    @staticmethod
    def of(value: torch.Tensor) -> TangentLayout:
        """The layout of a forward value."""
        order = memory_order(value.stride())
        back = order.inverse().order
        moved = None if order.is_identity else order.order
        size = tuple(value.shape) if all(type(n) is int for n in value.shape) else None
        strides = None
        if size is not None:
            steps = row_major([size[d] for d in order.order])
            strides = tuple(steps[k] for k in back)
        return TangentLayout(moved, back, size, strides, value.dtype, value.device)

    @property
    def is_small_row_major(self) -> bool:
        """Whether `fit_own` is `contiguous`, whatever the tangent is that has numbers in memory."""
        if self.order is not None or self.size is None:
            return False
        return prod(self.size) * self.dtype.itemsize < _LARGE

    def zeros(self, size: Sequence[int]) -> torch.Tensor:
        """Zeros for an absent tangent."""
        sizes = [size[d] for d in self.order or self.back]
        return torch.zeros(sizes, dtype=self.dtype, device=self.device).permute(self.back)

    def fit(self, tangent: torch.Tensor) -> torch.Tensor:
        """A tangent in that layout, with its numbers in memory."""
        if is_lazy(tangent):
            tangent = _with_numbers(tangent)
        if self.order is None:
            return tangent.contiguous()
        if tangent.stride() == self.strides:
            return tangent  # two permutations take ten microseconds
        return tangent.permute(self.order).contiguous().permute(self.back)

    def fit_own(self, grads: Sequence[torch.Tensor], k: int) -> torch.Tensor:
        """The tangent `grads[k]` in that layout; taken from the engine if that is worth it."""
        return self.fit(grads[k] if grads[k].nbytes < _LARGE else _take(grads, k))


def _with_numbers(tangent: torch.Tensor) -> torch.Tensor:
    """A tangent that autograd only marked as conjugated, negated (`y.conj().imag`) or zero
    (`y.sgn()`)."""
    tangent = tangent.resolve_conj().resolve_neg()
    return tangent.clone() if tangent._is_zerotensor() else tangent


def _take(grads: Sequence[torch.Tensor], k: int) -> torch.Tensor:
    """The tangent `grads[k]`, or a new tensor with its memory if only the engine holds it.

    `grads` are the arguments of a `backward`, as they came.
    """
    if type(grads[k]) is not torch.Tensor or grads[k].requires_grad or is_lazy(grads[k]):
        return grads[k]
    if _holders(grads, k) not in _holders_of_ours():
        return grads[k]
    mine = grads[k].data
    for tensor in (grads[k], grads[k]._base):
        if tensor is not None:
            tensor.data = tensor.new_empty(0)
    return mine


def _holders(grads: Sequence[torch.Tensor], k: int) -> tuple[int, ...]:
    """The numbers of references to a tangent, in C++ and in Python, and whether it is a view."""
    counts = grads[k]._use_count(), sys.getrefcount(grads[k])  # type: ignore[attr-defined]
    base = grads[k]._base
    if base is None:
        return counts
    return *counts, base._use_count(), sys.getrefcount(base)  # type: ignore[attr-defined]


@cache
def _holders_of_ours() -> list[tuple[int, ...]]:
    """The same for tangents that only the engine holds, measured in backwards."""
    # A tensor with its own memory, and a view.
    return [seen_in_backward(lambda ctx, grads: _holders(grads, 0), use)
            for use in (torch.exp, torch.squeeze)]
