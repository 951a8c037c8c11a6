"""Collectives that write to their arguments, by functional ones.

Place in the pipeline: see `weft.capture.library`; the rules that call these functions are in
`rules.py`. Reductions are given by name; no group is the whole
world. As in eager, autograd does not see the writes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
import torch.distributed as dist

REDUCTIONS: Final = ("sum", "avg", "product", "min", "max", "band", "bor", "bxor")


def _received(name: str, *args: object) -> Any:
    calls = torch.ops._c10d_functional
    return calls.wait_tensor(getattr(calls, name)(*args))


@torch.no_grad()
def _all_reduce(tensor: Any, op: str = "sum", group: Any = None) -> None:
    group = group or dist.group.WORLD
    tensor.copy_(_received("all_reduce", tensor, op, group.group_name))


@torch.no_grad()
def _broadcast(tensor: Any, src: int | None = None, group: Any = None,
               group_src: int | None = None) -> None:
    group = group or dist.group.WORLD
    root = group_src if src is None else dist.get_group_rank(group, src)
    tensor.copy_(_received("broadcast", tensor, root, group.group_name))


def _gathered(tensor: Any, group: Any) -> Any:
    return _received("all_gather_into_tensor", tensor, group.size(), group.group_name)


@torch.no_grad()
def _all_gather_single(output_tensor: Any, input_tensor: object, group: object = None) -> None:
    gathered = _gathered(input_tensor, group or dist.group.WORLD)
    output_tensor.copy_(gathered.view_as(output_tensor))


@torch.no_grad()
def _all_gather(tensor_list: Sequence[Any], tensor: Any, group: Any = None) -> None:
    gathered = _gathered(tensor.reshape(1, *tensor.shape), group or dist.group.WORLD)
    for i, part in enumerate(tensor_list):
        part.copy_(gathered[i])


@torch.no_grad()
def _reduce_scatter_single(output: Any, input: Any, op: str = "sum", group: Any = None) -> None:
    group = group or dist.group.WORLD
    received = _received(
        "reduce_scatter_tensor", input.reshape(-1, *output.shape).flatten(0, 1) if output.dim()
        else input, op, group.size(), group.group_name)
    output.copy_(received.view_as(output))


@torch.no_grad()
def _all_to_all_single(output: Any, input: Any, output_split_sizes: Any = None,
                       input_split_sizes: Any = None, group: Any = None) -> None:
    group = group or dist.group.WORLD
    n = group.size()
    taken = output_split_sizes or [output.size(0) // n] * n
    sent = input_split_sizes or [input.size(0) // n] * n
    output.copy_(_received("all_to_all_single", input, taken, sent, group.group_name))


def distribute(tensor: Any, mesh: Any, dims: Sequence[int | None], source: int | None,
               clones: bool) -> Any:
    """The local part of a tensor without a gradient; `dims`: along which dimension each dimension
    of the mesh divides it (None: not at all), `source`: the rank there whose data counts."""
    local = tensor.detach()
    for i, dim in enumerate(dims):
        group = mesh.get_group(i)
        if dim is not None:
            local = _shard(local, dim, mesh.get_local_rank(i), group, source, clones)
        else:
            local = local.contiguous()
            if source is not None:
                _broadcast(local, group=group, group_src=source)
    return local


def _shard(tensor: Any, dim: int, rank: int, group: Any, source: int | None, clones: bool) -> Any:
    """The part of a tensor that belongs to this process. (A scatter is an exchange in which only
    one process has something to send.)"""
    n = group.size()
    parts = [*torch.chunk(tensor, n, dim)]
    while len(parts) < n:
        parts.append(tensor.narrow(dim, 0, 0))
    own = parts[rank]
    if source is None:
        return own.clone(memory_format=torch.contiguous_format) if clones else own.contiguous()
    taken, sent = [0] * n, [0] * n
    taken[source] = own.numel()
    if rank == source:
        sent = [part.numel() for part in parts]
    flat = torch.cat([part.reshape(-1) for part in parts])[:sum(sent)]
    received = _received("all_to_all_single", flat, taken, sent, group.group_name)
    return received.view(own.shape)


FORMS: Final[dict[str, Callable[..., None]]] = {
    "all_reduce": _all_reduce,
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "all_gather_into_tensor": _all_gather_single,
    "all_gather_single": _all_gather_single,
    "reduce_scatter_tensor": _reduce_scatter_single,
    "reduce_scatter_single": _reduce_scatter_single,
    "all_to_all_single": _all_to_all_single,
}
"""By the names that torch.distributed has for them; some are new in PyTorch 2.13."""
