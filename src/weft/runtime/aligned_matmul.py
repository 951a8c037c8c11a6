"""Half-precision matrix products on GPUs whose columns or depth are not a multiple of eight.

Place in the pipeline: a call sequence calls `aligned_mm` or `depth_in_two` where
`codegen/calls/gemm_calls.py` found such a product (a language model's head over 50257 tokens, and
the gradient of what goes into it).

cuBLAS stores rows that do not start at a multiple of 16 bytes with slow kernels: four to eight
times slower on an H200 (4096 x 768 by 768 x 50257 in bfloat16: 3.4 ms). Two ways around:

- *rows in groups*: rows i, i + 8, i + 16, … start at equal positions modulo 16 bytes. Each such
  group is one product straight into the result's memory, from the first aligned column to the last
  whole eight; the few columns at either edge are computed apart and copied (0.53 ms).
- *blocks of columns*: each block is computed into one aligned buffer that stays in the L2 cache and
  copied into place (1.04 ms): for products too small for eight calls, with a bias, or with a right
  matrix whose rows are not aligned themselves.
"""

from __future__ import annotations

import math
from typing import Final

import torch
import torch.nn.functional as F

ALIGNMENT: Final = 8
"""Half-precision elements in 16 bytes, to which rows are aligned."""
SHORT: Final = 512
"""Rows up to this length are multiplied by one call; rows of odd length, up to a quarter of it."""
MIN_GROUPED_PRODUCTS: Final = 1 << 33
"""Multiplications from which groups of rows are faster than blocks of columns."""
SMALLEST_BLOCK: Final = 2048
"""Columns a block: enough to fill the GPU with the rows that `gemm_calls` asks for."""
BLOCKS: Final = 12
"""Blocks that a wide product is cut into: fewer would cost memory, more would cost launches."""


def is_worth_pieces(length: int) -> bool:
    """Whether a product with rows of such a length, no multiple of eight, is faster in pieces.

    On an H200 (M 4096 to 24576, K 384 to 1024; us): length 196 with a bias 34 as one, 40 in pieces;
    197: 78, 51; 577: 160, 75; 1004: 60, 52; 50257: 4536, 1264.
    """
    return length > SHORT or (length % 2 == 1 and length > SHORT // 4)


@torch.no_grad()  # `out=` refuses operands that require gradients
def aligned_mm(
    left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """`left @ right (+ bias)`: left [M, K], right [K, N], bias [N] or None; returns [M, N],
    row-major.
    """
    products = left.shape[0] * left.shape[1] * right.shape[1]
    if bias is None and products >= MIN_GROUPED_PRODUCTS and _can_group(left, right):
        return grouped_rows(left, right)
    return column_blocks(left, right, bias)


@torch.no_grad()
def depth_in_two(
    left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """`left @ right (+ bias)` for aligned rows of an odd length K: the last K % 8 products first,
    to which the library adds the others."""
    whole = left.shape[1] // ALIGNMENT * ALIGNMENT
    ends = left[:, whole:], right[whole:]
    rest = torch.mm(*ends) if bias is None else torch.addmm(bias, *ends)
    return torch.addmm(rest, left[:, :whole], right[:whole])


def _can_group(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether all rows of the left and all columns of the right matrix are aligned in memory."""
    row, column = left.stride(0), right.stride(1)
    starts = left.data_ptr() | right.data_ptr()
    unit = left.stride(1) == right.stride(0) == 1
    return unit and not (row % ALIGNMENT or column % ALIGNMENT or starts % 16)


def grouped_rows(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """The product by groups of rows with equal alignment."""
    rows, columns = left.shape[0], right.shape[1]
    result = left.new_empty(rows, columns)
    groups = ALIGNMENT // math.gcd(columns, ALIGNMENT)
    for first in range(groups):
        start = -first * columns % ALIGNMENT
        stop = start + (columns - start) // ALIGNMENT * ALIGNMENT
        part = result[first::groups, start:stop]
        torch.mm(left[first::groups], right[:, start:stop], out=part)
    edge = ALIGNMENT - 1
    result[:, :edge].copy_(torch.mm(left, right[:, :ALIGNMENT])[:, :edge])
    result[:, -edge:].copy_(torch.mm(left, right[:, -ALIGNMENT:])[:, -edge:])
    return result


def column_blocks(
    left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None
) -> torch.Tensor:
    """The product block by block; the extra memory is about a twelfth of the result (for a narrow
    one up to its size)."""
    columns = right.shape[1]
    width = max(SMALLEST_BLOCK, _rounded_up(-(-columns // BLOCKS), 256))
    width = min(width, _rounded_up(columns, ALIGNMENT))
    result = left.new_empty(left.shape[0], columns)
    buffer = left.new_empty(left.shape[0], width)
    for start in range(0, columns, width):
        block = _align(right[:, start : start + width])
        part = buffer if block.shape[1] == width else buffer[:, : block.shape[1]]
        if bias is None:
            torch.mm(left, block, out=part)
        else:
            torch.addmm(_pad(bias[start : start + width]), left, block, out=part)
        result[:, start : start + width].copy_(part[:, : columns - start])
    return result


def _rounded_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _align(block: torch.Tensor) -> torch.Tensor:
    """The block with its columns padded to the alignment and its memory in order."""
    if block.shape[1] % ALIGNMENT:
        return F.pad(block.t(), (0, 0, 0, -block.shape[1] % ALIGNMENT)).t()
    return block if block.stride(0) == 1 else block.contiguous()


def _pad(bias: torch.Tensor) -> torch.Tensor:
    return F.pad(bias, (0, -bias.shape[0] % ALIGNMENT))
