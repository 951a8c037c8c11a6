"""Activations that a matrix product applies to its result before it writes it.

Place in the pipeline: part of `lowering/`; tried for each node before its own lowering. oneDNN's
product can apply an activation, which saves a kernel and a pass over memory::

    y = addmm(b, x, w); z = gelu(y.view(...))      becomes     z = linear(x, w, b, "gelu").view(...)

This needs a product without other readers, for which `onednn.py` calls oneDNN.
"""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch.fx import Node

from weft.codegen.lowering.onednn import takes_epilogue
from weft.codegen.values import ExternCall, Origin, Strided, Value

aten = torch.ops.aten

EPILOGUES: Final[dict[Any, tuple[str, str]]] = {
    aten.gelu.default: ("gelu", "none"),
    aten.silu.default: ("swish", ""),
    aten.sigmoid.default: ("sigmoid", ""),
    aten.tanh.default: ("tanh", ""),
}
"""ATen operator → oneDNN's name of it and its algorithm. ReLU and hardtanh are none of them:
oneDNN's make numbers of NaN."""

VIEWS: Final = frozenset({aten.view.default, aten._unsafe_view.default, aten.reshape.default})
PRODUCTS: Final = frozenset({aten.mm.default, aten.addmm.default})


def absorbed(
    node: Node, args: tuple[object, ...], keywords: dict[str, Any], own: Origin
) -> Value | None:
    """The activation's result if the product before it can apply it, else None."""
    if node.target not in EPILOGUES or not isinstance(args[0], Value):
        return None
    call = _product_behind(args[0])
    if call is None or not _is_only_reader(node) or not takes_epilogue(call):
        return None
    name, algorithm = EPILOGUES[node.target]
    call.epilogue = name, keywords.get("approximate", algorithm)
    call.origins = (*call.origins, own)
    return args[0]


def _product_behind(value: Value) -> ExternCall | None:
    """The product whose whole result `value` is, in any shape, or None."""
    impl = value.impl
    if not isinstance(impl, Strided) or impl.offset != 0:
        return None
    call = impl.buffer.definition
    if not isinstance(call, ExternCall) or call.op not in PRODUCTS or call.epilogue is not None:
        return None
    same_size = (math.prod(impl.shape) - math.prod(impl.buffer.shape)) == 0
    return call if same_size else None


def _is_only_reader(node: Node) -> bool:
    """Whether only views are between the product and this node, each read once."""
    before = node.args[0]
    while isinstance(before, Node) and len(before.users) == 1:
        if before.target in PRODUCTS:
            return True
        if before.target not in VIEWS:
            return False
        before = before.args[0]
    return False
