"""Metadata of common operators' results by formula, without PyTorch's meta kernels.

Place in the pipeline: what `MemoFakeMode` tries first for an operator that it has not seen on these
sizes. Many of PyTorch's meta kernels are Python programs that take 0.2 to 1.5 ms, guard on symbolic
sizes, and load sympy and more at their first use (half a second of a process's first compile). The
formulas here cover the plain cases of elementwise operators, matrix products, layer norm, embedding
and reductions. Unusual cases (empty tensors, mixed layouts or devices, complex numbers, sizes not
known to be equal) are left to PyTorch::

    infer(torch.ops.aten.add.Tensor, (x, y), {})   # [Result(sizes, strides, dtype, device)] or None
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, final

import torch

from weft._torch import FakeTensor, OpOverload
from weft.shapes.expr import Expr, IntExpr, floor_div, lower_bound, mod, symbol_of
from weft.shapes.relation import Condition, eq, ge

aten = torch.ops.aten

Sizes = tuple[IntExpr, ...]


@final
@dataclass(frozen=True, slots=True)
class Result:
    """A tensor: sizes and strides as expressions; a ``view`` is one of the first argument."""

    sizes: Sizes
    strides: Sizes
    dtype: torch.dtype
    device: torch.device
    view: bool = False


@final
class Unusual(Exception):
    """The formula does not cover this case."""


Rule = Callable[[Sequence[Any], Mapping[str, Any]], list[Result]]
RULES: Final[dict[OpOverload, Rule]] = {}


def infer(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Result] | None:
    """The results' metadata, or None if PyTorch must compute it."""
    rule = RULES.get(func)
    if rule is None:
        return None
    try:
        return rule(args, kwargs)
    except Unusual:
        return None


# ------------------------------------------------------------------------------ geometry


def sizes_of(tensor: torch.Tensor) -> Sizes:
    return _values(tensor.size())


def strides_of(tensor: torch.Tensor) -> Sizes:
    return _values(tensor.stride())


def _values(extents: Sequence[Any]) -> Sizes:
    return tuple([n if type(n) is int else n.node.value for n in extents])


def row_major(sizes: Sizes) -> Sizes:
    strides: list[IntExpr] = []
    step: IntExpr = 1
    for size in reversed(sizes):
        strides.append(step)
        step = step * size
    return tuple(reversed(strides))


def _same(a: IntExpr, b: IntExpr) -> bool:
    return a is b or (isinstance(a, int) and isinstance(b, int) and a == b)


def _all_same(left: Sizes, right: Sizes) -> bool:
    return len(left) == len(right) and all(map(_same, left, right))


def _is_row_major(sizes: Sizes, strides: Sizes) -> bool:
    expected: IntExpr = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if not _same(size, 1):
            if not _same(stride, expected):
                return False
            expected = expected * size
    return True


def _descends(strides: Sizes) -> bool:
    """Whether each dimension certainly has a larger stride than the next. If this holds for the
    first operand, the result is row-major, however the others are laid out."""
    ends = (*strides[1:], 0)
    return all(lower_bound(a - b) > 0 for a, b in zip(strides, ends, strict=True))


def _is_dense(sizes: Sizes, strides: Sizes) -> bool:
    """Whether there are no gaps in some order of the dimensions (decided for plain ints, and for
    row-major)."""
    if _is_row_major(sizes, strides):
        return True
    pairs = [(stride, size) for stride, size in zip(strides, sizes, strict=True)]
    if any(isinstance(n, Expr) for pair in pairs for n in pair) or any(n == 1 for n in sizes):
        return False
    expected = 1
    for stride, size in sorted(pairs):
        if stride != expected:
            return False
        expected = expected * size  # type: ignore[assignment]
    return True


def _guarded(condition: Condition, numbers: Sequence[Any]) -> bool:
    """Whether the condition holds in this call, guarded as PyTorch's rule would."""
    if isinstance(condition, bool):
        return condition
    context = next(n.node.shape_env for n in numbers if isinstance(n, torch.SymInt))
    answer: bool | None = context.truth(condition)
    if answer is None:
        raise Unusual
    return answer


def _require(condition: bool) -> None:
    if not condition:
        raise Unusual


def _gives_way(size: IntExpr, other: IntExpr) -> bool:
    """Whether a size that depends on data must be 1 or the other size, or eager raises."""
    unknown = isinstance(size, Expr) and any(symbol_of(s).kind == "unbacked" for s in size.symbols)
    return unknown and lower_bound(size) < 2 and lower_bound(other) >= 2


def _loose(tensors: Sequence[FakeTensor]) -> bool:
    """Whether the metadata serves operators that look at real sizes (not kernels)."""
    symbols = getattr(tensors[0].fake_mode, "symbols", None)
    return symbols is not None and not symbols.data.assuming


def _broadcast(shapes: Sequence[Sizes], loose: bool = False) -> Sizes:
    rank = max(map(len, shapes))
    result: list[IntExpr] = [1] * rank
    for shape in shapes:
        for d, size in enumerate(shape, start=rank - len(shape)):
            if _same(result[d], 1) or (loose and _gives_way(result[d], size)):
                result[d] = size
            else:
                fits = _same(size, 1) or _same(size, result[d])
                _require(fits or (loose and _gives_way(size, result[d])))
    return tuple(result)


def _nonempty(sizes: Sizes) -> bool:
    return not any(_same(size, 0) for size in sizes)


# ------------------------------------------------------------------------------ elementwise

_REAL: Final = frozenset(
    {torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32}
)


def _tensors(args: Sequence[Any]) -> list[FakeTensor]:
    found = [a for a in args if type(a) is FakeTensor]
    _require(bool(found))
    device = found[0].fake_device
    _require(all(t.fake_device == device for t in found))
    return found


def _elementwise(args: Sequence[Any], dtype: torch.dtype) -> list[Result]:
    """One result of the broadcast shape, laid out as TensorIterator does."""
    tensors = _tensors(args)
    shapes = [sizes_of(t) for t in tensors]
    strides = [strides_of(t) for t in tensors]
    sizes = _broadcast(shapes, _loose(tensors))
    _require(_nonempty(sizes))
    layouts = list(zip(shapes, strides, strict=True))
    leads = all(map(_same, shapes[0], sizes)) and len(shapes[0]) == len(sizes)
    if all(_is_row_major(*layout) for layout in layouts) or (leads and _descends(strides[0])):
        layout = row_major(sizes)
    else:
        first = strides[0]
        _require(all(_all_same(s, sizes) and _all_same(t, first) for s, t in layouts))
        _require(_is_dense(sizes, first))
        layout = first
    return [Result(sizes, layout, dtype, tensors[0].fake_device)]


def _promoted(args: Sequence[Any]) -> torch.dtype:
    """The common type of the operands: tensors before 0-d tensors before numbers."""
    tensors = [a for a in args if type(a) is FakeTensor]
    _require(all(t.dtype in _REAL for t in tensors))
    ranked = tuple((t.dtype, t.dim() > 0) for t in tensors)
    numbers = tuple(_number_type(a) for a in args if type(a) is not FakeTensor)
    return _common_type(ranked, numbers, torch.get_default_dtype())


def _number_type(value: Any) -> type:
    kind = type(value)
    known = {torch.SymInt: int, torch.SymFloat: float}.get(kind, kind)
    _require(known in (int, float))
    return known


@cache
def _common_type(
    tensors: tuple[tuple[torch.dtype, bool], ...], numbers: tuple[type, ...], default: torch.dtype
) -> torch.dtype:
    result = None
    for group in (
        [dtype for dtype, whole in tensors if whole],
        [dtype for dtype, whole in tensors if not whole],
    ):
        if group:
            here = group[0]
            for dtype in group[1:]:
                here = torch.promote_types(here, dtype)
            result = here if result is None else _lower_priority(result, here)
    assert result is not None
    if float in numbers and not result.is_floating_point:
        return default
    return result


def _lower_priority(high: torch.dtype, low: torch.dtype) -> torch.dtype:
    """The dtype with a group of lower rank, which matters only if its kind (float over int) is
    higher."""
    return low if low.is_floating_point and not high.is_floating_point else high


def _as_float(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype.is_floating_point else torch.get_default_dtype()


def _operands(count: int, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
    _require(len(args) >= count and not kwargs)
    return args[:count]


def _unary(to_float: bool) -> Rule:
    def rule(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Result]:
        operands = _operands(1, args, {})
        dtype = _promoted(operands)
        return _elementwise(operands, _as_float(dtype) if to_float else dtype)

    return rule


def _binary(to_float: bool = False) -> Rule:
    def rule(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Result]:
        _require(all(name == "alpha" and type(v) is int for name, v in kwargs.items()))
        operands = _operands(2, args, {})
        dtype = _promoted(operands)
        return _elementwise(operands, _as_float(dtype) if to_float else dtype)

    return rule


def _comparison(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Result]:
    operands = _operands(2, args, kwargs)
    _promoted(operands)
    return _elementwise(operands, torch.bool)


def _where(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Result]:
    operands = _operands(3, args, kwargs)
    _require(type(operands[0]) is FakeTensor and operands[0].dtype is torch.bool)
    _require(all(type(a) is FakeTensor for a in operands))
    return _elementwise(operands, _promoted(operands[1:]))


def _register(rule: Rule, overload: str, names: str) -> None:
    for name in names.split():
        RULES[getattr(getattr(aten, name), overload)] = rule


_register(_unary(to_float=False), "default", "relu neg floor ceil trunc sign silu gelu")
_register(_unary(to_float=False), "default", "hardswish leaky_relu elu hardtanh hardsigmoid mish")
_register(
    _unary(to_float=True), "default", "sigmoid tanh exp log log2 log10 log1p expm1 sqrt rsqrt"
)
_register(_unary(to_float=True), "default", "sin cos tan asin acos atan sinh cosh erf reciprocal")
for _overload in ("Tensor", "Scalar"):
    _register(_binary(), _overload, "add sub mul")
    _register(_binary(to_float=True), _overload, "div")
    _register(_comparison, _overload, "eq ne lt le gt ge")
_register(_binary(), "default", "maximum minimum")
RULES[aten.pow.Tensor_Scalar] = _binary()
RULES[aten.where.self] = _where


# ------------------------------------------------------------------------------ matrix products


def _matrix(tensor: Any, rank: int) -> Sizes:
    _require(type(tensor) is FakeTensor and tensor.dtype.is_floating_point)
    sizes = sizes_of(tensor)
    _require(len(sizes) == rank and _nonempty(sizes))
    return sizes


def _product(a: Any, b: Any, batch: int) -> list[Result]:
    left, right = _matrix(a, 2 + batch), _matrix(b, 2 + batch)
    _require(a.dtype == b.dtype and _same(left[-1], right[-2]))
    _require(_all_same(left[:batch], right[:batch]))
    sizes = (*left[:-1], right[-1])
    return [Result(sizes, row_major(sizes), a.dtype, _tensors((a, b))[0].fake_device)]


def _mm(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Result]:
    _require(len(args) == 2 and not kwargs)
    return _product(args[0], args[1], 0)


def _bmm(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Result]:
    _require(len(args) == 2 and not kwargs)
    return _product(args[0], args[1], 1)


def _addmm(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Result]:
    _require(len(args) == 3)
    (result,) = _product(args[1], args[2], 0)
    _require(args[0].dtype == result.dtype and args[0].fake_device == result.device)
    _require(_all_same(_broadcast([sizes_of(args[0]), result.sizes]), result.sizes))
    return [result]


RULES[aten.mm.default] = _mm
RULES[aten.bmm.default] = _bmm
RULES[aten.addmm.default] = _addmm


# ------------------------------------------------------------------------------ other families


def _layer_norm(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Result]:
    _require(len(args) == 5 and not kwargs)
    x, normalized, *parameters = args[:4]
    tensors = _tensors([x, *parameters])
    _require(all(t.dtype == x.dtype for t in tensors) and x.dtype in (torch.float32, torch.float64))
    sizes, count = sizes_of(x), len(normalized)
    inner = _values(normalized)
    _require(0 < count <= len(sizes) and _all_same(sizes[-count:], inner) and _nonempty(sizes))
    _require(_is_row_major(sizes, strides_of(x)))
    statistics = (*sizes[:-count], *[1] * count)
    return [
        Result(shape, row_major(shape), x.dtype, x.fake_device)
        for shape in (sizes, statistics, statistics)
    ]


def _embedding(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Result]:
    table, indices = args[0], args[1]
    _require(type(table) is FakeTensor and type(indices) is FakeTensor and not kwargs)
    _require(indices.dtype in (torch.int64, torch.int32) and table.dim() == 2)
    _require(table.fake_device == indices.fake_device)
    sizes = (*sizes_of(indices), sizes_of(table)[1])
    _require(_nonempty(sizes))
    return [Result(sizes, row_major(sizes), table.dtype, table.fake_device)]


def _reduction(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Result]:
    """A reduction over given dimensions of a row-major float tensor."""
    _require(2 <= len(args) <= 3 and not kwargs and type(args[0]) is FakeTensor)
    x, dims = args[0], args[1]
    keep = len(args) == 3 and args[2] is True
    sizes = sizes_of(x)
    _require(x.dtype.is_floating_point and isinstance(dims, list | tuple) and len(dims) > 0)
    _require(_nonempty(sizes) and _is_row_major(sizes, strides_of(x)))
    _require(all(-len(sizes) <= d < len(sizes) for d in dims))
    gone = {d % len(sizes) for d in dims}
    _require(len(gone) == len(dims))
    kept = [1 if d in gone else n for d, n in enumerate(sizes) if keep or d not in gone]
    return [Result(tuple(kept), row_major(tuple(kept)), x.dtype, x.fake_device)]


def _extremes(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Result]:
    """Not for empty tensors, which have no largest element."""
    _require(type(args[0]) is FakeTensor and all(lower_bound(n) > 0 for n in sizes_of(args[0])))
    return _reduction(args, kwargs)


def _view(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Result]:
    """A view of a row-major tensor: row-major again (PyTorch gives sizes of 1 other strides)."""
    _require(len(args) == 2 and not kwargs and type(args[0]) is FakeTensor)
    x = args[0]
    sizes, wanted = sizes_of(x), _values(args[1])
    _require(_nonempty(sizes) and _is_row_major(sizes, strides_of(x)))
    total, known = math.prod(sizes), math.prod([n for n in wanted if not _same(n, -1)])
    open_sizes = [d for d, n in enumerate(wanted) if _same(n, -1)]
    numbers = (*x.size(), *args[1])
    if len(open_sizes) == 1:
        _require(lower_bound(known) > 0 or _guarded(ge(known, 1), numbers))  # else any would do
        missing = floor_div(total, known)
        _require(_same(missing * known, total) or _guarded(eq(mod(total, known), 0), numbers))
        wanted = tuple([missing if d in open_sizes else n for d, n in enumerate(wanted)])
    else:
        _require(not open_sizes)
        _require(_same(total, known) or _guarded(eq(total, known), numbers))
    _require(not any(_same(n, 1) for n in (*sizes, *wanted)))
    return [Result(wanted, row_major(wanted), x.dtype, x.fake_device, view=True)]


RULES[aten.view.default] = _view
RULES[aten._unsafe_view.default] = _view
RULES[aten.native_layer_norm.default] = _layer_norm
RULES[aten.embedding.default] = _embedding
RULES[aten.sum.dim_IntList] = _reduction
RULES[aten.mean.dim] = _reduction
RULES[aten.amax.default] = _extremes
RULES[aten.amin.default] = _extremes


# ------------------------------------------------------------------------------ resized images


def _resized(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Result]:
    """`(image, sizes, ...)`: the sizes of its pixels."""
    _require(type(args[0]) is FakeTensor and not kwargs)
    return _image(args[0], (*args[0].shape[:2], *args[1]))


def _resized_gradient(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Result]:
    """`(gradient, sizes after, sizes before, ...)`: all sizes, those of batch and channels too."""
    _require(type(args[0]) is FakeTensor and not kwargs)
    return _image(args[0], args[2])


def _image(given: FakeTensor, wanted: Sequence[Any]) -> list[Result]:
    """An image laid out as another one."""
    sizes, before, strides = _values(wanted), sizes_of(given), strides_of(given)
    _require(len(sizes) == len(before) >= 3)
    numbers = (*given.shape, *wanted)
    _require(all(lower_bound(n) > 0 or _guarded(ge(n, 1), numbers) for n in (*before, *sizes)))
    if _is_row_major(before, strides):
        layout = row_major(sizes)
    else:  # GPUs turn images of few channels
        _require(given.fake_device.type == "cpu" and len(sizes) > 3)
        _require(_all_same(strides, _channels_last(before)))
        layout = _channels_last(sizes)
    return [Result(sizes, layout, given.dtype, given.fake_device)]


def _channels_last(sizes: Sizes) -> Sizes:
    batch, *pixels = row_major((sizes[0], *sizes[2:], sizes[1]))[:-1]
    return (batch, 1, *pixels)


for _name in ("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d",
              "upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d",
              "upsample_bicubic2d", "_upsample_nearest_exact1d", "_upsample_nearest_exact2d",
              "_upsample_nearest_exact3d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"):
    RULES[getattr(aten, _name).default] = _resized
    RULES[getattr(aten, f"{_name}_backward").default] = _resized_gradient


# ------------------------------------------------------------------------------ gradients


def _shrunk_gradient(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Result]:
    """`(gradient, input, a number)`: elementwise."""
    operands = _operands(2, args, {})
    return _elementwise(operands, _promoted(operands))


def _margin_gradient(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Result]:
    """`(gradient, input, ...)`: the gradient of the input, row-major."""
    x = args[1]
    _require(type(x) is FakeTensor and x.dtype in _REAL)
    sizes = sizes_of(x)
    _require(_nonempty(sizes) and _is_row_major(sizes, strides_of(x)))
    return [Result(sizes, row_major(sizes), x.dtype, x.fake_device)]


_register(_shrunk_gradient, "default", "hardshrink_backward softshrink_backward")
_register(_margin_gradient, "default",
          "multi_margin_loss_backward multilabel_margin_loss_backward")
