"""What is known of the memory of a tensor, which may have symbolic sizes, without a guard.

Place in the pipeline: above `symnode.py`; aot and capture ask it about fakes. The formulas are in
`algebra/layout.py`, memory orders are permutations of `algebra/views.py`::

    memory_order((1, 8)).order      # (1, 0): a transposed matrix
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from weft.shapes.algebra import layout
from weft.shapes.algebra.views import Permute
from weft.shapes.symnode import expr_of, hint


def memory_order(strides: Sequence[object]) -> Permute:
    """The view of a tensor whose dimensions are in the order of its memory, from the outermost to
    the innermost."""
    steps = [hint(s) for s in strides]
    return Permute(tuple(sorted(range(len(steps)), key=lambda d: (-steps[d], d))))


def span(size: Sequence[Any], stride: Sequence[Any]) -> Any:
    """The number of elements from the first one to behind the last one in memory."""
    return 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))


def may_overlap(tensor: torch.Tensor) -> bool:
    """Whether elements may share memory: a stride is smaller than the extent of the inner
    dimensions."""
    reach = 0
    for d in reversed(memory_order(tensor.stride()).order):
        step, size = hint(tensor.stride(d)), hint(tensor.size(d))
        if size > 1 and step <= reach:
            return True
        reach += (size - 1) * step
    return False


def is_row_major(tensor: torch.Tensor) -> bool:
    """Whether a tensor is known to be contiguous."""
    return _is_contiguous(tensor.size(), tensor.stride())


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether a tensor is known to be contiguous with its dimensions in memory order: its elements
    leave no gap and no overlap."""
    order = memory_order(tensor.stride()).order
    return _is_contiguous([tensor.size(d) for d in order], [tensor.stride(d) for d in order])


def _is_contiguous(
    size: Sequence[int | torch.SymInt], stride: Sequence[int | torch.SymInt]
) -> bool:
    symbolic = next((n for n in (*size, *stride) if isinstance(n, torch.SymInt)), None)
    condition = layout.is_contiguous([expr_of(n) for n in size], [expr_of(n) for n in stride])
    if symbolic is None or isinstance(condition, bool):
        return condition is True
    return symbolic.node.shape_env.decide(condition) is True


def is_channels_last(tensor: torch.Tensor) -> bool:
    """Whether images, or volumes, have their channels next to each other and are not row-major."""
    image_format = torch.channels_last if tensor.dim() == 4 else torch.channels_last_3d
    return tensor.is_contiguous(memory_format=image_format) and not tensor.is_contiguous()
