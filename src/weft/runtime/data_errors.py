"""Which operators may raise because of their inputs' data.

Place in the pipeline: asked by capture, passes and code generation. A result that nothing reads may
be left out, but not the error that eager raises while it computes it::

    x[i]                   # an index that is out of bounds
    n // m                 # integers, divided by 0
    torch.linalg.inv(a)    # a singular matrix

Operators without results (assertions), with random numbers or of unknown sizes run in any case.
"""

from __future__ import annotations

import operator
from typing import Any, Final

import torch
from torch.fx import Node

from weft._torch import OpOverload
from weft.shapes.symnode import is_hinted

_RAISING: Final = frozenset({
    "binary_cross_entropy", "bincount", "cholesky_inverse", "cholesky_solve", "cross_entropy",
    "cross_entropy_loss", "ctc_loss", "embedding", "embedding_bag", "gather", "histc",
    "histogram", "histogramdd", "index", "index_add", "index_copy", "index_fill", "index_put",
    "index_reduce", "index_select", "lu_solve", "lu_unpack", "masked_scatter", "max_unpool1d",
    "max_unpool2d", "max_unpool3d", "multi_margin_loss", "multilabel_margin_loss", "nll_loss",
    "one_hot", "put", "repeat_interleave", "scatter", "scatter_add", "scatter_reduce",
    "searchsorted", "segment_reduce", "take", "take_along_dim", "unravel_index",
    # Linear algebra, where its functions are not called linalg_...
    "cholesky", "det", "inverse", "logdet", "lstsq", "lu", "matrix_power", "ormqr", "pinverse",
    "qr", "slogdet", "svd", "triangular_solve",
    # As ATen calls some of these.
    "_ctc_loss", "_embedding_bag", "_embedding_bag_forward_only", "_histogramdd_bin_edges",
    "_histogramdd_from_bin_cts", "max_unpool", "multilabel_margin_loss_forward",
    "nll_loss_forward", "nll_loss2d", "nll_loss2d_forward", "nll_loss_nd",
    "fake_quantize_per_channel_affine", "fake_quantize_per_channel_affine_cachemask",
})
_OF_TORCH: Final = frozenset({"aten", "prim", "prims", "weft", "_c10d_functional"})
"""Namespaces of operators that are known; those of the program may raise."""
_LINEAR_ALGEBRA: Final = ("linalg_", "_linalg_")
_DIVISIONS: Final = frozenset({
    "div", "divide", "floor_divide", "floordiv", "fmod", "mod", "remainder",
    *(f"__{side}{name}__" for side in ("", "r") for name in ("floordiv", "mod")),
})
"""Functions that raise on integers if the divisor is 0."""
_BLIND: Final = frozenset({
    "empty_like", "full_like", "new_empty", "new_empty_strided", "new_full", "new_ones",
    "new_zeros", "ones_like", "rand_like", "randint_like", "randn_like", "zeros_like",
})
"""ATen operators that read no values of their first operand."""


def may_raise(node: Node) -> bool:
    """Whether the call of a captured or an ATen graph may raise because of its operands' data."""
    name = _name(node)
    if isinstance(node.target, OpOverload) and node.target.namespace not in _OF_TORCH:
        return True
    if name in _RAISING or name.startswith(_LINEAR_ALGEBRA):
        return True
    if name in _DIVISIONS:
        return _may_divide_by_zero(node)
    if node.target is operator.getitem and _has_tensor_index(node):
        return True
    return _takes_data(node)


def reads_values(node: Node) -> bool:
    """Whether an ATen operator reads its operands' values, and not only their metadata."""
    return _name(node) not in _BLIND


def _name(node: Node) -> str:
    target: Any = node.target
    if isinstance(target, OpOverload):
        return str(target.overloadpacket.__name__)
    return target if isinstance(target, str) else str(getattr(target, "__name__", ""))


def _has_tensor_index(node: Node) -> bool:
    """Whether a captured `x[i]` has an index that is a tensor of integers."""
    whole, key = node.args
    if not isinstance(_value(whole), torch.Tensor):
        return False
    return any(isinstance(index := _value(item), torch.Tensor) and index.dtype is not torch.bool
               for item in (key if isinstance(key, tuple) else (key,)))


def _takes_data(node: Node) -> bool:
    """Whether a captured call on a tensor takes a number or a size that depends on data."""
    if "example_value" not in node.meta or not node.args:
        return False
    return isinstance(_value(node.args[0]), torch.Tensor) and any(
        not is_hinted(_value(operand)) for operand in node.all_input_nodes)


def _may_divide_by_zero(node: Node) -> bool:
    result = _value(node)
    if not isinstance(result, torch.Tensor) or result.dtype.is_floating_point:
        return False
    divisor = node.args[1] if len(node.args) > 1 else node.kwargs.get("other")
    return result.device.type == "cpu" and (type(divisor) is not int or divisor == 0)


def _value(item: Any) -> Any:
    """What stands for the value of a node."""
    return item.meta.get("val", item.meta.get("example_value")) if isinstance(item, Node) else item
