"""Half-precision matrix products on GPUs whose number of columns is not a multiple of eight.

Place in the pipeline: a call sequence calls `aligned_mm` where `codegen/gemm_calls.py` found such a
product (a language model's head over 50257 tokens).

cuBLAS stores rows that do not start at a multiple of 16 bytes with slow kernels: four to eight
times slower on an H200. Here each block of columns is computed into an aligned buffer and copied
into place. The extra memory is one block: at most a few per cent of the result.
"""

from __future__ import annotations

from typing import Final

import torch
import torch.nn.functional as F

ALIGNMENT: Final = 8
"""Elements of two bytes in 16 bytes."""
BLOCK: Final = 2048
"""Columns a block: enough to fill the GPU with the rows that `gemm_calls` asks for."""


def aligned_mm(
    left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """`left @ right (+ bias)`: left [M, K], right [K, N], bias [N] or None; returns [M, N],
    row-major.
    """
    columns = right.shape[1]
    result = left.new_empty(left.shape[0], columns)
    for start in range(0, columns, BLOCK):
        block = _aligned(right[:, start : start + BLOCK])
        if bias is None:
            part = torch.mm(left, block)
        else:
            part = torch.addmm(_padded(bias[start : start + BLOCK]), left, block)
        result[:, start : start + BLOCK].copy_(part[:, : columns - start])
    return result


def _aligned(block: torch.Tensor) -> torch.Tensor:
    """The block with its columns padded to the alignment and its memory in order."""
    if block.shape[1] % ALIGNMENT:
        return F.pad(block.t(), (0, 0, 0, -block.shape[1] % ALIGNMENT)).t()
    return block if block.stride(0) == 1 else block.contiguous()


def _padded(bias: torch.Tensor) -> torch.Tensor:
    return F.pad(bias, (0, -bias.shape[0] % ALIGNMENT))
