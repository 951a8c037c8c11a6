"""Tensors from outside with symbolic dimensions: their fakes and their guards.

Place in the pipeline: called by the tensor family when it reads a tensor; `DynamicPolicy` says
which dimensions are symbolic. Sizes become symbols. Strides of a dense tensor follow from its sizes
(one guard each); other strides (of slices) are plain until they change between captures::

    x: (16, 128) row-major, dimension 0 symbolic   → sizes (s0, 128), strides (128, 1)
    x: (16, 128) column-major, dimension 0 symbolic → sizes (s0, 128), strides (1, s0)
    x: 4 of 16, then of 24 columns                  → sizes (16, 4), strides (s0, 1)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from weft.capture.core.source import Source
from weft.capture.guards.guard_set import tensor_guard
from weft.markers import dynamic_marks
from weft.shapes.policy import DimensionRange
from weft.shapes.symnode import expr_of

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter

Size = int | torch.SymInt


def symbolic_fake(tx: Interpreter, tensor: torch.Tensor, source: Source) -> Any:
    """The fake with symbolic sizes, and its guards; None if the tensor is entirely static."""
    ranges = _ranges(tx, tensor, source)
    sizes = _sizes(tx, tensor, source, ranges) if ranges else list(tensor.shape)
    strides = _strides(tensor, sizes)
    if strides is None:
        strides = _changed_strides(tx, tensor, source)
    if all(type(number) is int for number in (*sizes, *strides)):
        return None
    *fixed, _, _ = tensor_guard(tensor)
    tx.guards.add(source, "tensor", *fixed, _known_extents(sizes), _known_extents(strides))
    for d, stride in enumerate(strides):
        if not isinstance(stride, int) and not _is_own(tx, stride, source, d):
            tx.shapes.bind(expr_of(stride), stride_source(source, d))
    return tx.fakes.fake(tensor, sizes=sizes, strides=strides)


def _ranges(
    tx: Interpreter, tensor: torch.Tensor, source: Source
) -> Mapping[int, DimensionRange]:
    marks = {**tx.policy.declared.marks(tensor), **dynamic_marks(tensor)}
    fixed = isinstance(tensor, torch.nn.Parameter) or source.is_buffer
    return tx.policy.dimensions(source.name, tuple(tensor.shape), marks, parameter=fixed)


def _sizes(
    tx: Interpreter, tensor: torch.Tensor, source: Source, ranges: Mapping[int, DimensionRange],
) -> list[Size]:
    """The tensor's sizes, with symbols for those in `ranges`.

    Sizes of two tensors that changed alike share a symbol; those of one tensor do not, because
    images happen to be square.
    """
    sizes: list[Size] = list(tensor.shape)
    alike: Counter[tuple[int, ...]] = Counter()
    for d, limits in sorted(ranges.items()):
        place = size_source(source, d)
        alike[limits.history] += 1
        if limits.unbacked:
            least = 0 if limits.lo is None else limits.lo
            sizes[d] = tx.shapes.unbacked_size(tensor.size(d), place, lo=least, hi=limits.hi)
            continue
        sizes[d] = tx.shapes.size(
            tensor.size(d),
            place,
            lo=limits.lo,
            hi=limits.hi,
            group=place if limits.alone else (limits.history, alike[limits.history]),
            marked=limits.marked,
            dim=limits.dim,
        )
    return sizes


def size_source(source: Source, d: int) -> Source:
    return source.child(("size", d), ("size", d), f"{source.name}.size({d})")


def stride_source(source: Source, d: int) -> Source:
    return source.child(("stride", d), ("stride", d), f"{source.name}.stride({d})")


def _changed_strides(tx: Interpreter, tensor: torch.Tensor, source: Source) -> list[Size]:
    """The strides of a slice, with symbols for those that changed between captures."""
    strides: list[Size] = list(tensor.stride())
    if isinstance(tensor, torch.nn.Parameter):
        return strides
    changed = tx.policy.dimensions(f"{source.name}.stride", tuple(tensor.stride()), {},
                                   parameter=True)
    for d, limits in changed.items():
        if tensor.stride(d) > 1:
            strides[d] = tx.shapes.size(tensor.stride(d), stride_source(source, d),
                                        group=("stride", limits.history))
    return strides


def _is_own(tx: Interpreter, stride: torch.SymInt, source: Source, d: int) -> bool:
    """Whether the stride is the one that its symbol is read from."""
    sources = tx.shapes.sources.get(stride.node.value, ())
    return any(str(known) == str(stride_source(source, d)) for known in sources)


def _strides(tensor: torch.Tensor, sizes: Sequence[Size]) -> list[Size] | None:
    """Strides as formulas of the sizes if each is a product of inner sizes, else None."""
    strides: list[Size] = list(tensor.stride())
    order = sorted(range(tensor.dim()), key=lambda d: (tensor.stride(d), -d))
    step = 1
    expected: Size = 1
    for d in order:
        if tensor.stride(d) != step:
            return None
        strides[d] = expected
        step, expected = step * tensor.size(d), expected * sizes[d]
    return strides


def _known_extents(extents: Sequence[Size]) -> tuple[int | None, ...]:
    """What the tensor guard compares: None where the size or stride is symbolic."""
    return tuple(extent if isinstance(extent, int) else None for extent in extents)
