"""float32 attention on CPUs by weft's own kernel, where ATen's is slow.

Place in the pipeline: part of `lowering/`. ATen's operator uses MKL; on machines where that is slow
(see `runtime/gemm_speed.py`) `runtime/attention.py` replaces it, with the same arguments, results
and layouts. Other cases (dropout, other types, few queries, odd head dimensions) stay with ATen.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from weft.codegen.lowering.extern import call_aten
from weft.codegen.lowering.registry import LoweringContext, NotLowered, lowering
from weft.codegen.values import Value
from weft.runtime.attention import attention_for
from weft.runtime.cpp_build import toolchain
from weft.runtime.gemm_speed import onednn_is_faster
from weft.shapes.algebra.expr import IntExpr

aten = torch.ops.aten

MIN_QUERIES: Final = 16
"""Fewer queries do not fill a block."""
VECTOR_BYTES: Final = 64
"""The kernel's register blocks are made for AVX-512."""
LANES: Final = 16
MAX_DIMENSION: Final = 256


@lowering(aten._scaled_dot_product_flash_attention_for_cpu.default)
def attention(
    cx: LoweringContext, q: Value, k: Value, v: Value, dropout_p: float = 0.0,
    is_causal: bool = False, *, attn_mask: Value | None = None, scale: float | None = None,
) -> list[Value | None]:
    """The result and the rows' log-sum-exp."""
    tensors = [t for t in (q, k, v, attn_mask) if t is not None]
    if dropout_p or not all(_is_suitable(t) for t in tensors):
        raise NotLowered
    dimension = q.shape[3]
    if not isinstance(dimension, int) or dimension % LANES or dimension > MAX_DIMENSION:
        raise NotLowered
    if not q.shape[:2] == k.shape[:2] == v.shape[:2]:  # grouped heads share keys
        raise NotLowered
    if _is_below(q.shape[2], MIN_QUERIES) or v.shape[3] != dimension:
        raise NotLowered
    if toolchain().vector_bytes != VECTOR_BYTES or not onednn_is_faster():
        raise NotLowered
    if not all(_rows_are_contiguous(t) for t in tensors):
        raise NotLowered
    cx.graph.extern_ops.append(str(cx.target))
    cx.target = attention_for(dimension)
    arguments: tuple[Any, ...] = (q, k, v, attn_mask, is_causal, scale)
    return call_aten(cx, arguments, {}, [0, 1], True)


def _is_suitable(value: Value) -> bool:
    return (
        value.device.type == "cpu" and value.dtype == torch.float32 and len(value.shape) == 4
    )


def _is_below(size: IntExpr, limit: int) -> bool:
    return isinstance(size, int) and size < limit


def _rows_are_contiguous(value: Value) -> bool:
    """Whether elements of the last dimension are adjacent (or there is one of them)."""
    placed = value.realize()
    return placed.strides[-1] == 1 or _is_below(placed.shape[-1], 2)
