"""Operators that only take plain sizes, written with operators that take symbolic ones.

Place in the pipeline: `handlers/size_forms.py` has capture interpret these where sizes are
symbolic; otherwise each size would be compiled for itself.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

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


def pad_sequence(
    sequences: Any, batch_first: bool = False, padding_value: float = 0.0,
    padding_side: str = "right",
) -> torch.Tensor:  # fmt: skip
    """`torch.nn.utils.rnn.pad_sequence` of tensors of one type."""
    longest = sequences[0].shape[0]
    for one in sequences:
        longest = torch.sym_max(longest, one.shape[0])
    rows = []
    for one in sequences:
        missing = longest - one.shape[0]
        ends = (0, missing) if padding_side == "right" else (missing, 0)
        rows.append(F.pad(one, (0, 0) * (one.dim() - 1) + ends, value=padding_value))
    return torch.stack(rows, 0 if batch_first else 1)


def one_hot_of(index: torch.Tensor, num_classes: int) -> torch.Tensor:
    """`torch.nn.functional.one_hot` of a number of classes that is not plain."""
    check(num_classes > 0, lambda: "Class values must be smaller than num_classes.")
    made = index.new_zeros((*index.shape, num_classes))
    return made.scatter_(-1, index.unsqueeze(-1), 1)


def one_hot(index: torch.Tensor) -> torch.Tensor:
    """`torch.nn.functional.one_hot` of as many classes as the data has."""
    check(index.min().item() >= 0, lambda: "Class values must be non-negative.")
    classes = index.max().item() + 1
    check_is_size(classes)
    return (index.unsqueeze(-1) == torch.arange(classes, device=index.device)).to(torch.int64)


def cov(input: torch.Tensor, correction: int = 1) -> torch.Tensor:
    """`torch.cov` of more observations than the correction, without weights."""
    rows = input if input.dim() == 2 else input.view(1, -1)
    count = rows.shape[1]
    centred = rows - (rows.sum(1) / count).unsqueeze(1)
    return (centred.mm(centred.t().conj()) / (count - correction)).squeeze()


def corrcoef(input: torch.Tensor) -> torch.Tensor:
    """`torch.corrcoef` of real numbers."""
    shared = torch.cov(input)
    if shared.dim() == 0:
        return shared / shared
    deviation = shared.diag().sqrt()
    return (shared / deviation.view(-1, 1) / deviation.view(1, -1)).clip(-1, 1)


def max_pool1d(
    input: torch.Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False,
) -> torch.Tensor:  # fmt: skip
    """`torch.max_pool1d`: of images of one row; without gradients CPUs write plain rows."""
    kernel, step, pad, gap = map(_only, (kernel_size, stride or kernel_size, padding, dilation))
    differentiable = input.requires_grad and torch.is_grad_enabled()
    if input.device.type == "cpu" and not differentiable:
        input = input.contiguous()
    rows = input.unsqueeze(-2)
    pooled = torch.max_pool2d(rows, (1, kernel), (1, step), (0, pad), (1, gap), ceil_mode)
    return pooled.squeeze(-2)


def _only(number: Any) -> Any:
    """A number, or the one number of a sequence."""
    return number[0] if isinstance(number, (tuple, list)) else number


def affine_grid_generator(
    theta: torch.Tensor, size: list[int], align_corners: bool
) -> torch.Tensor:  # fmt: skip
    """`torch.affine_grid_generator`: its derivative takes plain sizes only."""
    batch, space = size[0], list(size[2:])
    rank = len(space)
    columns = [torch.ones(space, dtype=theta.dtype, device=theta.device)]
    for dim in range(rank):  # the innermost dimension comes first
        shape = [space[d] if d == dim else 1 for d in range(rank)]
        columns.insert(0, _centres(theta, space[dim], align_corners).view(shape).expand(space))
    points = torch.stack(columns, -1).view(1, -1, rank + 1).expand(batch, -1, -1)
    return points.bmm(theta.transpose(1, 2)).view([batch, *space, rank])


def _centres(like: torch.Tensor, steps: int, align_corners: bool) -> torch.Tensor:
    """Positions between -1 and 1: of both ends, or of the middles of equal parts."""
    if steps <= 1:
        return torch.zeros(1, dtype=like.dtype, device=like.device)
    ends = torch.linspace(-1, 1, steps, dtype=like.dtype, device=like.device)
    return ends if align_corners else ends * ((steps - 1) / steps)
