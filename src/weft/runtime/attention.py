"""Scaled dot product attention for float32 on CPUs, compiled for the head dimension.

Place in the pipeline: called by generated call sequences in place of ATen's operator, which
multiplies with MKL (see `gemm_speed.py`); chosen by `codegen/lowering/attention.py`.

    attend = attention_for(64)             # starts the compiler; waits for it at the first call
    out, lse = attend(q, k, v, mask, causal, scale)
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Final, final

import torch

from weft._cpu import Kernel
from weft.runtime.compile_pool import submit
from weft.runtime.launcher import kernel_of

_SOURCE: Final = """#include "attention.h"
extern "C" __attribute__((visibility("default")))
int weft_kernel(void* const* buffers, const int64_t* sizes) {{
  return weft::attention<{dimension}>(buffers, sizes);
}}
"""
_BUFFERS: Final = 6
_SIZES: Final = 21


@final
class Attention:
    """softmax(q k^T * scale + mask) v on tensors [batch, head, position, dimension]."""

    def __init__(self, dimension: int) -> None:
        (self._object,) = submit([_SOURCE.format(dimension=dimension)])
        self._kernel: Kernel | None = None
        self.__name__ = f"attention{dimension}"

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None,
        causal: bool, scale: float | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The result, laid out [batch, position, head, dimension], and the log-sum-exp of the
        rows."""
        batches, heads, queries, dimension = q.shape
        out = q.new_empty((batches, queries, heads, dimension)).transpose(1, 2)
        lse = q.new_empty((batches, queries, heads)).transpose(1, 2)
        columns = mask is not None and mask.shape[-1] > 1
        flags = bool(causal) | (mask is not None) << 1 | columns << 2
        factor = dimension**-0.5 if scale is None else scale
        (scale_bits,) = struct.unpack("<i", struct.pack("<f", factor))
        kernel = self._kernel or self._load()
        kernel(
            q, k, v, q if mask is None else mask, out, lse,
            batches, heads, queries, k.shape[2], flags, scale_bits,
            *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
            *((0, 0, 0) if mask is None else _mask_strides(mask)), *out.stride()[:3],
        )
        return out, lse

    def _load(self) -> Kernel:
        self._kernel = kernel_of(
            self._object, buffers=_BUFFERS, sizes=_SIZES, name=self.__name__)
        return self._kernel


def _mask_strides(mask: torch.Tensor) -> tuple[int, ...]:
    """Strides of batch, head and query, 0 where the mask is broadcast."""
    pairs = zip(mask.shape[:3], mask.stride()[:3], strict=True)
    return tuple(0 if size == 1 else stride for size, stride in pairs)


@cache
def attention_for(dimension: int) -> Attention:
    """The compiled operator for a head dimension."""
    return Attention(dimension)
