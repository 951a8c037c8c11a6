"""Matrix products whose left matrix is laid out for the faster library first.

Place in the pipeline: part of `lowering/`. The gradient of a linear layer's weight is `mm(g.T, x)`:
oneDNN (see `onednn.py`) wants `g.T` row-major. A kernel that transposes through tiles
costs a tenth of such a product, which then takes half of MKL's time:

    mm(g.T, x)      becomes      t = copy of g.T;  linear(t, x.T)
"""

from __future__ import annotations

import torch

from weft.codegen.lowering.extern import call_aten
from weft.codegen.lowering.onednn import needs_copy
from weft.codegen.lowering.registry import LoweringContext, NotLowered, lowering
from weft.codegen.values import Value
from weft.shapes.algebra.layout import row_major

aten = torch.ops.aten


@lowering(aten.mm.default, aten.addmm.default)
def matrix_product(cx: LoweringContext, *operands: Value, **keywords: object) -> Value:
    """The product of a row-major copy of the left matrix, if that is faster."""
    left, right = operands[-2:]
    if keywords or not needs_copy(left.realize(), right.realize()):
        raise NotLowered
    copy = cx.lazy(left.shape, left.dtype, left.at, 0, 1, row_major(left.shape))
    cx.graph.extern_ops.append(str(cx.target))
    [result] = call_aten(cx, (*operands[:-2], copy, right), {}, [0], False)
    assert result is not None
    return result
