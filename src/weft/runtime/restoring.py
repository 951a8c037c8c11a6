"""Graphs that write their inputs, made to change nothing if they raise.

Place in the pipeline: a captured graph may check conditions on data, or run an operator that
refuses some, after it has updated running statistics or parameters. Then the frame runs eagerly
from its start, and must find its tensors as they were. Capture says which inputs are
written by then (`GraphFacts.restored`); whoever runs the captured graph itself restores them::

    run = restoring(GraphCall(gm.forward), [1, 2])
    run(x, mean, count)            # raises: mean and count are what they were

A compiled graph stores the new values after its checks, and needs no copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch.fx import GraphModule

from weft._torch import set_versions
from weft.graph_call import GraphCall
from weft.runtime.data_checks import CheckFailed
from weft.shapes.graph_facts import graph_facts
from weft.storable import storable


def run_captured(gm: GraphModule) -> GraphCall:
    """The captured graph itself, operator by operator."""
    return restored_on_error(GraphCall(gm.forward), gm)


def run_instead(gm: GraphModule) -> Callable[..., object]:
    """What runs instead of the compiled graph for inputs that this one does not fit."""
    return _refuse if graph_facts(gm).is_irreversible else run_captured(gm).call


def _refuse(*inputs: object) -> Any:
    raise CheckFailed("an error in the captured graph would leave traces")


def restored_on_error(call: GraphCall, gm: GraphModule) -> GraphCall:
    """A backend's callable for the graph; it restores what the graph writes if it raises."""
    written = graph_facts(gm).restored
    return restoring(call, written) if written and not call.restores else call


@storable
def restoring(graph: GraphCall, written: Sequence[int]) -> GraphCall:
    """`graph`, which writes some of its inputs; if it raises, they hold again what they held."""
    call, boxed = graph.call, graph.boxed

    def restored(*inputs: Any) -> Any:
        arguments = inputs[0] if boxed else inputs
        states = [_State(arguments[i]) for i in written]
        del arguments
        try:
            return call(*inputs)
        except Exception:
            for state in states:
                state.restore()
            raise

    return GraphCall(restored, boxed, restores=True)


@final
class _State:
    """What a tensor is before a graph writes it: its contents, layout, and number of writes."""

    __slots__ = ("alias", "bytes", "copy", "tensor", "version")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.version = None if tensor.is_inference() else tensor._version
        self.alias = tensor.detach()
        self.bytes = self.alias.untyped_storage().nbytes()
        self.copy = _elements(self.alias).clone()

    def restore(self) -> None:
        alias, tensor = self.alias, self.tensor
        memory = alias.untyped_storage()
        if memory.nbytes() != self.bytes:
            memory.resize_(self.bytes)
        if not _is_same_view(tensor, alias):
            tensor.data = alias
        _elements(alias).data.copy_(self.copy)
        if self.version is not None:
            set_versions((tensor,), (self.version,))


def _elements(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or the part of its memory that it lies in if some elements may be one."""
    if tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg() or not tensor.numel():
        return tensor
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    span = 1 + sum((n - 1) * stride for n, stride in steps)
    return tensor.as_strided((span,), (1,))


def _is_same_view(tensor: torch.Tensor, alias: torch.Tensor) -> bool:
    return (tensor.shape == alias.shape and tensor.stride() == alias.stride()
            and tensor.storage_offset() == alias.storage_offset()
            and tensor.untyped_storage()._cdata == alias.untyped_storage()._cdata)
