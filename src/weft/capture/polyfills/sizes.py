"""Operators that only take plain sizes, written with operators that take symbolic ones.

Place in the pipeline: `handlers/size_forms.py` has capture interpret these where sizes are
symbolic; otherwise each size would be compiled for itself.
"""

from __future__ import annotations

from typing import Any

import torch

from weft._torch import check, check_is_size


def linspace(
    start: float, end: float, steps: int, *, dtype: torch.dtype | None = None, device: Any = None,
    requires_grad: bool = False,
) -> torch.Tensor:  # fmt: skip
    """`torch.linspace`: counted from the nearer end, as its kernels do."""
    dtype = dtype or torch.get_default_dtype()
    place = torch.arange(steps, device=device)
    step = (end - start) / torch.sym_max(steps - 1, 1)
    upward = start + place.to(dtype) * step
    downward = end - (steps - 1 - place).to(dtype) * step
    made = torch.where((place == 0) | (place < steps // 2), upward, downward)
    return made.requires_grad_() if requires_grad else made


def kron(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """`torch.kron`: all products of elements, those of `right` beside each other."""
    rank = max(left.dim(), right.dim())
    left = left.reshape((1,) * (rank - left.dim()) + tuple(left.shape))
    right = right.reshape((1,) * (rank - right.dim()) + tuple(right.shape))
    for dim in range(rank):
        left, right = left.unsqueeze(2 * dim + 1), right.unsqueeze(2 * dim)
    made = left * right
    return made.reshape([made.shape[2 * d] * made.shape[2 * d + 1] for d in range(rank)])


def one_hot(index: torch.Tensor) -> torch.Tensor:
    """`torch.nn.functional.one_hot` of as many classes as the data has."""
    check(index.min().item() >= 0, lambda: "Class values must be non-negative.")
    classes = index.max().item() + 1
    check_is_size(classes)
    return (index.unsqueeze(-1) == torch.arange(classes, device=index.device)).to(torch.int64)
