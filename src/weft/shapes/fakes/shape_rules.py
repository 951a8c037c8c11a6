"""Metadata of common operators' results by formula, without PyTorch's meta kernels.

Place in the pipeline: what `MemoFakeMode` tries first for an operator that it has not seen on these
sizes. Many of PyTorch's meta kernels are Python programs that take 0.2 to 1.5 ms, guard on symbolic
sizes, and load sympy and more at their first use (half a second of a process's first compile). The
formulas here cover the plain cases of elementwise operators, matrix products, convolutions, layer
norm, embedding, reductions, copies and joins. Unusual cases (empty tensors, mixed devices, complex
numbers, layouts that depend on an undecided comparison, sizes not known to be equal) are left to
PyTorch::

    infer(torch.ops.aten.add.Tensor, (x, y), {})   # [Result(sizes, strides, dtype, device)] or None
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, wraps
from typing import TYPE_CHECKING, Any, Final, final

import torch

from weft._torch import FakeTensor, OpOverload
from weft.arity import arity
from weft.shapes.algebra.bounds import lower_bound
from weft.shapes.algebra.expr import Expr, IntExpr, floor_div, symbol_of
from weft.shapes.algebra.layout import (
    channels_last,
    dense_strides,
    is_row_major,
    permuted_row_major,
    row_major,
)
from weft.shapes.algebra.relation import Condition, eq, ge

if TYPE_CHECKING:
    from weft.shapes.context import ShapeContext

aten = torch.ops.aten

Sizes = tuple[IntExpr, ...]


@final
@dataclass(frozen=True, slots=True)
class Result:
    """A tensor: sizes and strides as expressions; a ``view`` is one of the first argument, and
    starts ``offset`` elements behind the start of its memory."""

    sizes: Sizes
    strides: Sizes
    dtype: torch.dtype
    device: torch.device
    view: bool = False
    offset: IntExpr = 0


@final
class Unusual(Exception):
    """The formula does not cover this case."""


Rule = Callable[..., list[Result]]
"""Has the operator's parameters; what does not fit them is not covered."""

RULES: Final[dict[OpOverload, Rule]] = {}


_contexts: Final[list[ShapeContext | None]] = []
"""Of the symbolic sizes in the call that is being answered."""


def infer(
    func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object],
    context: ShapeContext | None = None,
) -> list[Result] | None:
    """The results' metadata, or None if PyTorch must compute it."""
    rule = RULES.get(func)
    if rule is None or not arity(rule).accepts(len(args), kwargs):
        return None
    _contexts.append(context)
    try:
        return rule(*args, **kwargs)
    except Unusual:
        return None
    finally:
        _contexts.pop()


# ------------------------------------------------------------------------------ geometry


def sizes_of(tensor: torch.Tensor) -> Sizes:
    return values_of(tensor.size())


def strides_of(tensor: torch.Tensor) -> Sizes:
    return values_of(tensor.stride())


def values_of(extents: Sequence[Any]) -> Sizes:
    return tuple([n if type(n) is int else n.node.value for n in extents])


def same(a: IntExpr, b: IntExpr) -> bool:
    return a is b or (isinstance(a, int) and isinstance(b, int) and a == b)


def all_same(left: Sizes, right: Sizes) -> bool:
    return len(left) == len(right) and all(map(same, left, right))


def guarded(condition: Condition) -> bool:
    """Whether the condition holds in this call. Unless that is known for all calls, a guard
    requires it, as PyTorch's rule would."""
    if isinstance(condition, bool):
        return condition
    context = _contexts[-1]
    answer = None if context is None else context.truth(condition)
    if answer is None:
        raise Unusual
    return answer


def at_least(value: IntExpr, least: int) -> bool:
    """Whether this is known, without a guard."""
    context = _contexts[-1]
    return lower_bound(value) >= least or (
        context is not None and context.decide(ge(value, least)) is True)


def require(condition: bool) -> None:
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
            if same(result[d], 1) or (loose and _gives_way(result[d], size)):
                result[d] = size
            else:
                fits = same(size, 1) or same(size, result[d])
                require(fits or (loose and _gives_way(size, result[d])))
    return tuple(result)


def _are_ones_known(sizes: Sizes) -> bool:
    """Whether it is known of each size whether it is 1."""
    return all(same(n, 1) or at_least(n, 2) for n in sizes)


def nonempty(sizes: Sequence[IntExpr]) -> bool:
    return not any(same(size, 0) for size in sizes)


# ------------------------------------------------------------------------------ elementwise

_REAL: Final = frozenset(
    {torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32}
)


def _tensors(args: Sequence[object]) -> list[FakeTensor]:
    tensors = [a for a in args if type(a) is FakeTensor]
    require(bool(tensors))
    device = tensors[0].fake_device
    require(all(t.fake_device == device for t in tensors))
    return tensors


def _elementwise(args: Sequence[object], dtype: torch.dtype) -> list[Result]:
    """One result of the broadcast shape, laid out as TensorIterator does."""
    tensors = _tensors(args)
    shapes = [sizes_of(t) for t in tensors]
    strides = [strides_of(t) for t in tensors]
    sizes = _broadcast(shapes, _loose(tensors))
    require(nonempty(sizes))
    operands = list(zip(shapes, strides, strict=True))
    if len(tensors) < len(args):
        operands.append(((), ()))  # a number is an operand without dimensions
    layout = _iterated_layout(sizes, operands)
    return [Result(sizes, layout, dtype, tensors[0].fake_device)]


def _iterated_layout(sizes: Sizes, operands: Sequence[tuple[Sizes, Sizes]]) -> Sizes:
    """The strides of an elementwise result of operands with these sizes and strides."""
    first = operands[0][1]
    alike = all(all_same(shape, sizes) for shape, _ in operands)
    if alike and all(is_row_major(*operand) for operand in operands):
        return row_major(sizes)
    if not alike and all(all_same(strides, row_major(shape)) for shape, strides in operands):
        return row_major(sizes)
    require(_are_ones_known(sizes))  # they decide which operands are dense
    if alike and permuted_row_major(sizes, first) and all(all_same(t, first) for _, t in operands):
        require(len(sizes) < 4 or 1 not in sizes or all_same(first, channels_last(sizes)))
        return first
    return _nested(sizes, [_broadcast_strides(sizes, *operand) for operand in operands])


def _broadcast_strides(sizes: Sizes, shape: Sizes, strides: Sizes) -> Sizes:
    """The operand's strides for the result's dimensions: 0 where it is repeated."""
    new = len(sizes) - len(shape)
    require(all(same(n, size) or same(n, 1) for n, size in zip(shape, sizes[new:], strict=True)))
    kept = [stride if same(n, size) else 0
            for size, n, stride in zip(sizes[new:], shape, strides, strict=True)]
    return (*[0] * new, *kept)


def _nested(sizes: Sizes, operands: Sequence[Sizes]) -> Sizes:
    """Dense strides in the order of the operands' strides, as TensorIterator sorts dimensions."""
    order = list(reversed(range(len(sizes))))  # from the innermost dimension
    for place in range(1, len(order)):
        for before in reversed(range(place)):
            comparison = _inner_of(sizes, operands, order[before], order[place])
            if comparison < 0:
                break
            if comparison > 0:
                order[before], order[place] = order[place], order[before]
                place = before
    return dense_strides(sizes, order)


def _inner_of(sizes: Sizes, operands: Sequence[Sizes], inner: int, outer: int) -> int:
    """-1 if the dimensions are in order, 1 if they must be exchanged, 0 if either would do."""
    for strides in operands:
        a, b = strides[inner], strides[outer]
        if same(a, 0) or same(b, 0):
            continue
        if same(a, b):
            if _is_larger(sizes[inner], sizes[outer]):
                return 1
        else:
            return 1 if _is_larger(a, b) else -1
    return 0


def _is_larger(a: IntExpr, b: IntExpr) -> bool:
    larger = at_least(a - b, 1)
    require(larger or at_least(b - a, 0))
    return larger


def _promoted(args: Sequence[object]) -> torch.dtype:
    """The common type of the operands: tensors before 0-d tensors before numbers."""
    tensors = [a for a in args if type(a) is FakeTensor]
    require(all(t.dtype in _REAL for t in tensors))
    ranked = tuple((t.dtype, t.dim() > 0) for t in tensors)
    numbers = tuple(_number_type(a) for a in args if type(a) is not FakeTensor)
    return _common_type(ranked, numbers, torch.get_default_dtype())


def _number_type(value: object) -> type:
    kind = type(value)
    known = {torch.SymInt: int, torch.SymFloat: float}.get(kind, kind)
    require(known in (int, float))
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


def _unary(to_float: bool) -> Rule:
    def rule(x: object, /, *options: object, **named: object) -> list[Result]:
        dtype = _promoted([x])
        return _elementwise([x], _as_float(dtype) if to_float else dtype)

    return rule


def _binary(to_float: bool = False) -> Rule:
    def rule(x: object, y: object, /, *options: object, alpha: object = 1) -> list[Result]:
        require(type(alpha) is int)
        dtype = _promoted([x, y])
        return _elementwise([x, y], _as_float(dtype) if to_float else dtype)

    return rule


def _of_one_type(rule: Rule, floats: bool = False) -> Rule:
    """A rule for two tensors of the same type; the meta kernels know what others may be."""

    @wraps(rule)
    def checked(x: object, y: object, /, *options: object, **named: object) -> list[Result]:
        first, second = _tensors([x, y])
        require(first.dtype is second.dtype and (first.dtype.is_floating_point or not floats))
        return rule(x, y, *options, **named)

    return checked


def _comparison(x: object, y: object, /) -> list[Result]:
    _promoted([x, y])
    return _elementwise([x, y], torch.bool)


def _logical(x: object, y: object, /) -> list[Result]:
    return _elementwise([x, y], torch.bool)


def _masked(gradient: Any, mask: Any, scale: object, /) -> list[Result]:
    """gradient * mask * scale"""
    require(gradient.dtype.is_floating_point or gradient.dtype.is_complex)
    return _elementwise((gradient, mask), gradient.dtype)


def _threshold_gradient(gradient: Any, x: Any, threshold: object, /) -> list[Result]:
    """Laid out as the input, which is the second argument, rather than as the gradient."""
    require(gradient.dtype is x.dtype and x.dtype.is_floating_point)
    return _elementwise((x, gradient), x.dtype)


def _power(x: object, exponent: object, /) -> list[Result]:
    return _elementwise([x], _promoted([x, exponent]))  # the exponent is no operand


def _where(condition: object, x: object, y: object, /) -> list[Result]:
    require(type(condition) is FakeTensor and condition.dtype is torch.bool)
    require(type(x) is FakeTensor and type(y) is FakeTensor)
    return _elementwise([condition, x, y], _promoted([x, y]))


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
_register(_of_one_type(_binary()), "default", "heaviside")
_register(_of_one_type(_binary(), floats=True), "default", "logaddexp logaddexp2 logit_backward")
RULES[aten.native_dropout_backward.default] = _masked
RULES[aten.threshold_backward.default] = _threshold_gradient
_register(_binary(to_float=True), "Tensor", "copysign xlogy")
_register(_binary(to_float=True), "default", "special_xlog1py")
_register(_logical, "default", "logical_and logical_or logical_xor")
RULES[aten.pow.Tensor_Scalar] = _power
RULES[aten.where.self] = _where


# ------------------------------------------------------------------------------ matrix products


def _matrix(tensor: Any, rank: int) -> Sizes:
    require(type(tensor) is FakeTensor and tensor.dtype.is_floating_point)
    sizes = sizes_of(tensor)
    require(len(sizes) == rank and nonempty(sizes))
    return sizes


def _product(a: Any, b: Any, batch: int) -> list[Result]:
    left, right = _matrix(a, 2 + batch), _matrix(b, 2 + batch)
    require(a.dtype == b.dtype and same(left[-1], right[-2]))
    require(all_same(left[:batch], right[:batch]))
    sizes = (*left[:-1], right[-1])
    return [Result(sizes, row_major(sizes), a.dtype, _tensors((a, b))[0].fake_device)]


def _mm(a: object, b: object, /) -> list[Result]:
    return _product(a, b, 0)


def _bmm(a: object, b: object, /) -> list[Result]:
    return _product(a, b, 1)


def _addmm(x: Any, a: object, b: object, /, *, beta: object = 1, alpha: object = 1) -> list[Result]:
    (result,) = _product(a, b, 0)
    require(x.dtype == result.dtype and x.fake_device == result.device)
    require(all_same(_broadcast([sizes_of(x), result.sizes]), result.sizes))
    return [result]


RULES[aten.mm.default] = _mm
RULES[aten.bmm.default] = _bmm
RULES[aten.addmm.default] = _addmm


# ------------------------------------------------------------------------------ convolutions


def _convolution(
    x: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    extra: Any, groups: Any, /,
) -> list[Result]:
    """Of row-major operands."""
    window = (stride, padding, dilation)
    (count,) = values_of([groups])
    tensors = _tensors([t for t in (x, weight, bias) if t is not None])
    require(all(t.dtype == x.dtype and t.dtype.is_floating_point for t in tensors))
    sizes, kernel = sizes_of(x), sizes_of(weight)
    rank = len(sizes) - 2
    require(all(type(n) is int for numbers in (*window, extra) for n in numbers))
    require(rank >= 1 and len(kernel) == rank + 2 and nonempty(kernel))
    require(all(all_same(strides_of(t), row_major(sizes_of(t))) for t in (x, weight)))
    channels = kernel[0] if transposed else kernel[1] * count
    require(same(sizes[1], channels) or guarded(eq(sizes[1], channels)))
    channels = kernel[1] * count if transposed else kernel[0]
    pixels = windows(sizes[2:], kernel[2:], window, extra if transposed else None)
    result = (sizes[0], channels, *pixels)
    require(all(guarded(ge(n, 1)) for n in (*sizes, *result)))
    return [Result(result, row_major(result), x.dtype, x.fake_device)]


def windows(
    sizes: Sizes, kernel: Sizes, window: Sequence[Sequence[int]], extra: Sequence[int] | None = None
) -> Sizes:
    """The places of a window, given by steps, paddings and dilations. With ``extra`` sizes, the
    number of pixels that so many places came from."""
    result: list[IntExpr] = []
    for d, size in enumerate(sizes):
        step, padding, dilation = (n[d % len(n)] for n in window)
        reach = dilation * (kernel[d % len(kernel)] - 1) + 1
        if extra is not None:
            result.append((size - 1) * step - 2 * padding + reach + extra[d % len(extra)])
        else:
            result.append(floor_div(size + 2 * padding - reach, step) + 1)
    return tuple(result)


def _padded(x: Any, widths: Any, value: object = 0, /) -> list[Result]:
    """`constant_pad_nd` of a row-major tensor."""
    pads = values_of(widths)
    sizes = list(sizes_of(x))
    require(nonempty(sizes) and all_same(strides_of(x), row_major(tuple(sizes))))
    require(len(pads) % 2 == 0 and len(pads) <= 2 * len(sizes))
    for i in range(0, len(pads), 2):
        sizes[-1 - i // 2] = sizes[-1 - i // 2] + pads[i] + pads[i + 1]
    require(all(at_least(n, 1) for n in sizes))
    return [Result(tuple(sizes), row_major(tuple(sizes)), x.dtype, x.fake_device)]


RULES[aten.convolution.default] = _convolution
RULES[aten.constant_pad_nd.default] = _padded


# ------------------------------------------------------------------------------ other families


def _layer_norm(
    x: Any, normalized: Any, weight: object, bias: object, eps: object, /
) -> list[Result]:
    tensors = _tensors([x, weight, bias])
    require(all(t.dtype == x.dtype for t in tensors) and x.dtype in (torch.float32, torch.float64))
    sizes, count = sizes_of(x), len(normalized)
    inner = values_of(normalized)
    require(0 < count <= len(sizes) and all_same(sizes[-count:], inner) and nonempty(sizes))
    require(is_row_major(sizes, strides_of(x)))
    statistics = (*sizes[:-count], *[1] * count)
    return [
        Result(shape, row_major(shape), x.dtype, x.fake_device)
        for shape in (sizes, statistics, statistics)
    ]


def _embedding(table: Any, indices: Any, /, *options: object) -> list[Result]:
    require(type(table) is FakeTensor and type(indices) is FakeTensor)
    require(indices.dtype in (torch.int64, torch.int32) and table.dim() == 2)
    require(table.fake_device == indices.fake_device)
    sizes = (*sizes_of(indices), sizes_of(table)[1])
    require(nonempty(sizes))
    return [Result(sizes, row_major(sizes), table.dtype, table.fake_device)]


def _reduction(x: Any, dims: Any, keep: object = False, /) -> list[Result]:
    """A reduction over given dimensions of a row-major float tensor."""
    require(type(x) is FakeTensor)
    sizes = sizes_of(x)
    require(x.dtype.is_floating_point and isinstance(dims, list | tuple) and len(dims) > 0)
    require(nonempty(sizes) and is_row_major(sizes, strides_of(x)))
    require(all(-len(sizes) <= d < len(sizes) for d in dims))
    gone = {d % len(sizes) for d in dims}
    require(len(gone) == len(dims))
    kept = [1 if d in gone else n for d, n in enumerate(sizes) if keep is True or d not in gone]
    return [Result(tuple(kept), row_major(tuple(kept)), x.dtype, x.fake_device)]


def _extremes(x: object, dims: object, keep: object = False, /) -> list[Result]:
    """Not for empty tensors, which have no largest element."""
    require(type(x) is FakeTensor and all(at_least(n, 1) for n in sizes_of(x)))
    return _reduction(x, dims, keep)


def _copy(
    x: Any, /, *, dtype: torch.dtype | None = None, layout: Any = None, device: Any = None,
    memory_format: object = None, non_blocking: object = False,
) -> list[Result]:
    """`clone` and conversions to another dtype, on the same device."""
    require(type(x) is FakeTensor)
    require(layout in (None, torch.strided) and device in (None, x.fake_device))
    sizes, strides = sizes_of(x), strides_of(x)
    require(nonempty(sizes))
    require(memory_format in (None, torch.preserve_format, torch.contiguous_format))
    if memory_format is torch.contiguous_format:
        strides = row_major(sizes)
    else:
        require(is_row_major(sizes, strides) or (
            _are_ones_known(sizes) and permuted_row_major(sizes, strides)))
    return [Result(sizes, strides, dtype or x.dtype, x.fake_device)]


def _joined(tensors: object, dim: object = 0, /) -> list[Result]:
    """`cat`: of tensors of one rank and dtype that are not laid out as channels-last."""
    pieces, shapes, d = _pieces(tensors, dim, 0)
    rank = len(shapes[0])
    require(all(len(s) == rank and nonempty(s) for s in shapes))
    require(all(same(s[i], shapes[0][i]) for s in shapes for i in range(rank) if i != d))
    size: IntExpr = 0
    for shape in shapes:
        size = size + shape[d]
    return _row_major_result((*shapes[0][:d], size, *shapes[0][d + 1 :]), pieces)


def _stacked(tensors: object, dim: object = 0, /) -> list[Result]:
    pieces, shapes, d = _pieces(tensors, dim, 1)
    require(nonempty(shapes[0]) and all(all_same(s, shapes[0]) for s in shapes))
    return _row_major_result((*shapes[0][:d], len(pieces), *shapes[0][d:]), pieces)


def _pieces(pieces: Any, dim: Any, new: int) -> tuple[list[FakeTensor], list[Sizes], int]:
    """Tensors, their sizes, and the dimension in a result with ``new`` more dimensions."""
    shapes = [sizes_of(piece) for piece in pieces]
    rank = len(shapes[0]) + new if shapes else 0
    require(type(dim) is int and -rank <= dim < rank)
    return pieces, shapes, dim % rank


def _row_major_result(sizes: Sizes, pieces: Sequence[FakeTensor]) -> list[Result]:
    tensors = _tensors(pieces)
    require(len(tensors) == len(pieces) and all(t.dtype == tensors[0].dtype for t in tensors))
    if len(sizes) in (4, 5):  # else there is no channels-last form
        layouts = [strides_of(t) for t in tensors]
        require(any(len(steps) > 3 and at_least(steps[1] - steps[-1], 1) for steps in layouts))
    return [Result(sizes, row_major(sizes), tensors[0].dtype, tensors[0].fake_device)]


def _range(
    bound: object, /, *more: object, dtype: torch.dtype | None = None, layout: object = None,
    device: torch.device | None = None, pin_memory: object = None,
) -> list[Result]:
    """`arange(end)`, `arange(start, end)`, `arange(start, end, step)` of ints."""
    bounds = [bound, *more]
    require(all(type(n) in (int, torch.SymInt) for n in bounds))
    require(layout in (None, torch.strided) and (dtype is None or dtype in _REAL))
    numbers = values_of(bounds)
    start, end = (0, numbers[0]) if len(numbers) == 1 else numbers[:2]
    step = numbers[2] if len(numbers) == 3 else 1
    require(isinstance(step, int) and step > 0 and at_least(end - start, 1))
    length = floor_div(end - start + (step - 1), step)
    place = device or torch.device("cpu")
    require(place.type == "cpu" or place.index is not None)
    return [Result((length,), (1,), dtype or torch.int64, place)]


RULES[aten.clone.default] = _copy
RULES[aten._to_copy.default] = _copy
RULES[aten.cat.default] = _joined
RULES[aten.stack.default] = _stacked
for _overload in ("default", "start", "start_step"):
    RULES[getattr(aten.arange, _overload)] = _range
RULES[aten.native_layer_norm.default] = _layer_norm
RULES[aten.embedding.default] = _embedding
RULES[aten.sum.dim_IntList] = _reduction
RULES[aten.mean.dim] = _reduction
RULES[aten.amax.default] = _extremes
RULES[aten.amin.default] = _extremes


# ------------------------------------------------------------------------------ resized images


def _resized(image: Any, sizes: Any, /, *options: object) -> list[Result]:
    """`sizes` of its pixels."""
    require(type(image) is FakeTensor)
    return _image(image, (*image.shape[:2], *sizes))


def _resized_gradient(gradient: Any, after: object, before: Any, /, *options: object
                      ) -> list[Result]:
    """All sizes `before` it was resized, those of batch and channels too."""
    require(type(gradient) is FakeTensor)
    return _image(gradient, before)


def _unless_gpus_differ(rule: Rule) -> Rule:
    """A rule for images; those on GPUs, which this operator may lay out otherwise, row-major."""

    @wraps(rule)
    def restricted(image: Any, /, *options: object) -> list[Result]:
        require(type(image) is FakeTensor)
        require(image.fake_device.type == "cpu"
                or is_row_major(sizes_of(image), strides_of(image)))
        return rule(image, *options)

    return restricted


def _image(image: FakeTensor, wanted: Sequence[object]) -> list[Result]:
    """An image laid out as another one; no images at all (a batch that may depend on data) are
    row-major."""
    sizes, before, strides = values_of(wanted), sizes_of(image), strides_of(image)
    require(len(sizes) == len(before) >= 3)
    require(all(guarded(ge(n, 1)) for n in (*before[1:], *sizes[1:])))
    if is_row_major(before, strides):
        layout = row_major(sizes)
    else:
        require(guarded(ge(before[0], 1)))
        require(len(sizes) > 3 and all_same(strides, channels_last(before)))
        layout = channels_last(sizes)
    return [Result(sizes, layout, image.dtype, image.fake_device)]


for _name in ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"):
    RULES[getattr(aten, _name).default] = _resized
    RULES[getattr(aten, f"{_name}_backward").default] = _resized_gradient
for _name in ("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d",
              "_upsample_nearest_exact1d", "_upsample_nearest_exact2d",
              "_upsample_nearest_exact3d", "upsample_bicubic2d"):
    RULES[getattr(aten, _name).default] = _resized
    RULES[getattr(aten, f"{_name}_backward").default] = _unless_gpus_differ(_resized_gradient)
for _name in ("_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa"):
    RULES[getattr(aten, _name).default] = _unless_gpus_differ(_resized)
    RULES[getattr(aten, f"{_name}_backward").default] = _unless_gpus_differ(_resized_gradient)


# ------------------------------------------------------------------------------ gradients


def _shrunk_gradient(gradient: object, x: object, threshold: object, /) -> list[Result]:
    return _elementwise([gradient, x], _promoted([gradient, x]))


def _margin_gradient(gradient: object, x: Any, /, *options: object) -> list[Result]:
    """The gradient of the input, row-major."""
    require(type(x) is FakeTensor and x.dtype in _REAL)
    sizes = sizes_of(x)
    require(nonempty(sizes) and is_row_major(sizes, strides_of(x)))
    return [Result(sizes, row_major(sizes), x.dtype, x.fake_device)]


_register(_shrunk_gradient, "default", "hardshrink_backward softshrink_backward")
_register(_margin_gradient, "default",
          "multi_margin_loss_backward multilabel_margin_loss_backward")
