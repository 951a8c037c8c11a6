"""float32 matrix products through oneDNN, where that is faster than ATen's default library.

Place in the pipeline: asked by `library_calls.py` before it spells `mm` and `addmm`.

`addmm(bias, x, w.T)` with enough work becomes
`mkldnn._linear_pointwise(x, w, bias, "none", [], "")`.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from weft.codegen.call_sequence import CallSequence, tensor_text
from weft.codegen.values import ExternCall, Shape, Strided, Value
from weft.runtime.gemm_speed import onednn_is_faster, onednn_linear

aten = torch.ops.aten

MIN_ROWS: Final = 16
"""Fewer rows are bound by memory: the default library is as fast."""
MIN_PRODUCTS: Final = 1 << 21
"""Multiplications below which oneDNN's dearer call does not pay."""
ASSUMED_SIZE: Final = 256
"""What a size that is not known counts as."""


def spell_gemm(sequence: CallSequence, call: ExternCall) -> str | None:
    """The call as oneDNN's linear, or None where ATen's own is right."""
    operands = _operands(call)
    if operands is None:
        return None
    left, right, bias = operands
    if not _worth_while(left.shape, right.shape) or not onednn_is_faster():
        return None
    name = sequence.name("linear", onednn_linear())
    weight = Strided(right.buffer, right.shape[::-1], right.strides[::-1], right.offset)
    texts = [tensor_text(v) if v is not None else "None" for v in (left, weight, bias)]
    return f"{name}({', '.join(texts)}, 'none', [], '')"


def _operands(call: ExternCall) -> tuple[Strided, Strided, Strided | None] | None:
    """Both matrices and the bias, if the operator and their layouts are ones that oneDNN takes."""
    if call.keywords or call.op not in (aten.mm.default, aten.addmm.default):
        return None
    values: list[Any] = list(call.arguments)
    if not all(isinstance(v, Value) and v.dtype == torch.float32 for v in values):
        return None
    if any(v.device.type != "cpu" for v in values):
        return None
    bias = values[0].realize() if call.op is aten.addmm.default else None
    left, right = (v.realize() for v in values[-2:])
    if bias is not None and (len(bias.shape) != 1 or bias.strides[0] != 1):
        return None
    good = _is_contiguous(left) and any(_is_one(s) for s in right.strides)
    return (left, right, bias) if good else None


def _is_contiguous(matrix: Strided) -> bool:
    columns = matrix.shape[1]
    same = matrix.strides[0] is columns or matrix.strides[0] == columns
    return _is_one(matrix.strides[1]) and same


def _is_one(stride: object) -> bool:
    return isinstance(stride, int) and stride == 1


def _worth_while(left: Shape, right: Shape) -> bool:
    sizes = [n if isinstance(n, int) else ASSUMED_SIZE for n in (left[0], left[1], right[1])]
    rows, inner, columns = sizes
    return rows >= MIN_ROWS and rows * inner * columns >= MIN_PRODUCTS
