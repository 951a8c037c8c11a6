"""Cumulative sums, products and extrema on GPUs: ATen's kernels, along rows.

Place in the pipeline: part of `lowering/`. ATen scans rows in parallel; along another dimension one
thread walks each column, which takes fifty times as long for a thousand columns. Few columns are
therefore moved to rows first (by a kernel that fuses with what comes before).
"""

from __future__ import annotations

import math
from typing import Final

import torch

from weft.codegen.lowering.extern import call_aten
from weft.codegen.lowering.registry import LoweringContext, NotLowered, lowering
from weft.codegen.lowering.views import normalize_dim
from weft.codegen.values import Value
from weft.shapes.algebra.layout import row_major
from weft.shapes.algebra.views import Permute

aten = torch.ops.aten

ENOUGH_COLUMNS: Final = 65536
"""Threads that keep a GPU busy."""
DEVICES = frozenset({"cuda"})
"""Types of devices on which columns are moved."""


@lowering(
    aten.cumsum.default, aten.cumprod.default, aten.cummax.default, aten.cummin.default,
    aten.logcumsumexp.default,
)
def scan(cx: LoweringContext, x: Value, dim: int, **keywords: object) -> Value | list[Value]:
    rank = len(x.shape)
    if x.device.type not in DEVICES or rank < 2 or (dim := normalize_dim(dim, rank)) == rank - 1:
        raise NotLowered("a call of ATen's scan")
    columns = math.prod([n for d, n in enumerate(x.shape) if d != dim])
    if not isinstance(columns, int) or columns >= ENOUGH_COLUMNS:
        raise NotLowered("a call of ATen's scan")
    order = (*(d for d in range(rank) if d != dim), dim)
    shape = tuple(x.shape[d] for d in order)
    turned = x.view(shape, Permute(order))
    rows = cx.lazy(shape, x.dtype, turned.at, 1, 1)
    count = len(cx.shapes)
    inner = LoweringContext(
        cx.graph, cx.target, [shape] * count, cx.dtypes, [row_major(shape)] * count,
        cx.device, cx.origins,
    )
    scanned = call_aten(inner, (rows, rank - 1), keywords, list(range(count)), count > 1)
    back = Permute(order).inverse()
    results = []
    for value, layout in zip(scanned, cx.layouts, strict=True):
        assert value is not None
        moved = value.view(cx.shape, back)
        results.append(cx.lazy(cx.shape, value.dtype, moved.at, 1, 1, layout))
    return results if count > 1 else results[0]
