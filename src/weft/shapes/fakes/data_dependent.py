"""Operators whose result, or whose result's sizes, depend on data.

Place in the pipeline: `MemoFakeMode` tries these rules first. They describe results by *unbacked*
symbols of a `ShapeContext`: integers with a range but no value (``u0``), floats (``v0``). PyTorch's
own rules need its ShapeEnv, and sympy::

    with mode:                       # mode.symbols is a ShapeContext
        torch.nonzero(fake)          # sizes (u0, fake.dim()), 0 <= u0 <= fake.numel()
        fake[mask]                   # sizes (u1, ...); u1 again for other[mask]
        fake.sum().item()            # a SymFloat (v0), SymInt (u2) or SymBool

Without a context, or if it does not allow such symbols, PyTorch raises, and capture breaks the
graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch

from weft._torch import FakeTensor, FakeTensorMode, OpOverload, in_kernel_invocation
from weft.registrar import registrar
from weft.shapes.algebra.expr import IntExpr, floor_div, maximum, minimum, symbol_of, symbols
from weft.shapes.algebra.intervals import INF
from weft.shapes.algebra.relation import and_, eq, ge, lt
from weft.shapes.fakes.make_fake import make_fake, make_meta
from weft.shapes.fakes.schemas import schema_arguments
from weft.shapes.symnode import certainly_equal, expr_of

if TYPE_CHECKING:
    from weft.shapes.context import ShapeContext

aten = torch.ops.aten

Rule = Callable[..., Any]
RULES: Final[dict[OpOverload, Rule]] = {}
"""(mode, context, the operator's arguments) -> result, or NotImplemented where PyTorch knows it."""

_META: Final = torch.device("meta")
_MASKS: Final = (torch.bool, torch.uint8)

_rule = registrar(RULES)


# ------------------------------------------------------------------------------ parts


def is_mask(index: object) -> bool:
    """Whether indexing with it gives a size that depends on data."""
    return isinstance(index, torch.Tensor) and index.dtype in _MASKS


def _new(
    mode: FakeTensorMode, like: FakeTensor, size: Sequence[Any], dtype: torch.dtype,
    stride: Sequence[object] | None = None,
) -> FakeTensor:
    """A fresh tensor on the device of `like`, row-major unless `stride` is given."""
    if stride is None:
        meta = torch.empty(tuple(size), dtype=dtype, device=_META)
    else:
        meta = make_meta(tuple(size), tuple(stride), dtype)
    return make_fake(mode, meta, like.fake_device)


def _count(
    context: ShapeContext, origin: str, most: Any, key: object = None, *,
    of: FakeTensor | None = None, count: Callable[[torch.Tensor], Any] = torch.count_nonzero,
) -> object:
    """A count of at most `most`; the same symbol for the same `key`.

    If the data `of` is known, the actual count.
    """
    if type(most) is int and most == 0:
        return 0
    counted = None if of is None else context.from_known_data(of, lambda data: int(count(data)))
    if counted is not None:
        return counted
    known = None if key is None else context.data.known_counts.get(key)
    if known is None:
        limit = most if type(most) is int else INF
        known = context.unbacked(origin, lo=0, hi=limit)
        if type(most) is not int:
            context.learn(ge(expr_of(most), expr_of(known)), True)
        if key is not None:
            context.data.known_counts[key] = known
    return known


def _identity(context: ShapeContext, tensor: FakeTensor, what: str) -> object:
    """A key for a tensor's current content, for fakes that stand for one tensor each."""
    if not context.data.fakes_are_tensors or tensor.is_inference():
        return None
    context.data.kept.append(tensor)  # so that its id stays unique
    return what, id(tensor), tensor._version


# ------------------------------------------------------------------------------ sizes


@_rule(aten.nonzero.default)
def _nonzero(mode: Any, context: ShapeContext, x: FakeTensor) -> object:
    count = _count(context, "nonzero", x.numel(), _identity(context, x, "nonzero"), of=x)
    return _new(mode, x, (count, x.dim()), torch.int64, (1, count))


@_rule(aten.index.Tensor)
def _index(mode: Any, context: ShapeContext, x: FakeTensor, indices: Any) -> object:
    """Replace masks by their positions, one list for each of their dimensions."""
    if not any(map(is_mask, indices)):
        return NotImplemented
    positions: list[Any] = []
    for index in indices:
        if is_mask(index):
            _require_fit(context, x, index, len(positions))
            count = _count(
                context, "a mask", index.numel(), _identity(context, index, "nonzero"), of=index
            )
            places = _new(mode, index, (count,), torch.int64)
            positions.extend([places] * index.dim() if index.dim() else [places])
        else:
            positions.append(index)
    return mode.dispatch(aten.index.Tensor, (FakeTensor,), (x, positions), {})


def _require_fit(context: ShapeContext, x: FakeTensor, mask: FakeTensor, start: int) -> None:
    """A mask has the sizes of the dimensions that it selects from."""
    if mask.dim() == 0 or start + mask.dim() > x.dim():
        raise IndexError("too many indices, or a mask without dimensions")
    for d, size in enumerate(mask.size()):
        if not context.require(eq(expr_of(size), expr_of(x.size(start + d)))):
            raise IndexError("a mask of other sizes than the dimensions that it selects from")


@_rule(aten.masked_select.default)
def _masked_select(mode: Any, context: ShapeContext, x: FakeTensor, mask: FakeTensor) -> object:
    with mode:
        both = torch.broadcast_tensors(x, mask)[0]
    fits = tuple(mask.size()) == tuple(both.size())
    key = _identity(context, mask, "nonzero") if fits else None
    count = _count(context, "masked_select", both.numel(), key, of=mask if fits else None)
    return _new(mode, x, (count,), x.dtype)


@_rule(aten.repeat_interleave.Tensor)
def _repeat_interleave(
    mode: Any, context: ShapeContext, repeats: FakeTensor, *, output_size: object = None,
) -> object:
    total = output_size
    if total is None:
        key = _identity(context, repeats, "repeat_interleave")
        total = _count(context, "repeat_interleave", INF, key, of=repeats, count=torch.sum)
    return _new(mode, repeats, (total,), repeats.dtype)


@_rule(aten.bincount.default)
def _bincount(
    mode: Any, context: ShapeContext, x: FakeTensor,
    weights: FakeTensor | None = None, minlength: object = 0,
) -> Any:
    low = minlength if type(minlength) is int else 0
    most = context.from_known_data(x, lambda data: max([0, *(data + 1).tolist()]))
    count = context.unbacked("bincount", lo=low) if most is None else max(low, most)
    if most is None and low:  # as many bins as there are classes
        context.unbacked_symbols.likely[symbol_of(count.node.value).name] = low
    dtype = torch.int64
    if weights is not None:
        dtype = torch.float32 if weights.dtype == torch.float32 else torch.float64
    return _new(mode, x, (count,), dtype)


@_rule(aten._use_cudnn_ctc_loss.Tensor)
def _use_cudnn_ctc_loss(
    mode: object, context: ShapeContext, scores: FakeTensor, targets: FakeTensor,
    input_lengths: FakeTensor, target_lengths: FakeTensor, blank: int,
) -> object:
    """False for what cuDNN refuses whatever the lengths are; they decide about the rest."""
    integers = {t.dtype for t in (targets, input_lengths, target_lengths)}
    fits = (blank == 0 and targets.dim() == 1 and integers == {torch.int32}
            and scores.dtype is torch.float32 and scores.fake_device.type == "cuda")
    return NotImplemented if fits else False


@_rule(aten._ctc_loss.Tensor)
def _ctc_loss(
    mode: Any, context: ShapeContext, scores: FakeTensor, targets: object,
    input_lengths: object, target_lengths: FakeTensor, *options: object,
) -> object:
    """Losses, and for the backward a table of twice the longest target's length and one."""
    lengths = target_lengths
    states = _count(context, "ctc_loss", INF, _identity(context, lengths, "ctc_loss"), of=lengths,
                    count=lambda known: 2 * known.max() + 1)
    steps, *batch = scores.size()[:-1]
    table = (*(batch or [1]), steps, states)
    return _new(mode, scores, batch, scores.dtype), _new(mode, scores, table, scores.dtype)


@_rule(aten._ctc_loss_backward.Tensor)
def _ctc_loss_backward(
    mode: Any, context: ShapeContext, gradient: object, scores: FakeTensor, *options: object,
) -> object:
    """As large as the scores; PyTorch has no rule of its own."""
    return _new(mode, scores, scores.size(), scores.dtype)


def _unique(
    mode: Any, context: ShapeContext, x: FakeTensor, dim: int | None, inverse: bool, counts: bool
) -> list[FakeTensor]:
    """The values, for each element (slice) its value's number, and how often each occurs."""
    if dim is not None:
        dim %= max(x.dim(), 1)
        inverse = inverse or x.fake_device.type == "cpu"
        counts = counts or x.fake_device.type == "cpu"
    count = _count(context, "unique", x.numel() if dim is None else x.size(dim))
    size = (count,) if dim is None else (*x.size()[:dim], count, *x.size()[dim + 1 :])
    places = x.size() if dim is None else (x.size(dim),)
    return [
        _new(mode, x, size, x.dtype),
        _new(mode, x, places if inverse else (0,), torch.int64),
        _new(mode, x, (count,) if counts else (0,), torch.int64),
    ]


def _unique_rule(func: OpOverload, n_results: int) -> None:
    @_rule(func)
    def rule(mode: object, context: ShapeContext, *args: object, **kwargs: object) -> Any:
        named = schema_arguments(func, args, kwargs)
        results = _unique(
            mode, context, named["self"], named.get("dim"), named["return_inverse"],
            named.get("return_counts", False),
        )
        return tuple(results[:n_results])


_unique_rule(aten._unique.default, 2)
for _op in (aten._unique2, aten.unique_dim, aten.unique_consecutive):
    _unique_rule(_op.default, 3)


# ------------------------------------------------------------------------------ parts of tensors


@_rule(aten.slice.Tensor)
def _slice(
    mode: Any, context: ShapeContext, x: Any, dim: int = 0, start: Any = None, end: Any = None,
    step: Any = 1,
) -> object:
    """`x[a:b]` with bounds that depend on data; eager cuts them to the size of the dimension."""
    size = x.size(dim)
    if not _any_unbacked(context, start, end, size):
        return NotImplemented
    whole = expr_of(size)
    first = _slice_bound(context, 0 if start is None else start, whole)
    last = _slice_bound(context, whole if end is None else end, whole)
    if first is None or last is None:
        key = ("slice", whole, *(e if e is None else expr_of(e) for e in (start, end, step)))
        count, offset = _count(context, "a slice", size, key), context.unbacked("a slice's start")
    else:
        length = last - first
        if not context.decide(ge(last, first)):
            length = maximum(length, 0)
        count = context.as_int(floor_div(length + step - 1, step))
        offset = x.storage_offset() + context.as_int(first) * x.stride(dim)
    sizes, strides = list(x.size()), list(x.stride())
    sizes[dim], strides[dim] = count, strides[dim] * step
    return _view(mode, x, sizes, strides, offset)


def _slice_bound(context: ShapeContext, value: Any, size: IntExpr) -> IntExpr | None:
    """A bound of a slice, limited to 0 and `size`; None if its sign is unknown."""
    known = expr_of(value) if isinstance(value, torch.SymInt) else value
    if isinstance(known, int) and known >= INF:
        return size
    positive = _is_positive(context, known)
    if positive is None:
        return None
    if not positive:
        return maximum(known + size, 0)
    return known if context.decide(ge(size, known)) else minimum(known, size)


def _is_positive(context: ShapeContext, value: IntExpr) -> bool | None:
    """Whether an index counts from the front; assumed if it may."""
    condition = ge(value, 0)
    if context.decide(condition) is None and context.hints.condition(condition) is None:
        return context.require(condition) if context.data.assuming else None
    return context.evaluate(condition)


@_rule(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims)
def _squeeze(mode: object, context: ShapeContext, x: FakeTensor, dim: Any = None) -> object:
    """Whether a size is 1 decides the result's rank; as PyTorch does, assume that it is not."""
    dims = range(x.dim()) if dim is None else dim
    for d in dims if isinstance(dims, Sequence) else [dims]:
        if x.dim() and _any_unbacked(context, x.size(d)):
            context.evaluate(eq(expr_of(x.size(d)), 1))
    return NotImplemented


@_rule(aten.expand.default)
def _expand(
    mode: object, context: ShapeContext, x: FakeTensor, shape: Any, *, implicit: bool = False,
) -> object:
    """A size that depends on data is the wanted one, or 1, or eager raises."""
    wanted = list(shape)
    if implicit or not _any_unbacked(context, *x.size(), *wanted) or len(wanted) < x.dim():
        return NotImplemented
    new = len(wanted) - x.dim()
    sizes, strides = wanted[:new], [0] * new
    for size, stride, want in zip(x.size(), x.stride(), wanted[new:], strict=True):
        keep = certainly_equal(want, -1) or certainly_equal(want, size)
        if not keep and _any_unbacked(context, want):
            context.require(ge(expr_of(want), 0))  # -1 would keep the size
        sizes.append(size if keep else want)
        strides.append(0 if certainly_equal(size, 1) and not keep else stride)
        if not keep and not certainly_equal(size, 1):
            _require_equal(context, expr_of(size), expr_of(want))
    return _view(mode, x, sizes, strides, x.storage_offset())


def _require_equal(context: ShapeContext, size: IntExpr, want: IntExpr) -> None:
    """Require equal sizes, as kernels do. (The operator also accepts 1, which then says
    nothing.)"""
    if context.data.assuming or not context.decide(ge(want, 2)):
        context.require(eq(size, want))


@_rule(aten.select.int)
def _select(mode: object, context: ShapeContext, x: FakeTensor, dim: int, index: Any) -> object:
    if not _any_unbacked(context, index):
        return NotImplemented
    value, extent = expr_of(index), expr_of(x.size(dim))
    dim %= x.dim()
    sizes, strides = list(x.size()), list(x.stride())
    del sizes[dim], strides[dim]
    if context.data.assuming and context.require(and_(ge(value, 0), lt(value, extent))):
        offset = x.storage_offset() + index * x.stride(dim)
    else:
        offset = context.unbacked("an index")
    return _view(mode, x, sizes, strides, offset)


def _any_unbacked(context: ShapeContext, *values: object) -> bool:
    if not context.unbacked_symbols.exist:
        return False
    exprs = (expr_of(v) for v in values if isinstance(v, torch.SymInt))
    return any(symbol_of(s).kind == "unbacked" for v in exprs for s in symbols(v))


def _view(
    mode: Any, x: FakeTensor, size: Sequence[Any], stride: Sequence[Any], offset: Any
) -> FakeTensor:
    with in_kernel_invocation(mode):
        meta = torch.as_strided(x, size, stride, offset)
    return make_fake(mode, meta, x.fake_device)


# ------------------------------------------------------------------------------ numbers


@_rule(aten._local_scalar_dense.default, aten.item.default)
def _item(mode: object, context: ShapeContext, x: FakeTensor) -> object:
    if x.constant is not None or x.dtype.is_complex:
        return NotImplemented
    number = context.from_known_data(x, torch.Tensor.item)
    if number is not None:
        return number
    key = _identity(context, x, "item")
    known = None if key is None else context.data.known_counts.get(key)
    if known is None:
        known = _number(context, x.dtype)
        if key is not None:
            context.data.known_counts[key] = known
    return known


def _number(context: ShapeContext, dtype: torch.dtype) -> Any:
    """A number that a tensor of this type may hold."""
    if dtype.is_floating_point:
        return context.unbacked_float("item")
    if dtype is torch.bool:
        return context.unbacked_bool("item")
    limits = torch.iinfo(dtype)
    wide = dtype is torch.int64
    return context.unbacked(
        "item", lo=-INF if wide else int(limits.min), hi=INF if wide else int(limits.max)
    )


@_rule(aten.equal.default)
def _equal(mode: object, context: ShapeContext, left: FakeTensor, right: FakeTensor) -> object:
    """A new symbol each time: tensors of equal content need not be the same."""
    if left.dim() != right.dim():
        return False
    return context.unbacked_bool("equal")
