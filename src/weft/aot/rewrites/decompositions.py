"""Which operators are replaced by simpler ones.

Place in the pipeline: `expand.py` calls `find(op)` for every operator that the code generator has
no lowering for. Most decompositions come from PyTorch's table; `@decomposition` adds those that
PyTorch lacks or has in a slow form. `KEPT` are operators for which a library call is faster than
any formula::

    @decomposition(aten.foo.default)
    def foo(x, alpha):
        return x * alpha + 1
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch

from weft._torch import OpOverload, decomposition_table
from weft.registrar import registrar
from weft.shapes.tensor_layouts import is_channels_last

aten = torch.ops.aten

Decomposition = Callable[..., Any]
OURS: Final[dict[OpOverload, Decomposition]] = {}
"""Decompositions of weft. They go before lowerings: one that raises NotImplementedError leaves the
call to the operator's lowering."""

KEPT_PACKETS: Final = frozenset(
    {
        "mm", "addmm", "bmm", "baddbmm", "addbmm", "addmv", "mv", "dot", "vdot", "linear", "matmul",
        "_int_mm", "_scaled_mm", "convolution", "convolution_backward", "_convolution",
        "_scaled_dot_product_attention_math", "_scaled_dot_product_flash_attention_for_cpu",
        "max_pool2d_with_indices", "max_pool3d_with_indices", "max_pool2d_with_indices_backward",
        "avg_pool2d", "avg_pool3d", "avg_pool2d_backward", "avg_pool3d_backward",
        "_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "_adaptive_avg_pool2d_backward",
        "adaptive_max_pool2d", "adaptive_max_pool3d", "grid_sampler_2d", "grid_sampler_3d",
        "_cdist_forward", "embedding_dense_backward",
        "lstm", "gru",
        "_thnn_fused_lstm_cell", "rnn_tanh", "rnn_relu", "bernoulli", "uniform", "normal",
        "normal_functional", "randn", "rand", "randint", "randperm", "native_dropout",
        "exponential", "geometric", "cauchy", "log_normal", "multinomial", "rrelu_with_noise",
        "sort", "topk", "searchsorted", "bucketize", "cumsum", "cumprod", "unique_dim", "_unique2",
        "nonzero", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided",
        "multilabel_margin_loss_forward",  # in the formula targets behind the first -1 count
    }
)
"""Operators that stay as they are, by packet name: library calls, and random numbers, which must be
drawn as eager draws them."""

decomposition = registrar(OURS)
"""Register a decomposition of weft's own."""


def find(op: OpOverload) -> Decomposition | None:
    """The decomposition of an operator, or None if it has none that is worth using."""
    own = OURS.get(op)
    if own is not None:
        return own
    if torch.Tag.nondeterministic_seeded in op.tags:
        return None
    name = op._schema.name.split("::")[1]
    if name in KEPT_PACKETS:
        return None
    theirs: Decomposition | None = decomposition_table.get(op)
    return theirs or _foreach(op)


@decomposition(aten.binary_cross_entropy.default)
def _binary_cross_entropy(input: torch.Tensor, *args: object) -> object:
    """The kernel for CPUs raises if a number is not between 0 and 1; a formula would not."""
    if input.device.type == "cpu":
        raise NotImplementedError
    return decomposition_table[aten.binary_cross_entropy.default](input, *args)


def _foreach(op: OpOverload) -> Decomposition | None:
    """`_foreach_add([a, b], [c, d])` is `[add(a, c), add(b, d)]`."""
    name = op._schema.name.removeprefix("aten::_foreach_")
    if name == op._schema.name or str(op._schema.returns[0].type) != "List[Tensor]":
        return None
    if op._overloadname.startswith("Scalar"):
        name = _WITH_NUMBER.get(name, name)
    packet = getattr(torch, name, None)
    return None if packet is None else _ForEach(op, packet)


_WITH_NUMBER: Final = {"maximum": "clamp_min", "minimum": "clamp_max"}
"""For functions that take only tensors: the function that takes a number in the second place."""


class _ForEach:
    """Applies a function of tensors to each position of a foreach operator's lists."""

    def __init__(self, op: OpOverload, single: Callable[..., Any]) -> None:
        self.single = single
        self.names = [a.name for a in op._schema.arguments]

    def __call__(self, *args: object, **kwargs: object) -> list[object]:
        n = len(next(a for a in args if isinstance(a, (list, tuple))))  # pow of a number
        positional = [_per_item(a, n) for a in args]
        named = {_SINGULAR.get(k, k): _per_item(v, n) for k, v in kwargs.items()}
        return [
            self.single(*(p[i] for p in positional), **{k: v[i] for k, v in named.items()})
            for i in range(n)
        ]


_SINGULAR: Final = {"scalars": "value", "tensors1": "tensor1", "tensors2": "tensor2"}


def _per_item(value: object, n: int) -> list[object]:
    return list(value) if isinstance(value, (list, tuple)) and len(value) == n else [value] * n


@decomposition(aten._efficientzerotensor.default)
def efficient_zeros(size: Any, **form: Any) -> object:
    """Zeros in memory; forward-mode derivatives use tensors without memory, which kernels cannot
    read."""
    return torch.zeros(size, **form)


@decomposition(aten._foreach_addcdiv.Scalar, aten._foreach_addcdiv.ScalarList)
def foreach_addcdiv(xs: Any, ones: Any, twos: Any, value: Any = 1) -> list[object]:
    """x + value * one / two, at each position."""
    values = _per_item(value, len(xs))
    return [x + v * (a / b) for x, a, b, v in zip(xs, ones, twos, values, strict=True)]


@decomposition(aten._foreach_addcmul.Scalar, aten._foreach_addcmul.ScalarList)
def foreach_addcmul(xs: Any, ones: Any, twos: Any, value: Any = 1) -> list[object]:
    """x + value * one * two, at each position."""
    values = _per_item(value, len(xs))
    return [x + v * (a * b) for x, a, b, v in zip(xs, ones, twos, values, strict=True)]


@decomposition(aten._native_batch_norm_legit_functional.default)
def batch_norm_with_new_statistics(
    x: Any, weight: object, bias: object, running_mean: Any, running_var: Any, training: bool,
    momentum: float, eps: float,
) -> tuple[Any, ...]:
    """Batch norm, the batch's mean and inverse deviation, and the new running statistics.

    Half types are computed in float32, as in ATen's kernels.
    """
    if not training:
        raise NotImplementedError("the running statistics are used: another operator")
    result, mean, var, inverse = _normalized_batch(x, weight, bias, eps)
    count = x.numel() // x.size(1)
    new_mean = momentum * mean + (1 - momentum) * running_mean
    new_var = momentum * (var * (count / (count - 1))) + (1 - momentum) * running_var
    return result, mean, inverse, new_mean, new_var


@decomposition(aten._native_batch_norm_legit.no_stats)
def batch_norm_without_statistics(
    x: object, weight: object, bias: object, training: bool, momentum: float, eps: float
) -> tuple[object, ...]:
    """Batch norm, the batch's mean and inverse deviation."""
    result, mean, _, inverse = _normalized_batch(x, weight, bias, eps)
    return result, mean, inverse


def _normalized_batch(x: Any, weight: Any, bias: Any, eps: float) -> tuple[Any, Any, Any, Any]:
    """The affine result in x's type; mean, variance and inverse deviation of each channel."""
    wide = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
    dims = [d for d in range(x.dim()) if d != 1]
    columns = [1, -1, *(1,) * (x.dim() - 2)]
    values = x.to(wide)
    var, mean = torch.var_mean(values, dims, correction=0, keepdim=True)
    inverse = torch.rsqrt(var + eps)
    result = (values - mean) * inverse
    if weight is not None:
        result = result * weight.to(wide).view(columns)
    if bias is not None:
        result = result + bias.to(wide).view(columns)
    return (result.to(x.dtype), *(t.squeeze(dims) for t in (mean, var, inverse)))


@decomposition(aten.native_layer_norm_backward.default)
def layer_norm_gradients(grad: object, x: Any, *args: object) -> object:
    """PyTorch's formula; on CPUs, for numbers that need no conversion, the library takes half the
    time."""
    if x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64):
        raise NotImplementedError("a library call")
    return decomposition_table[aten.native_layer_norm_backward.default](grad, x, *args)


def _resampled_by_library(packet: Any, *, shrinking: bool) -> None:
    """On CPUs, planes of rows are resampled by the library: each of its loads costs less than a
    gathered lane. A formula is better where it loads vectors of channels and, if `shrinking`, where
    it reads a small part of the image (the library turns all of it round)."""

    def formula_of(op: OpOverload) -> None:
        @decomposition(op)
        def formula(x: Any, size: Any, align: bool, *scales: Any) -> object:
            if x.device.type == "cpu" and not is_channels_last(x):
                sizes = size or [n * scale for n, scale in zip(x.shape[2:], scales[0], strict=True)]
                known = shrinking and all(type(n) in (int, float) for n in (*x.shape[2:], *sizes))
                if not known or math.prod(x.shape[2:]) < _SHRUNK * math.prod(sizes):
                    raise NotImplementedError("a library call")
            return decomposition_table[op](x, size, align, *scales)

    formula_of(packet.default)
    formula_of(packet.vec)


_SHRUNK: Final = 5
"""An image is small that has so many times fewer elements."""

_resampled_by_library(aten.upsample_bilinear2d, shrinking=True)
_resampled_by_library(aten.upsample_bicubic2d, shrinking=False)
_resampled_by_library(aten.upsample_trilinear3d, shrinking=False)


@decomposition(aten.index_put.default)
def masked_number(x: Any, indices: Any, values: Any, accumulate: bool = False) -> object:
    """`x[mask] = number`, without computing the positions."""
    mask = indices[0]
    if len(indices) != 1 or mask.dtype is not torch.bool or values.dim() or values.is_complex():
        raise NotImplementedError("positions, or a value for each")
    mask = mask.view(*mask.shape, *(1,) * (x.dim() - mask.dim()))
    return torch.where(mask, x + values if accumulate else values, x)


@decomposition(aten.rrelu_with_noise_functional.default)
def mean_rrelu(
    x: object, noise: object, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False,
    generator: object = None,
) -> tuple[object, object]:
    """Outside of training, the slope is the mean of the bounds."""
    if training:
        raise NotImplementedError("random slopes")
    return aten.leaky_relu(x, (lower + upper) / 2), noise


@decomposition(aten.slice_backward.default)
def padded_slice(grad: Any, sizes: Any, dim: int, start: Any, end: Any, step: Any) -> object:
    """Zeros around the gradient, for symbolic sizes: PyTorch's formula asks whether the slice is
    everything (`x[:, :n]` after padding to a multiple), which would become a guard."""
    size = sizes[dim]
    if type(step) is not int or step != 1 or type(start) is not int or start < 0 or (
            type(size) is int):
        return aten.slice_scatter(grad.new_zeros(sizes), grad, dim, start, end, step)
    dim %= grad.dim()
    before = start if start == 0 else torch.sym_min(start, size)
    pads = [0] * (2 * (grad.dim() - 1 - dim))
    return aten.constant_pad_nd(grad, [*pads, before, size - before - grad.shape[dim]])


def _keeping_nan(op: OpOverload, where: Callable[..., Any]) -> None:
    """PyTorch's formula tests whether a value is inside, the kernels whether it is outside; for
    NaN, which is neither, the gradient must stay."""

    @decomposition(op)
    def formula(gradient: object, *args: object) -> object:
        formula_result = decomposition_table[op](gradient, *args)
        value = where(*args)
        return torch.where(torch.isnan(value), value, formula_result)


_keeping_nan(aten.smooth_l1_loss_backward.default, lambda x, target, *_: x - target)
_keeping_nan(aten.logit_backward.default, lambda x, *_: x)
