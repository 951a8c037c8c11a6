"""`distribute_tensor`: tensors that become distributed inside of a compiled function.

Place in the pipeline: see `weft.capture.library`. PyTorch's own function scatters and broadcasts by
collectives that no graph holds; here they are written by functional ones (`polyfills.distribute`).
A tensor with a gradient becomes a new leaf, which is left to PyTorch, between the graphs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from weft._torch import distributed_tensor, shards_are_copies
from weft.capture.core.base import SymbolicValue
from weft.capture.core.breaks import graph_break
from weft.capture.core.constant import NONE, constant
from weft.capture.core.rules import RuleFunction
from weft.capture.library.containers.sequences import SequenceValue
from weft.capture.library.distributed import polyfills
from weft.capture.library.functions.functions import MARKED
from weft.capture.library.tensors.tensor import TensorValue

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter

_NAME: Final = ("torch.distributed.tensor", "distribute_tensor")


def _rule_of(function: Any) -> RuleFunction | None:
    is_it = (function.__module__, function.__qualname__) == _NAME
    return _distribute if is_it else None


MARKED.append(_rule_of)


def _distribute(tx: Interpreter, /, tensor: SymbolicValue, device_mesh: SymbolicValue = NONE,
                placements: SymbolicValue = NONE, *, src_data_rank: SymbolicValue | None = None
                ) -> SymbolicValue:
    source = constant(0) if src_data_rank is None else src_data_rank
    tensor, mesh = tx.force(tensor), tx.force(device_mesh)
    placements = tx.force(placements)
    dims = _dims(tensor, placements)
    if dims is None or not _is_simple(tensor, mesh):
        raise graph_break("unknown-operation", "distribute_tensor of these arguments")
    kind = distributed_tensor()
    local = tx.call_python(polyfills.distribute, [
        tensor, mesh, tx.wrap_new(dims), source, constant(shards_are_copies())], {})
    return tx.wrap_fixed(kind.from_local, "DTensor.from_local").call(
        tx, [local, mesh, placements], {
            "run_check": constant(False), "shape": tensor.getattr(tx, "shape"),
            "stride": tensor.getattr(tx, "stride").call(tx, [], {})})


def _is_simple(tensor: SymbolicValue, mesh: SymbolicValue) -> bool:
    """Whether the tensor is a plain one on the mesh's devices, and this process is in the mesh."""
    if not isinstance(tensor, TensorValue) or tensor.python_type() is not torch.Tensor:
        return False
    real, example = mesh.real(), tensor.example
    return (type(real).__name__ == "DeviceMesh" and not example.requires_grad
            and example.device.type == real.device_type and real.get_coordinate() is not None)


def _dims(tensor: SymbolicValue, placements: SymbolicValue) -> tuple[int | None, ...] | None:
    """Along which dimension each placement divides the tensor (None: not at all); None for others
    than Shard and Replicate."""
    if not isinstance(tensor, TensorValue) or not isinstance(placements, SequenceValue):
        return None
    known = [item.constant() for item in placements.items if item.is_constant]
    if len(known) < len(placements.items) or not {type(p).__name__ for p in known} <= _KINDS:
        return None
    return tuple(_divided(placement, tensor.example.dim()) for placement in known)


def _divided(placement: Any, rank: int) -> int | None:
    return placement.dim % rank if type(placement).__name__ == "Shard" else None


_KINDS: Final = {"Shard", "Replicate"}
