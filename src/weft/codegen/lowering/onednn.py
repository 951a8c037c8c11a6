"""Which matrix products oneDNN computes faster than ATen's default library on CPUs.

Place in the pipeline: asked by the lowerings of products and epilogues, and again by
`calls/gemm_calls.py`, which writes the call::

    takes_epilogue(call)        # relu(addmm(bias, x, w)) is one call of oneDNN's
"""

from __future__ import annotations

import math
from typing import Any, Final

import torch

from weft.codegen.values import ExternCall, Strided, Value
from weft.config import config
from weft.runtime.gemm_speed import SHAPE, onednn_is_faster, packed_is_faster
from weft.shapes.algebra.views import Shape

aten = torch.ops.aten

MIN_ROWS: Final = 16
"""Fewer rows are bound by memory: the default library is as fast."""
MIN_PACKED_ROWS: Final = 2
"""Of a product with a weight that is packed once."""
MIN_PRODUCTS: Final = 1 << 21
"""Multiplications below which oneDNN's dearer call does not pay."""
ASSUMED_SIZE: Final = 256
"""What a size that is not known counts as."""


def takes_epilogue(call: ExternCall) -> bool:
    """Whether the call will be oneDNN's, which applies an activation at no cost."""
    operands = operands_of(call)
    if operands is None or operands[0].buffer.device.type != "cpu":
        return False
    return is_for_onednn(operands[0], operands[1])


def needs_copy(left: Strided, right: Strided) -> bool:
    """Whether oneDNN would compute this product faster if the left matrix were row-major."""
    if left.buffer.device.type != "cpu" or _is_contiguous(left):
        return False
    row_major = (left.shape[1], 1)
    return is_for_onednn(Strided(left.buffer, left.shape, row_major, 0), right)


def is_for_onednn(left: Strided, right: Strided) -> bool:
    """Whether this is a float32 product on the CPU that oneDNN computes faster."""
    if left.buffer.dtype != torch.float32:
        return False
    if not (_is_contiguous(left) and any(s == 1 for s in right.strides)):
        return False
    if right.buffer.is_state and is_packable(right):
        rows = left.shape[0] if isinstance(left.shape[0], int) else ASSUMED_SIZE
        return rows >= MIN_PACKED_ROWS and products(left.shape, right.shape) >= MIN_PRODUCTS and (
            packed_is_faster(rows))
    return _worth_while(left.shape, right.shape) and onednn_is_faster(_trial(left, right))


def is_packable(right: Strided) -> bool:
    """Whether the right matrix is the transpose of a whole weight of known sizes."""
    columns, rows = right.buffer.shape[0], right.buffer.shape[-1]
    return right.offset == 0 and right.shape == (rows, columns) and (
        right.strides == (1, rows) and right.buffer.strides == (rows, 1)
        and isinstance(columns, int) and isinstance(rows, int))


def _trial(left: Strided, right: Strided) -> tuple[int, int, int]:
    """The sizes for which the libraries are compared: the product's own with `max_autotune`."""
    rows, inner, columns = *left.shape, right.shape[1]
    if isinstance(rows, int) and isinstance(inner, int) and isinstance(columns, int):
        return (rows, inner, columns) if config.max_autotune else SHAPE
    return SHAPE


def operands_of(call: ExternCall) -> tuple[Strided, Strided, Strided | None] | None:
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
    return rows >= MIN_ROWS and products(left, right) >= MIN_PRODUCTS


def products(left: Shape, right: Shape) -> int:
    """Multiplications of a product of these shapes."""
    sizes = [n if isinstance(n, int) else ASSUMED_SIZE for n in (left[0], left[1], right[1])]
    return math.prod(sizes)
