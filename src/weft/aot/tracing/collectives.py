"""Collectives of torch.distributed in ATen graphs.

Place in the pipeline: used by the recorder (`record.py`). `dist.all_reduce(x)` writes to x through
an operator that does not say so; the graph has its functional form, and the wait for it::

    all_reduce = _c10d_functional.all_reduce(x, "sum", "0")
    wait = _c10d_functional.wait_tensor(all_reduce)        # the new value of x

`wait_tensor` gives a tensor the value that other processes send, so it is recorded as a write. What
returns before its data is there is waited for at once: wrappers (`AsyncCollectiveTensor`) have no
place in a graph. All of these nodes keep their number and order (`_torch.runs_as_written`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.fx import Node

from weft._torch import boxed_done_work, functional_collectives, reduction_name, unboxed_group
from weft.aot.views import Unsupported
from weft.registrar import registrar

if TYPE_CHECKING:
    from weft.aot.operators import OpFacts
    from weft.aot.tracing.record import Recorder

Form = Callable[["Recorder", Sequence[Any]], Any]
_FORMS: Final[dict[str, Form]] = {}
_form = registrar(_FORMS)


def record_collective(
    rec: Recorder, known: OpFacts, args: Sequence[object], kwargs: Mapping[str, object]
) -> object:
    """Record a collective; `known.op` is one."""
    functional_collectives()
    form = _FORMS.get(known.op.name())
    if form is not None and not kwargs:
        return form(rec, args)
    if known.op.namespace == "c10d":
        raise Unsupported(f"{known.op} has no functional form")
    return rec.mutation(known, args, kwargs) if known.mutated else rec.functional(
        known, args, kwargs)


@_form("_c10d_functional::wait_tensor", "_c10d_functional::_wrap_tensor_autograd")
def _wait(rec: Recorder, args: Sequence[Any]) -> object:
    _receive(rec, args[0], rec.node(args[0]))
    return rec.identity(args[0])


@_form("c10d::allreduce_")
def _all_reduce(rec: Recorder, args: Sequence[Any]) -> object:
    tensors, group, operation = args[:3]
    reduce, (name, _) = _reduction(operation), unboxed_group(group)
    for tensor in tensors:
        _receive(rec, tensor, rec.emit(_op("all_reduce"), rec.node(tensor), reduce, name))
    return tensors, boxed_done_work()


@_form("c10d::broadcast_")
def _broadcast(rec: Recorder, args: Sequence[Any]) -> object:
    tensors, group, root = args[:3]
    name, _ = unboxed_group(group)
    for tensor in tensors:
        _receive(rec, tensor, rec.emit(_op("broadcast"), rec.node(tensor), root, name))
    return tensors, boxed_done_work()


@_form("c10d::_allgather_base_")
def _all_gather_single(rec: Recorder, args: Sequence[Any]) -> object:
    output, tensor, group = args[:3]
    _receive(rec, output, _gathered(rec, tensor, group))
    return output, boxed_done_work()


@_form("c10d::allgather_")
def _all_gather(rec: Recorder, args: Sequence[Any]) -> object:
    outputs, tensors, group = args[:3]
    for parts, tensor in zip(outputs, tensors, strict=True):
        if any(part.size() != tensor.size() for part in parts):
            raise Unsupported("all_gather of different sizes")
        whole = rec.emit(_op("wait_tensor"), _gathered(rec, tensor, group))
        rows = tensor.size(0) if tensor.dim() else 1
        for i, part in enumerate(parts):
            rec.tensors.write(rec.live(part), rec.emit(
                torch.ops.aten.slice.Tensor, whole, 0, i * rows, (i + 1) * rows))
    return outputs, boxed_done_work()


@_form("c10d::_reduce_scatter_base_")
def _reduce_scatter_single(rec: Recorder, args: Sequence[Any]) -> Any:
    output, tensor, group, operation = args[:4]
    name, size = unboxed_group(group)
    _receive(rec, output, rec.emit(
        _op("reduce_scatter_tensor"), rec.node(tensor), _reduction(operation), size, name))
    return output, boxed_done_work()


@_form("c10d::alltoall_base_")
def _all_to_all_single(rec: Recorder, args: Sequence[Any]) -> object:
    output, tensor, group = args[:3]
    name, size = unboxed_group(group)
    splits = [split or [part.size(0) // size] * size
              for part, split in zip((output, tensor), args[3:5], strict=True)]
    _receive(rec, output, rec.emit(_op("all_to_all_single"), rec.node(tensor), *splits, name))
    return boxed_done_work()


def _gathered(rec: Recorder, tensor: torch.Tensor, group: object) -> Node:
    name, size = unboxed_group(group)
    return rec.emit(_op("all_gather_into_tensor"), rec.node(tensor), size, name)


def _receive(rec: Recorder, tensor: torch.Tensor, value: Node) -> None:
    """Wait for `value`, the new content of `tensor`."""
    rec.tensors.write(rec.live(tensor), rec.emit(_op("wait_tensor"), value))


def _op(name: str) -> Any:
    return getattr(functional_collectives(), name).default


def _reduction(operation: object) -> str:
    """The name of a reduction; only those that the functional collectives know."""
    name = reduction_name(operation)
    if name not in ("sum", "avg", "product", "min", "max", "band", "bor", "bxor"):
        raise Unsupported(f"a collective that reduces by {name}")
    return name
