"""Operators that only take plain sizes, written with operators that take symbolic ones.

Place in the pipeline: interpreted if sizes are symbolic (`size_rules.py`); otherwise
each size would be compiled separately. Parameters that a function lacks and arguments for which it
returns NotImplemented (and so `Any`) are left to the operator.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from weft._torch import assert_async, check, check_is_size


def linspace(
    start: float, end: float, steps: int, *, dtype: torch.dtype | None = None, device: Any = None,
    requires_grad: bool = False,
) -> object:
    """`torch.linspace`, counted from the nearer end as its kernels do."""
    dtype = dtype or torch.get_default_dtype()
    if isinstance(start, torch.Tensor) or isinstance(end, torch.Tensor) or (
            not dtype.is_floating_point or dtype.itemsize < 4):
        return NotImplemented
    place = torch.arange(steps, device=device)
    step = (end - start) / torch.sym_max(steps - 1, 1)
    upward = start + place.to(dtype) * step
    downward = end - (steps - 1 - place).to(dtype) * step
    steps_from_ends = torch.where((place == 0) | (place < steps // 2), upward, downward)
    return steps_from_ends.requires_grad_() if requires_grad else steps_from_ends


def kron(input: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """`torch.kron`: the products of all elements, with those of `other` adjacent."""
    rank = max(input.dim(), other.dim())
    left = input.reshape((1,) * (rank - input.dim()) + tuple(input.shape))
    right = other.reshape((1,) * (rank - other.dim()) + tuple(other.shape))
    for dim in range(rank):
        left, right = left.unsqueeze(2 * dim + 1), right.unsqueeze(2 * dim)
    outer = left * right
    return outer.reshape([outer.shape[2 * d] * outer.shape[2 * d + 1] for d in range(rank)])


def pad_sequence(
    sequences: Any, batch_first: bool = False, padding_value: float = 0.0,
    padding_side: str = "right",
) -> object:
    """`torch.nn.utils.rnn.pad_sequence` of tensors of one type."""
    first = sequences[0]
    if not all(sequence.dim() and (sequence.dtype, sequence.device) == (first.dtype, first.device)
               for sequence in sequences):
        return NotImplemented
    longest = first.shape[0]
    for sequence in sequences:
        longest = torch.sym_max(longest, sequence.shape[0])
    rows = []
    for sequence in sequences:
        missing = longest - sequence.shape[0]
        ends = (0, missing) if padding_side == "right" else (missing, 0)
        rows.append(F.pad(sequence, (0, 0) * (sequence.dim() - 1) + ends, value=padding_value))
    return torch.stack(rows, 0 if batch_first else 1)


def one_hot_of(input: torch.Tensor, num_classes: int) -> torch.Tensor:
    """`torch.nn.functional.one_hot` with a symbolic number of classes."""
    check(num_classes > 0, lambda: "Class values must be smaller than num_classes.")
    zeros = input.new_zeros((*input.shape, num_classes))
    return zeros.scatter_(-1, input.unsqueeze(-1), 1)


def checked_one_hot(input: torch.Tensor, num_classes: int) -> torch.Tensor:
    """`torch.nn.functional.one_hot` with the checks of its CPU kernel."""
    assert_async((input >= 0).all(), "Class values must be non-negative.")
    assert_async((input < num_classes).all(), "Class values must be smaller than num_classes.")
    return _row_major_ints(input.unsqueeze(-1) == torch.arange(num_classes))


def _row_major_ints(mask: torch.Tensor) -> torch.Tensor:
    return mask.to(torch.int64, memory_format=torch.contiguous_format)


def one_hot(input: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """`torch.nn.functional.one_hot` with as many classes as the data has."""
    check(input.min().item() >= 0, lambda: "Class values must be non-negative.")
    classes = input.max().item() + 1
    check_is_size(classes)
    return _row_major_ints(input.unsqueeze(-1) == torch.arange(classes, device=input.device))


def cov(input: torch.Tensor, *, correction: int = 1) -> torch.Tensor:
    """`torch.cov` without weights, of more observations than the correction."""
    rows = input if input.dim() == 2 else input.view(1, -1)
    count = rows.shape[1]
    centred = rows - (rows.sum(1) / count).unsqueeze(1)
    return (centred.mm(centred.t().conj()) / (count - correction)).squeeze()


def corrcoef(input: torch.Tensor) -> object:
    """`torch.corrcoef` of real numbers."""
    if not input.is_floating_point() or input.dim() not in (1, 2):
        return NotImplemented
    shared = torch.cov(input)
    if shared.dim() == 0:
        return shared / shared
    deviation = shared.diag().sqrt()
    return (shared / deviation.view(-1, 1) / deviation.view(1, -1)).clip(-1, 1)


def max_pool1d(
    input: torch.Tensor, kernel_size: object, stride: object = None, padding: object = 0,
    dilation: object = 1,
    ceil_mode: bool = False,
) -> torch.Tensor:
    """`torch.max_pool1d` as pooling of images with one row; without gradients CPUs return plain
    rows."""
    kernel, step, pad, gap = map(_only, (kernel_size, stride or kernel_size, padding, dilation))
    differentiable = input.requires_grad and torch.is_grad_enabled()
    if input.device.type == "cpu" and not differentiable:
        # As rows they have the strides of rows, also where sizes of 1 leave a choice.
        input = input.contiguous().flatten().view(input.shape)
    rows = input.unsqueeze(-2)
    pooled = torch.max_pool2d(rows, (1, kernel), (1, step), (0, pad), (1, gap), ceil_mode)
    return pooled.squeeze(-2)


def _only(number: object) -> Any:
    """A number, or the only number of a sequence."""
    return number[0] if isinstance(number, (tuple, list)) else number


def affine_grid_generator(
    theta: torch.Tensor, size: list[int], align_corners: bool
) -> torch.Tensor:
    """`torch.affine_grid_generator`, whose derivative takes plain sizes only."""
    batch, space = size[0], list(size[2:])
    rank = len(space)
    columns = [torch.ones(space, dtype=theta.dtype, device=theta.device)]
    for dim in range(rank):  # the innermost dimension comes first
        shape = [space[d] if d == dim else 1 for d in range(rank)]
        columns.insert(0, _centres(theta, space[dim], align_corners).view(shape).expand(space))
    points = torch.stack(columns, -1).view(1, -1, rank + 1).expand(batch, -1, -1)
    return points.bmm(theta.transpose(1, 2)).view([batch, *space, rank])


def _centres(like: torch.Tensor, steps: int, align_corners: bool) -> torch.Tensor:
    """Positions between -1 and 1: from end to end, or the centres of equal parts."""
    if steps <= 1:
        return torch.zeros(1, dtype=like.dtype, device=like.device)
    ends = torch.linspace(-1, 1, steps, dtype=like.dtype, device=like.device)
    return ends if align_corners else ends * ((steps - 1) / steps)


def adaptive_avg_pool1d(input: torch.Tensor, output_size: object) -> torch.Tensor:
    """`torch.adaptive_avg_pool1d` as pooling of images with one row."""
    rows = F.adaptive_avg_pool2d(input.unsqueeze(-2), (1, _only(output_size)))
    return rows.squeeze(-2)


def fill_diagonal_(input: torch.Tensor, fill_value: Any, wrap: bool = False) -> object:
    """`Tensor.fill_diagonal_` of a matrix, without wrapping."""
    if wrap or input.dim() != 2:
        return NotImplemented
    input.diagonal().fill_(fill_value)
    return input


def diagonal(
    input: torch.Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> torch.Tensor:
    """`torch.diagonal`: the main diagonal after dropping the first columns or rows."""
    dim, first = (dim2, offset) if offset >= 0 else (dim1, -offset)
    first = torch.sym_min(first, input.shape[dim])
    return input.narrow(dim, first, input.shape[dim] - first).diagonal(0, dim1, dim2)


def unfold(input: torch.Tensor, dimension: int, size: int, step: int) -> torch.Tensor:
    """`Tensor.unfold`: windows that overlap in memory."""
    sizes, strides = list(input.shape), list(input.stride())
    length, stride = sizes[dimension], strides[dimension]
    check(size <= length, lambda: f"maximum size for tensor at dimension {dimension} is {length}")
    check(step > 0, lambda: f"step is {step} but must be > 0")
    sizes[dimension], strides[dimension] = (length - size) // step + 1, stride * step
    return input.as_strided([*sizes, size], [*strides, stride])


def triu_indices(
    row: int, col: int, offset: int = 0, *, dtype: torch.dtype = torch.int64, device: Any = None
) -> torch.Tensor:
    """`torch.triu_indices`: the positions on and above a diagonal, row by row."""
    first = (torch.arange(row, device=device) + offset).clamp(min=0)
    lengths = (col - first).clamp(min=0)
    return _places(first, lengths, _above(row, col, offset)).to(dtype)


def tril_indices(
    row: int, col: int, offset: int = 0, *, dtype: torch.dtype = torch.int64, device: Any = None
) -> torch.Tensor:
    """`torch.tril_indices`: the positions on and below a diagonal, row by row."""
    lengths = (torch.arange(row, device=device) + offset + 1).clamp(min=0, max=col)
    count = row * col - _above(row, col, offset + 1)
    return _places(torch.zeros_like(lengths), lengths, count).to(dtype)


def combinations(
    input: torch.Tensor, r: int = 2, with_replacement: bool = False
) -> object:
    """`torch.combinations` of two."""
    if r != 2 or input.dim() != 1:
        return NotImplemented
    count = input.shape[0]
    places = torch.triu_indices(count, count, int(not with_replacement), device=input.device)
    return torch.stack([input[places[0]], input[places[1]]], 1)


def block_diag(*tensors: torch.Tensor) -> object:
    """`torch.block_diag`: each row is zeros, a block, and zeros."""
    if not all(isinstance(tensor, torch.Tensor) and tensor.dim() <= 2 for tensor in tensors):
        return NotImplemented
    blocks = [torch.atleast_2d(tensor) for tensor in tensors]
    left, right, rows = 0, sum(block.shape[1] for block in blocks), []
    for block in blocks:
        right = right - block.shape[1]
        rows.append(F.pad(block, (left, right)))
        left = left + block.shape[1]
    return torch.cat(rows)


def _above(row: int, col: int, offset: int) -> int:
    """The number of positions on and above a diagonal: full rows, then shorter and shorter ones."""
    whole = torch.sym_min(torch.sym_max(-offset, 0), row)
    longest = torch.sym_max(col - torch.sym_max(offset, 0), 0)
    rows = torch.sym_min(row - whole, longest)
    count: int = whole * col + rows * (2 * longest - rows + 1) // 2
    return count


def _places(first: torch.Tensor, lengths: torch.Tensor, count: int) -> torch.Tensor:
    """Row and column of each position, given the rows' first columns and their lengths."""
    place, ends = torch.arange(count, device=first.device), lengths.cumsum(0)
    row = torch.searchsorted(ends, place, right=True)
    return torch.stack([row, place - (ends - lengths - first)[row]])


def fft_fftfreq(
    n: int, d: float = 1.0, *, dtype: torch.dtype | None = None, device: Any = None
) -> torch.Tensor:
    """`torch.fft.fftfreq`: the second half of the frequencies is negative."""
    place = torch.arange(n, device=device)
    place = torch.where(place < (n + 1) // 2, place, place - n)
    return place.to(dtype or torch.get_default_dtype()) * (1.0 / (n * d))


def fft_rfftfreq(
    n: int, d: float = 1.0, *, dtype: torch.dtype | None = None, device: Any = None
) -> torch.Tensor:
    """`torch.fft.rfftfreq`."""
    place = torch.arange(n // 2 + 1, device=device)
    return place.to(dtype or torch.get_default_dtype()) * (1.0 / (n * d))


def hann_window(
    window_length: int, periodic: bool = True, *, dtype: torch.dtype | None = None,
    device: object = None,
) -> torch.Tensor:
    """`torch.hann_window`."""
    return hamming_window(window_length, periodic, 0.5, 0.5, dtype=dtype, device=device)


def hamming_window(
    window_length: int, periodic: bool = True, alpha: float = 0.54, beta: float = 0.46, *,
    dtype: torch.dtype | None = None, device: Any = None,
) -> torch.Tensor:
    """`torch.hamming_window`."""
    dtype = dtype or torch.get_default_dtype()
    place = torch.arange(window_length, device=device).to(dtype)
    if window_length <= 1:
        return torch.ones_like(place)
    steps = window_length if periodic else window_length - 1
    return alpha - beta * torch.cos(place * (2 * math.pi / steps))


def vander(x: torch.Tensor, N: Any = None, increasing: bool = False) -> object:
    """`torch.vander`: powers of each element."""
    if x.dim() != 1:
        return NotImplemented
    count = x.shape[0] if N is None else N
    ones = x.new_ones((x.shape[0], 1))
    powers = torch.cat([ones, x.unsqueeze(1).expand(-1, count - 1)], 1).cumprod(1)
    return powers if increasing else powers.flip(1)


def gradient(
    input: torch.Tensor, *, spacing: float = 1.0, dim: Any = None
) -> Any:
    """`torch.gradient` of evenly spaced samples: differences, one-sided at the ends."""
    if type(spacing) not in (int, float) or not input.is_floating_point():
        return NotImplemented
    if dim is None:
        dim = range(input.dim())
    return tuple(
        [_differences(input, d, spacing) for d in (dim if not isinstance(dim, int) else (dim,))])


def _differences(x: torch.Tensor, dim: int, spacing: float) -> torch.Tensor:
    n = x.shape[dim]
    check(n >= 2, lambda: "torch.gradient expected each dimension size to be at least edge_order+1")
    start = (x.narrow(dim, 1, 1) - x.narrow(dim, 0, 1)) / spacing
    middle = (x.narrow(dim, 2, n - 2) - x.narrow(dim, 0, n - 2)) / spacing / 2
    end = (x.narrow(dim, n - 1, 1) - x.narrow(dim, n - 2, 1)) / spacing
    return torch.cat([start, middle, end], dim)


def take_along_dim(
    input: torch.Tensor, indices: torch.Tensor, dim: int | None = None
) -> object:
    """`torch.take_along_dim`: `gather` of tensors broadcast in the other dimensions. Along one of
    these, an index counts from the end as often as it has to."""
    if not isinstance(indices, torch.Tensor):
        return NotImplemented
    if dim is None:
        return input.reshape(-1).gather(0, indices.reshape(-1))
    dim = dim % input.dim()
    own, wanted = list(input.shape), list(indices.shape)
    own[dim] = wanted[dim] = 1
    common = list(torch.broadcast_shapes(own, wanted))
    own[dim], wanted[dim] = input.shape[dim], indices.shape[dim]
    rows = input.expand([*common[:dim], own[dim], *common[dim + 1 :]])
    places = indices.expand([*common[:dim], wanted[dim], *common[dim + 1 :]])
    return rows.gather(dim, places.remainder(input.shape[dim]))


def masked_select(input: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """`torch.masked_select`, whose derivative takes plain sizes only; that of indexing takes
    symbolic ones."""
    input, mask = torch.broadcast_tensors(input, mask)
    return input[mask]


class _Products(torch.autograd.Function):
    """`torch.cumprod` with a derivative whose number of steps does not depend on the length."""

    @staticmethod
    def forward(ctx: Any, input: torch.Tensor, dim: int) -> torch.Tensor:
        products = torch.cumprod(input, dim)
        ctx.save_for_backward(input, products)
        ctx.dim = dim
        return products

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        (gradient,), dim = gradients, ctx.dim
        input, products = ctx.saved_tensors
        zero = input == 0
        first = zero & (zero.cumsum(dim) == 1)
        without = torch.cumprod(input.masked_fill(first, 1), dim)  # the product of the others
        at_zero = _sums_to_the_end(gradient * without, dim)
        elsewhere = _sums_to_the_end(gradient * products, dim) / input.masked_fill(zero, 1)
        return torch.where(first, at_zero, elsewhere.masked_fill(zero, 0)), None


def _sums_to_the_end(x: torch.Tensor, dim: int) -> torch.Tensor:
    return x.flip(dim).cumsum(dim).flip(dim)


def cumprod(input: torch.Tensor, dim: int) -> Any:
    """`torch.cumprod`, whose derivative in C++ has steps for each item: one graph for each
    length."""
    if not (torch.is_grad_enabled() and input.requires_grad and type(dim) is int
            and -input.dim() <= dim < input.dim()
            and input.dtype in (torch.float32, torch.float64)):
        return NotImplemented
    products: torch.Tensor = _Products.apply(input, dim)  # type: ignore[no-untyped-call]
    return products


def lerp(input: torch.Tensor, end: torch.Tensor, weight: float) -> object:
    """`torch.lerp` by a number."""
    if not input.is_floating_point():
        return NotImplemented
    return torch.lerp(input, end, torch.full((), weight, dtype=input.dtype, device=input.device))


def lerp_(input: torch.Tensor, end: torch.Tensor, weight: float) -> object:
    """`Tensor.lerp_` by a number."""
    if not input.is_floating_point():
        return NotImplemented
    return input.lerp_(end, torch.full((), weight, dtype=input.dtype, device=input.device))


def matrix_norm(
    input: torch.Tensor, ord: Any = "fro", dim: Any = (-2, -1), keepdim: bool = False
) -> object:  # fmt: skip
    """`torch.linalg.matrix_norm`: the root of the sum of squares, the greatest or least sum of the
    absolute values in a column (1, -1) or row (inf, -inf)."""
    if ord not in ("fro", 1, -1, math.inf, -math.inf) or not input.is_floating_point():
        return NotImplemented
    norm: torch.Tensor
    if ord == "fro":
        norm = torch.linalg.vector_norm(input, 2, dim, keepdim)
        return norm
    within, over = dim if abs(ord) == 1 else (dim[1], dim[0])
    sums = input.abs().sum(within, keepdim=True)
    norm = sums.amax(over, keepdim=True) if ord > 0 else sums.amin(over, keepdim=True)
    return norm if keepdim else norm.squeeze(dim)


def pow(input: Any, exponent: Any) -> Any:
    """`torch.pow` of a tensor and a number; the derivative in C++ takes plain numbers only."""
    x = exponent if isinstance(exponent, torch.Tensor) else input
    if not (isinstance(x, torch.Tensor) and x.is_floating_point() and x.requires_grad
            and torch.is_grad_enabled()):
        return NotImplemented
    if x is exponent:
        input = torch.full((), input, dtype=exponent.dtype, device=exponent.device)
    else:
        exponent = torch.full((), exponent, dtype=input.dtype, device=input.device)
    return torch.pow(input, exponent)
