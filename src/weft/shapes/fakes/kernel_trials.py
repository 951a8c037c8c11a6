"""What the CPU's kernels refuse and meta kernels accept, found by trying them on a few elements.

Place in the pipeline: `MemoFakeMode` asks for each newly computed result whether the kernel itself
would have raised. Meta kernels know nothing of the types that a kernel is written for::

    refusal(aten.relu.default, (fake bool,), {})          # RuntimeError: Boolean inputs not supp...
    refusal(aten.gcd.default, (fake float, fake float), {})    # NotImplementedError: "gcd_cpu" ...
    refusal(aten.add.Tensor, (fake float, 1), {})         # None

A kernel is tried once in a process for the types (and ranks, and unusual numbers) of its
arguments. Tensors are replaced by small ones, which is safe for the operators of `_is_tried`:
elementwise ones, reductions, and those that check all sizes or need none. Those that draw random
numbers are not tried.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, final

import torch

from weft._torch import DisableAutocast, FakeTensor, OpOverload, below_autograd, no_modes

_SAFE: Final = re.compile(
    r"_fft_[rc]2c|_?(log_|safe_)?softmax|_?upsample_(nearest|linear|bi|tri)\w+d(_aa)?"
    r"|_?linalg_(cholesky_ex|cross|det|eigh?|inv_ex|lu_factor_ex|qr|slogdet|solve_ex|svd)"
    r"|_adaptive_avg_pool[23]d|adaptive_max_pool2d|avg_pool[23]d|max_pool[23]d_with_indices"
    r"|(reflection|replication)_pad[123]d|add(mm|mv|bmm|r)|baddbmm|b?mm|mv|v?dot"
    r"|cum(max|min|prod|sum)|logcumsumexp|cholesky|triangular_solve|complex|polar|cat"
    r"|index_(add|copy|fill|put|reduce|select)|gather|put|scatter(_add|_reduce)?|masked_(fill|scatter)"
    r"|fill|full(_like)?|new_full|tri[lu]|renorm|sort|topk|(nan)?median|mode|kthvalue|aminmax"
    r"|bucketize|searchsorted|binary_cross_entropy|(huber|mse|smooth_l1|soft_margin)_loss"
    r"|nll_loss(2d)?_forward|multi_margin_loss|glu|hardswish|rsub|_prelu_kernel|log_sigmoid_forward"
    r"|convolution|grid_sampler_[23]d|_cdist_forward|_euclidean_dist"
)
"""Operators, neither elementwise nor reductions, that are safe to try: zeros are good indices, and
no other argument says how much memory there is (as pivots and the length of a spectrum do)."""

_SIZES: Final[dict[OpOverload, int]] = {
    torch.ops.aten.full.default: 0, torch.ops.aten.new_full.default: 1,
}
"""Position of the sizes of a new tensor among the arguments."""

_ABOUT_TYPES: Final = re.compile(r"type|complex|bool|not implemented|not supported|overflow", re.I)
"""Other errors of operators that are not elementwise may be about the sizes of small tensors."""

_ENOUGH: Final = 4
"""Elements in a dimension of a tensor to try with: kernels of a pool or a convolution fit."""

_USUAL: Final = 100
"""Numbers from 0 to this are all alike to a kernel; others are tried as they are."""

_known: dict[Hashable, Exception | None] = {}


class _Unknown(Exception):
    """An argument that cannot be replaced by one to try with."""


def refusal(
    func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]
) -> Exception | None:
    """What a CPU's kernel raises for arguments of these types; None if it computes."""
    if not _is_tried(func):
        return None
    elementwise = _is_elementwise(func)
    parts: list[Hashable] = [func, torch.get_default_dtype()]
    if func in _SIZES:
        args = [(1,) if i == _SIZES[func] else arg for i, arg in enumerate(args)]
    try:
        models = [_model(arg, elementwise, parts) for arg in args]
        named = {name: _model(arg, elementwise, parts) for name, arg in kwargs.items()}
    except _Unknown:
        return None
    if func is _CONVOLUTION:
        models = _of_one_channel(models)
    key = (*parts, *kwargs)
    if key not in _known:
        _known[key] = _tried(func, models, named, elementwise)
    return _known[key]


@cache
def _is_tried(func: OpOverload) -> bool:
    if func.namespace != "aten" or func.is_view or torch.Tag.nondeterministic_seeded in func.tags:
        return False
    name = func._schema.name.removeprefix("aten::")
    if name.startswith("_foreach") or not func._schema.returns:
        return False
    if _is_elementwise(func) or torch.Tag.reduction in func.tags:
        return True
    return _SAFE.fullmatch(name.removesuffix("_")) is not None


@cache
def _is_elementwise(func: OpOverload) -> bool:
    """Whether an operator is elementwise, or (`add_`, `add.out`) writes what an elementwise one
    returns."""
    name, overload = func._schema.name.removeprefix("aten::"), func._overloadname
    packet = getattr(torch.ops.aten, name.removesuffix("_"), None)
    same = {"out": "default"}.get(overload, overload.removesuffix("_out"))
    return any(torch.Tag.pointwise in op.tags for op in (func, getattr(packet, same, func)))


@final
@dataclass(frozen=True, eq=False, slots=True)
class _Model:
    """Type and sizes of a tensor to try with; equal ones are identical."""

    dtype: torch.dtype
    sizes: tuple[int, ...]


@cache
def _interned(dtype: torch.dtype, sizes: tuple[int, ...]) -> _Model:
    return _Model(dtype, sizes)


def _model(arg: Any, elementwise: bool, parts: list[Hashable]) -> Any:
    """What stands for an argument in a trial; what decides about it is added to `parts`."""
    kind: Any = type(arg)
    if kind is FakeTensor:
        model = _tensor_model(arg, elementwise)
        parts.append(model)
        return model
    if kind is list or kind is tuple:
        parts.append(len(arg))
        return [_model(item, elementwise, parts) for item in arg]
    if kind in _NUMBERS:
        kind = _NUMBERS[kind]
        arg = _number(arg, kind)
    elif kind not in _PLAIN:
        raise _Unknown
    parts += [kind, arg]
    return arg


_NUMBERS: Final[dict[type, type]] = {
    int: int, float: float, torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool,
}
_PLAIN: Final = frozenset({
    bool, complex, str, type(None), torch.dtype, torch.device, torch.layout,
    torch.memory_format,
})


def _number(number: Any, kind: type) -> Any:
    is_symbolic = type(number) is not kind
    return kind(1) if is_symbolic or 0 < number <= _USUAL else number


def _tensor_model(fake: FakeTensor, elementwise: bool) -> _Model:
    if fake.fake_device.type != "cpu":
        raise _Unknown
    sizes: tuple[Any, ...] = tuple([_likely(n) for n in fake.size()])
    if elementwise and sizes:
        sizes = (int(0 not in sizes),)
    return _interned(fake.dtype, sizes)


def _likely(size: Any) -> int:
    """A size; of a symbolic one what it is likely to be, so that equal ones stay equal."""
    hint: int | None = size if type(size) is int else size.node.hint
    return _ENOUGH if hint is None else min(hint, _ENOUGH)


_CONVOLUTION: Final = torch.ops.aten.convolution.default


def _of_one_channel(models: list[Any]) -> list[object]:
    """The arguments of a convolution whose channels fit whatever its groups are."""
    *tensors, stride, padding, dilation, transposed, output_padding, _ = models
    channels = ((1, 1), (1, 1), (1,))  # image, weight, bias
    small = [tensor and _interned(tensor.dtype, (*ones, *tensor.sizes[len(ones):]))
             for tensor, ones in zip(tensors, channels, strict=True)]
    return [*small, stride, padding, dilation, transposed, output_padding, 1]


def _tried(
    func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object], elementwise: bool
) -> Exception | None:
    with no_modes(), DisableAutocast(), below_autograd(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            values = [_made(arg, elementwise) for arg in args]
            named = {name: _made(arg, elementwise) for name, arg in kwargs.items()}
        except RuntimeError:
            return None  # no such tensors can be made
        try:
            func(*values, **named)
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            if elementwise or _ABOUT_TYPES.search(str(error)):
                return type(error)(*error.args)
    return None


def _made(model: Any, elementwise: bool) -> object:
    kind = type(model)
    if kind is list:
        return [_made(item, elementwise) for item in model]
    if kind is not _Model:
        return model
    ones = elementwise or model.dtype.is_floating_point  # an index is 0
    return torch.full(model.sizes, int(ones), dtype=model.dtype)
