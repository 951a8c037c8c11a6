"""Operators that are not recorded as their schema says.

Place in the pipeline: imported by `trace.py` for its entries in `record.HANDLERS`: writes that have
a shorter functional form, views with several results, and operators that mutate without saying so
(batch norm's running statistics).
"""

from __future__ import annotations

from typing import Any

import torch

from weft._torch import FakeTensor, OpOverload
from weft.aot.operators import facts
from weft.aot.tracing.functionalize import Base, require_fake
from weft.aot.tracing.record import HANDLERS, Recorder
from weft.aot.tracing.recurrent import mkldnn_rnn_layer_keeping
from weft.aot.tracing.shared_memory import share_written_memory
from weft.aot.views import Unsupported, ViewStep
from weft.registrar import registrar
from weft.shapes.fakes.data_dependent import is_mask
from weft.shapes.symnode import certainly_equal
from weft.shapes.tensor_layouts import is_dense, memory_order, span

aten = torch.ops.aten

_handles = registrar(HANDLERS)


# -- writes ----------------------------------------------------------------------------------------


@_handles(aten.copy_.default, aten.fill_.Tensor)
def _copy(rec: Recorder, op: OpOverload, x: Any, y: Any, non_blocking: object = False) -> Any:
    """`x.copy_(y)`: the new value of x is y, converted and broadcast."""
    live = rec.live(x)
    share_written_memory(rec, facts(op), (x, y), {})  # which eager refuses
    rec.tensors.write(live, rec.node(y))
    return x


@_handles(aten.fill_.Scalar, aten.zero_.default)
def _fill(rec: Recorder, op: OpOverload, x: Any, value: object = 0) -> Any:
    """A constant; the old content is not read."""
    live = rec.live(x)
    node = rec.emit(
        aten.full.default, list(live.size()), value, dtype=live.dtype, device=live.device,
        pin_memory=False,
    )
    rec.tensors.write(live, node)
    return x


@_handles(aten.bernoulli_.float)
def _bernoulli(rec: Recorder, op: OpOverload, x: Any, p: float = 0.5, **options: object) -> object:
    """Drawn in memory order; the functional form draws row by row, whatever the layout.

    On CPUs it is drawn as booleans, which are the same numbers: the mask of a dropout kept for the
    backward has a quarter of eager's bytes.
    """
    live = rec.live(x)
    order = memory_order(live.stride())
    drawn = live
    if not order.is_identity:
        drawn = rec.view_step(live, ViewStep(aten.permute.default, (list(order.order),)))
    if live.device.type != "cpu":
        rec.mutation(facts(op), (drawn, p), options)
        return x
    bits = rec.emit(aten.empty_like.default, rec.node(drawn), dtype=torch.bool)
    bits = rec.emit(aten.bernoulli.p, bits, p, **options)
    rec.tensors.write(drawn, rec.emit(aten._to_copy.default, bits, dtype=live.dtype))
    return x


@_handles(aten.resize_.default, aten.resize_as_.default)
def _resize(
    rec: Recorder, op: OpOverload, x: Any, wanted: Any, *, memory_format: object = None,
) -> object:
    """Nothing if the sizes stay; uninitialised memory is not supported."""
    size = wanted.size() if op is aten.resize_as_.default else wanted
    if not certainly_equal(x.size(), size):
        raise Unsupported("resize_ to other sizes")
    return x


@_handles(aten.detach_.default)
def _detach(rec: Recorder, op: OpOverload, x: object) -> object:
    return x


@_handles(aten.set_.source_Tensor)
def _set(rec: Recorder, op: OpOverload, x: Any, y: Any) -> object:
    """`x.set_(y)`: x becomes an alias of y. For graph inputs that is a metadata mutation."""
    live, source = rec.live(x), rec.live(y)
    rec.evaluator.mode.dispatch(op, (FakeTensor,), (live, source), {})
    rec.tensors.rename(live, rec.tensors.alias(source))
    return x


# -- constants -------------------------------------------------------------------------------------


@_handles(aten.lift_fresh.default, aten.lift.default)
def _lift_fresh(rec: Recorder, op: OpOverload, tensor: Any) -> object:
    """A constant of the program: a new tensor each time, with the constant's value."""
    if not isinstance(tensor, FakeTensor) and tensor.dim() == 0 and _is_scalar(tensor):
        node = rec.emit(
            aten.full.default, [], tensor.item(), dtype=tensor.dtype, device=tensor.device,
            pin_memory=False,
        )
    else:
        node = rec.node(tensor)
    return rec.fresh(node)


@_handles(aten._to_copy.default)
def _to_copy(rec: Recorder, op: OpOverload, x: object, **form: object) -> object:
    """Of a tensor; `vmap` also converts the number in `x / 20`, which is passed as a number."""
    if isinstance(x, torch.Tensor):
        return rec.functional(facts(op), (x,), form)
    dtype = form.get("dtype") or torch.tensor(x).dtype
    device = form.get("device") or torch.device("cpu")
    return rec.fresh(rec.emit(aten.full.default, [], x, dtype=dtype, device=device,
                              pin_memory=False))


def _is_scalar(tensor: torch.Tensor) -> bool:
    plain = type(tensor) is torch.Tensor and not tensor.dtype.is_complex
    return plain and tensor.device.type == "cpu"


# -- views with several results --------------------------------------------------------------------


@_handles(aten.split.Tensor, aten.unsafe_split.Tensor)
def _split(rec: Recorder, op: OpOverload, x: Any, step: Any, dim: int = 0) -> Any:
    total = x.size(dim)
    if step == 0:
        return [rec.identity(x)]
    count = max(int((total + step - 1) // step), 1)
    ends = [step * i for i in range(1, count)]
    return [_slice(rec, x, dim, s, e) for s, e in zip([0, *ends], [*ends, total], strict=True)]


@_handles(aten.split_with_sizes.default, aten.unsafe_split_with_sizes.default)
def _split_sizes(rec: Recorder, op: OpOverload, x: object, sizes: Any, dim: int = 0) -> object:
    parts, start = [], 0
    for size in sizes:
        parts.append(_slice(rec, x, dim, start, start + size))
        start = start + size
    return parts


def _slice(rec: Recorder, tensor: Any, dim: int, start: Any, end: Any) -> object:
    return rec.view_step(tensor, ViewStep(aten.slice.Tensor, (dim, start, end)))


@_handles(aten.unbind.int)
def _unbind(rec: Recorder, op: OpOverload, x: Any, dim: int = 0) -> object:
    return [
        rec.view_step(x, ViewStep(aten.select.int, (dim, i)))
        for i in range(int(x.size(dim)))
    ]


@_handles(aten.empty_strided.default, aten.new_empty_strided.default)
def _empty_strided(rec: Recorder, op: OpOverload, *args: Any, **form: Any) -> Any:
    """Memory with gaps is a part of memory without: a value in the graph has no gaps."""
    size, stride = args[-2:]
    memory = rec.functional(facts(op), args, form)
    live = require_fake(memory)
    if certainly_equal(span(size, stride), live.numel()) or certainly_equal(live.numel(), 0):
        return memory
    whole = rec.fresh(rec.emit(
        aten.empty.memory_format, [span(size, stride)], dtype=live.dtype, device=live.device,
        pin_memory=False))
    return rec.view_step(whole, ViewStep(aten.as_strided.default, (list(size), list(stride), 0)))


@_handles(aten.as_strided.default)
def _as_strided(
    rec: Recorder, op: OpOverload, x: Any, size: Any, stride: Any, storage_offset: Any = None,
) -> object:
    """Recorded on the base's value in memory order; offsets count from its first element."""
    live = rec.live(x)
    base = rec.tensors.alias(live).base
    size, stride = list(size), list(stride)
    offset = live.storage_offset() if storage_offset is None else storage_offset
    if live.dtype != base.live.dtype:
        raise Unsupported("as_strided on a tensor seen as another type")
    _check_inside(base, size, stride, offset)
    steps: tuple[ViewStep, ...] = (ViewStep(op, (size, stride, offset - base.start)),)
    order = memory_order(base.live.stride())
    if not order.is_identity:
        steps = (ViewStep(aten.permute.default, (list(order.order),)), *steps)
    node = base.node
    for step in steps:
        node = step.apply(rec.emit, node)
    start = (offset - live.storage_offset()) * live.element_size()
    view = rec.evaluator.alias(require_fake(live), node.meta["val"], start)
    rec.tensors.add_base_view(view, base, steps, node)
    return view


@_handles(aten.as_strided_scatter.default)
def _as_strided_scatter(
    rec: Recorder, op: OpOverload, x: Any, source: Any, size: Any, stride: Any,
    storage_offset: Any = None,
) -> object:
    """`as_strided` as in `_as_strided`, with the part written in a copy of the tensor."""
    live = rec.live(x)
    start = live.storage_offset()
    offset = start if storage_offset is None else storage_offset
    _check_reach(live, start, size, stride, offset)
    return rec.fresh(rec.emit(op, rec.node(x), rec.node(source), size, stride, offset - start))


def _check_inside(base: Base, size: list[Any], stride: list[Any], offset: object) -> None:
    """Check that the base's value has all elements that the view shows."""
    live = base.live
    if not is_dense(live):
        raise Unsupported("as_strided on a tensor with gaps")
    _check_reach(live, base.start, size, stride, offset)


def _check_reach(live: Any, start: Any, size: list[Any], stride: list[Any], offset: Any) -> None:
    """Whether a view stays between the first and the last element of `live`, which is at
    `start`."""
    if any(certainly_equal(n, 0) for n in size):
        return
    end = offset + span(size, stride)
    if offset < start or end > start + span(live.size(), live.stride()):
        raise Unsupported("as_strided shows memory outside of its tensor")


# -- silent mutation -------------------------------------------------------------------------------


@_handles(aten.native_batch_norm.default)
def _batch_norm(
    rec: Recorder, op: OpOverload, x: object, weight: object, bias: object, mean: Any, var: Any,
    training: bool, momentum: float, eps: float,
) -> object:
    """Training updates the running statistics, which neither schema nor versions say."""
    if not training:
        stats = tuple(rec.nodes(a) for a in (x, weight, bias, mean, var))
        return rec.fresh(
            rec.emit(aten._native_batch_norm_legit_no_training.default, *stats, momentum, eps)
        )
    if mean is None:
        stats = tuple(rec.nodes(a) for a in (x, weight, bias))
        return rec.fresh(
            rec.emit(aten._native_batch_norm_legit.no_stats, *stats, True, momentum, eps)
        )
    node = rec.emit(
        aten._native_batch_norm_legit_functional.default,
        *(rec.nodes(a) for a in (x, weight, bias, mean, var)), training, momentum, eps,
    )
    out, save_mean, save_invstd, new_mean, new_var = rec.items(node)
    rec.tensors.write(rec.live(mean), new_mean)
    rec.tensors.write(rec.live(var), new_var)
    return rec.fresh(out), rec.fresh(save_mean), rec.fresh(save_invstd)


@_handles(aten.native_batch_norm_backward.default)
def _batch_norm_backward(rec: Recorder, op: OpOverload, *args: object) -> object:
    """Training does not read the running statistics, so they need not be saved."""
    nodes = [rec.nodes(a) for a in args]
    if args[7]:
        nodes[3] = nodes[4] = None
    node, _ = rec.tensors.append(op, tuple(nodes), {})
    return rec.fresh(node)


@_handles(aten.miopen_batch_norm.default)
def _miopen_batch_norm(rec: Recorder, op: OpOverload, *args: object) -> object:
    """The same operator by a vendor's library; weft's kernels compute it, fused with others."""
    return _batch_norm(rec, aten.native_batch_norm.default, *args)


@_handles(aten.cudnn_batch_norm.default)
def _cudnn_batch_norm(rec: Recorder, op: OpOverload, x: Any, *args: object) -> object:
    reserve = rec.emit(aten.empty.memory_format, [0], dtype=torch.uint8, device=x.device,
                       pin_memory=False)
    return *_batch_norm(rec, aten.native_batch_norm.default, x, *args), rec.fresh(reserve)


@_handles(aten.cudnn_batch_norm_backward.default, aten.miopen_batch_norm_backward.default)
def _vendor_batch_norm_backward(
    rec: Recorder, op: OpOverload, x: object, gradient: object, weight: object, mean: object,
    var: object,
    saved_mean: object, inverse: object, eps: float, *reserve: object,
) -> object:
    """The backward of training, whose arguments have another order."""
    rest = (weight, None, None, saved_mean, inverse, True, eps, [True, True, True])
    native = aten.native_batch_norm_backward.default
    return _batch_norm_backward(rec, native, gradient, x, *rest)


BIAS_APART_ON = frozenset({"cuda"})
"""Types of devices whose libraries sum a convolution's bias gradient in a kernel of its own."""


@_handles(aten.convolution_backward.default)
def _convolution_backward(rec: Recorder, op: OpOverload, gradient: Any, *args: Any) -> object:
    """The bias's gradient is a sum, which may be fused with the kernel that computes its
    operand."""
    *others, mask = args
    if not mask[2] or gradient.device.type not in BIAS_APART_ON:
        return rec.functional(facts(op), (gradient, *args), {})
    dims = [d for d in range(gradient.dim()) if d != 1]
    bias = rec.fresh(rec.emit(aten.sum.dim_IntList, rec.node(gradient), dims))
    if not any(mask[:2]):
        return None, None, bias
    nodes = tuple(rec.nodes(a) for a in (gradient, *others))
    node, _ = rec.tensors.append(op, (*nodes, [*mask[:2], False]), {})
    return *rec.fresh(node)[:2], bias


@_handles(aten.mkldnn_rnn_layer.default)
def _mkldnn_rnn(rec: Recorder, op: OpOverload, *args: object) -> object:
    """If gradients are needed, the form that keeps what its backward needs."""
    wanted = mkldnn_rnn_layer_keeping if torch.is_grad_enabled() else op
    return rec.fresh(rec.emit(wanted, *(rec.nodes(a) for a in args)))


# -- results whose sizes depend on data ------------------------------------------------------------


@_handles(aten.nonzero.default, aten._local_scalar_dense.default, aten.repeat_interleave.Tensor)
def _once(rec: Recorder, op: OpOverload, *args: object, **kwargs: object) -> object:
    """Equal values have equal symbols."""
    if kwargs:
        return rec.functional(facts(op), args, kwargs)
    return rec.fresh(rec.tensors.once(op, *map(rec.nodes, args)))


@_handles(aten.equal.default)
def _equal(rec: Recorder, op: OpOverload, x: Any, y: Any) -> object:
    """The number that tells whether all items are equal."""
    if not certainly_equal(x.size(), y.size()):
        raise Unsupported(f"{op} of sizes that differ")
    same = rec.emit(aten.all.default, rec.emit(aten.eq.Tensor, rec.node(x), rec.node(y)))
    symbols = rec.evaluator.mode.symbols
    assert symbols is not None
    earlier, symbols.data.earlier_answers = symbols.data.earlier_answers, iter(())
    answer = rec.fresh(rec.emit(aten._local_scalar_dense.default, same))
    symbols.data.earlier_answers = earlier
    return answer


@_handles(aten.index.Tensor)
def _index(rec: Recorder, op: OpOverload, x: Any, indices: Any) -> object:
    """A mask becomes its positions, computed once for all that it selects from."""
    if not any(map(is_mask, indices)):
        return rec.functional(facts(op), (x, indices), {})
    positions: list[Any] = []
    for index in indices:
        positions.extend(_columns(rec, index) if is_mask(index) else [rec.nodes(index)])
    return rec.fresh(rec.emit(op, rec.node(x), positions))


def _columns(rec: Recorder, mask: torch.Tensor) -> list[object]:
    """The positions where a mask is true, a list for each dimension."""
    positions = rec.tensors.once(aten.nonzero.default, rec.node(mask))
    return [rec.tensors.once(aten.select.int, positions, 1, d) for d in range(mask.dim())]


@_handles(aten.masked_select.default)
def _masked_select(rec: Recorder, op: OpOverload, x: Any, mask: Any) -> object:
    if not mask.dim() or not certainly_equal(x.size(), mask.size()):
        return rec.functional(facts(op), (x, mask), {})
    return rec.fresh(rec.emit(aten.index.Tensor, rec.node(x), _columns(rec, mask)))


@_handles(torch.ops.prim.device.default)
def _device(rec: Recorder, op: OpOverload, x: Any) -> object:
    """`x.device` of a fake tensor is an operator to a dispatch mode."""
    return x.fake_device


# -- questions about a tensor with symbolic sizes, asked by C++ as operators -----------------------


@_handles(aten.size.default, aten.stride.default)
def _extents(rec: Recorder, op: OpOverload, x: Any) -> object:
    """The caller takes no symbolic ints: guards fix the sizes of this call."""
    live = rec.live(x)
    return tuple(int(n) for n in (live.size() if op is aten.size.default else live.stride()))


@_handles(aten.storage_offset.default, aten.numel.default)
def _number(rec: Recorder, op: OpOverload, x: Any) -> Any:
    live = rec.live(x)
    return int(live.numel() if op is aten.numel.default else live.storage_offset())
