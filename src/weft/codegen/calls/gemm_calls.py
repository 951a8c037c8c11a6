"""Matrix products by another library call, if that is faster than ATen's default.

Place in the pipeline: tried by `library_calls.py` before it writes `mm` and `addmm`.

- CPU, float32, enough work: `addmm(bias, x, w.T)` becomes oneDNN's
  `mkldnn._linear_pointwise(x, w, bias, "none", [], "")`.
- GPU, half precision, a number of columns that is no multiple of eight: `aligned_mm`; an odd depth
  with aligned rows (`passes/pad_rows.py`): `depth_in_two`.
"""

from __future__ import annotations

from typing import Final

import torch

from weft.codegen.calls.call_sequence import CallSequence, is_whole
from weft.codegen.lowering.onednn import is_for_onednn, operands_of, products
from weft.codegen.values import ExternCall, Strided
from weft.runtime.aligned_matmul import ALIGNMENT, aligned_mm, depth_in_two, is_worth_pieces
from weft.runtime.gemm_speed import linear_or_empty
from weft.runtime.onednn import LinearPacking, onednn_linear

aten = torch.ops.aten

MIN_UNALIGNED_PRODUCTS: Final = 1 << 30
"""Multiplications below which computing block by block does not pay on a GPU."""


def spell_gemm(sequence: CallSequence, call: ExternCall) -> str | None:
    """A faster call with the same result, or None if ATen's own is right."""
    operands = operands_of(call)
    if operands is None:
        return None
    left, right, bias = operands
    if left.buffer.device.type == "cuda":
        return _spell_aligned(sequence, left, right, bias)
    return _spell_onednn(sequence, call, left, right, bias)


def _spell_aligned(
    sequence: CallSequence, left: Strided, right: Strided, bias: Strided | None
) -> str | None:
    """Half-precision products for which cuBLAS has slow kernels: the length of the result's rows,
    or of those of an aligned left matrix, is no multiple of eight."""
    depth, columns = right.shape
    half = left.buffer.dtype in (torch.float16, torch.bfloat16)
    if not half or not isinstance(columns, int):
        return None
    if products(left.shape, right.shape) < MIN_UNALIGNED_PRODUCTS:
        return None
    texts = ", ".join(sequence.tensor(v) for v in (left, right, bias) if v is not None)
    if columns % ALIGNMENT and (bias is None or is_worth_pieces(columns)):
        return f"{sequence.name('aligned_mm', aligned_mm)}({texts})"
    by_rows = left.strides[1] == 1
    odd_depth = isinstance(depth, int) and depth % ALIGNMENT != 0 and is_worth_pieces(depth)
    if odd_depth and by_rows and all(map(_is_aligned, (left, right))):
        return f"{sequence.name('depth_in_two', depth_in_two)}({texts})"
    return None


def _is_aligned(matrix: Strided) -> bool:
    """Whether all rows, or all columns, start at an address from which a vector can be read."""
    steps = [s for s in matrix.strides if s != 1]
    return len(steps) == 1 and isinstance(steps[0], int) and steps[0] % ALIGNMENT == 0


def _spell_onednn(
    sequence: CallSequence, call: ExternCall, left: Strided, right: Strided, bias: Strided | None
) -> str | None:
    if not is_for_onednn(left, right):
        return None
    sizes = (*left.shape, right.shape[1])
    known = all(isinstance(n, int) for n in sizes)  # and so large: others may be zero
    name = sequence.name("linear", onednn_linear() if known else linear_or_empty)
    activation, algorithm = call.epilogue or ("none", "")
    weight = Strided(right.buffer, right.shape[::-1], right.strides[::-1], right.offset)
    if known and right.buffer.is_state and is_whole(weight):
        rows = left.shape[0]
        sequence.weights.setdefault(weight.buffer.name, []).append(
            (call, LinearPacking(rows if isinstance(rows, int) else None)))
    texts = [sequence.tensor(v) if v is not None else "None" for v in (left, weight, bias)]
    return f"{name}({', '.join(texts)}, {activation!r}, [], {algorithm!r})"
