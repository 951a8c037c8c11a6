"""Matrix products by another library call, if that is faster than ATen's default.

Place in the pipeline: tried by `library_calls.py` before it writes `mm` and `addmm`.

- CPU, float32, enough work: `addmm(bias, x, w.T)` becomes oneDNN's
  `mkldnn._linear_pointwise(x, w, bias, "none", [], "")`.
- GPU, half precision, a number of columns that is no multiple of eight: `aligned_mm`; an odd depth
  with aligned rows (`lowering/row_padding.py`): `depth_in_two`.
"""

from __future__ import annotations

import math
from typing import Any, Final

import torch

from weft.codegen.calls.call_sequence import CallSequence
from weft.codegen.values import ExternCall, Shape, Strided, Value
from weft.config import config
from weft.runtime.aligned_matmul import ALIGNMENT, aligned_mm, depth_in_two, is_worth_pieces
from weft.runtime.gemm_speed import SHAPE, linear_or_empty, onednn_is_faster, onednn_linear

aten = torch.ops.aten

MIN_ROWS: Final = 16
"""Fewer rows are bound by memory: the default library is as fast."""
MIN_PRODUCTS: Final = 1 << 21
"""Multiplications below which oneDNN's dearer call does not pay."""
MIN_UNALIGNED_PRODUCTS: Final = 1 << 30
"""Multiplications below which computing block by block does not pay on a GPU."""
ASSUMED_SIZE: Final = 256
"""What a size that is not known counts as."""


def spell_gemm(sequence: CallSequence, call: ExternCall) -> str | None:
    """The call's faster form, or None if ATen's own is right."""
    operands = _operands(call)
    if operands is None:
        return None
    left, right, bias = operands
    if left.buffer.device.type == "cuda":
        return _spell_aligned(sequence, left, right, bias)
    return _spell_onednn(sequence, left, right, bias, call.epilogue)


def takes_epilogue(call: ExternCall) -> bool:
    """Whether the call will be oneDNN's, which applies an activation at no cost."""
    operands = _operands(call)
    if operands is None or operands[0].buffer.device.type != "cpu":
        return False
    return _is_for_onednn(operands[0], operands[1])


def needs_copy(left: Strided, right: Strided) -> bool:
    """Whether oneDNN would compute this product faster if the left matrix were row-major."""
    if left.buffer.device.type != "cpu" or _is_contiguous(left):
        return False
    row_major = (left.shape[1], 1)
    return _is_for_onednn(Strided(left.buffer, left.shape, row_major, 0), right)


def _spell_aligned(
    sequence: CallSequence, left: Strided, right: Strided, bias: Strided | None
) -> str | None:
    """Half-precision products for which cuBLAS has slow kernels: the length of the result's rows,
    or of those of an aligned left matrix, is no multiple of eight."""
    depth, columns = right.shape
    half = left.buffer.dtype in (torch.float16, torch.bfloat16)
    if not half or not isinstance(columns, int):
        return None
    if _products(left.shape, right.shape) < MIN_UNALIGNED_PRODUCTS:
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
    sequence: CallSequence, left: Strided, right: Strided, bias: Strided | None,
    epilogue: tuple[str, str] | None,
) -> str | None:
    if not _is_for_onednn(left, right):
        return None
    sizes = (*left.shape, right.shape[1])
    known = all(isinstance(n, int) for n in sizes)  # and so large: others may be zero
    name = sequence.name("linear", onednn_linear() if known else linear_or_empty)
    activation, algorithm = epilogue or ("none", "")
    weight = Strided(right.buffer, right.shape[::-1], right.strides[::-1], right.offset)
    texts = [sequence.tensor(v) if v is not None else "None" for v in (left, weight, bias)]
    return f"{name}({', '.join(texts)}, {activation!r}, [], {algorithm!r})"


def _is_for_onednn(left: Strided, right: Strided) -> bool:
    """Whether this is a float32 product on the CPU that oneDNN computes faster."""
    if left.buffer.dtype != torch.float32:
        return False
    if not (_is_contiguous(left) and any(s == 1 for s in right.strides)):
        return False
    return _worth_while(left.shape, right.shape) and onednn_is_faster(_trial(left, right))


def _trial(left: Strided, right: Strided) -> tuple[int, int, int]:
    """The sizes for which the libraries are compared: the product's own with `max_autotune`."""
    rows, inner, columns = *left.shape, right.shape[1]
    if isinstance(rows, int) and isinstance(inner, int) and isinstance(columns, int):
        return (rows, inner, columns) if config.max_autotune else SHAPE
    return SHAPE


def _operands(call: ExternCall) -> tuple[Strided, Strided, Strided | None] | None:
    """Both matrices and the bias (a vector or None) of a plain product of one dtype and device, or
    None."""
    if call.keywords or call.op not in (aten.mm.default, aten.addmm.default):
        return None
    values: list[Any] = list(call.arguments)
    if not all(isinstance(v, Value) for v in values):
        return None
    if len({(v.dtype, v.device) for v in values}) != 1:
        return None
    bias = values[0].realize() if call.op is aten.addmm.default else None
    left, right = (v.realize() for v in values[-2:])
    if bias is not None and (len(bias.shape) != 1 or bias.strides[0] != 1):
        return None
    return left, right, bias


def _is_contiguous(matrix: Strided) -> bool:
    columns = matrix.shape[1]
    same = matrix.strides[0] is columns or matrix.strides[0] == columns
    return matrix.strides[1] == 1 and same


def _worth_while(left: Shape, right: Shape) -> bool:
    rows = left[0] if isinstance(left[0], int) else ASSUMED_SIZE
    return rows >= MIN_ROWS and _products(left, right) >= MIN_PRODUCTS


def _products(left: Shape, right: Shape) -> int:
    """Multiplications of a product of these shapes."""
    sizes = [n if isinstance(n, int) else ASSUMED_SIZE for n in (left[0], left[1], right[1])]
    return math.prod(sizes)
