"""What operators do besides computing a result: they write arguments, and refuse some data.

Place in the pipeline: noted while `MemoFakeMode` runs the operators of a call that capture
records, so that a graph that fails can leave what it writes as it was::

    with mode.noting() as notes:
        running.index_add_(0, places, rows)
    notes.written      # the memory of `running`
    notes.refuses      # True: a place may be out of range
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import final

import torch

from weft._torch import OpOverload, has_dispatch_kernel
from weft.shapes.fakes.data_errors import may_refuse, sizes_may_differ, tensors_of
from weft.shapes.fakes.schemas import schema_arguments


@cache
def _written_arguments(func: OpOverload) -> tuple[str, ...]:
    """The names of the arguments that an operator writes."""
    if not func._schema.is_mutable:
        return ()
    return tuple(a.name for a in func._schema.arguments
                 if a.alias_info is not None and a.alias_info.is_write)


@cache
def is_composite(op: OpOverload) -> bool:
    """Whether PyTorch defines `op`, for every backend, by calling other operators.

    Only definitions in C++ count: the Python ones of `upsample_nearest2d`, say, give results with
    another layout than the kernels.
    """
    return op.namespace == "aten" and has_dispatch_kernel(op.name(), "CompositeImplicitAutograd")


@final
class OperatorNotes:
    """What the operators of one call do, as they run on fakes."""

    __slots__ = ("has_open_sizes", "refuses", "written")

    def __init__(self, *, has_open_sizes: bool = False) -> None:
        self.has_open_sizes = has_open_sizes
        """Whether there are sizes that depend on data."""
        self.written: dict[int, torch.UntypedStorage] = {}
        """The memory that they write, by its address (it lives on, so that none has the same)."""
        self.refuses = False
        """Whether one of them may raise because of data."""

    def note(self, func: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        """Note an operator that is about to run."""
        written = _written_arguments(func)
        values = schema_arguments(func, args, kwargs) if written else {}
        for name in written:
            self.note_write(values[name])
        self.refuses = self.refuses or may_refuse(func, args, kwargs) or (
            self.has_open_sizes and sizes_may_differ(func, args, kwargs))

    def note_write(self, value: object) -> None:
        """Note that a tensor, or those in a list, are written."""
        for tensor in tensors_of((value,), torch.Tensor):
            if tensor.layout is torch.strided:
                storage = tensor.untyped_storage()
                self.written[storage._cdata] = storage
