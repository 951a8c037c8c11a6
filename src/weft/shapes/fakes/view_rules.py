"""Metadata of views by formula: sizes, strides and offset, for plain and symbolic sizes alike.

Place in the pipeline: rules of `shape_rules.infer`, for the operators that return a view of their
first argument. PyTorch computes symbolic views in Python, one to three milliseconds each. Views
that would need a guard, or of which it is not known whether they exist, are left to PyTorch::

    x.transpose(0, 1)   # sizes (s1, s0), strides (1, s1)
    x[:, 2:]            # sizes (s0, s1 - 2), strides (s1, 1), offset 2
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from weft._torch import FakeTensor, OpOverload
from weft.shapes.algebra.expr import IntExpr, floor_div, mod
from weft.shapes.algebra.relation import eq, ge
from weft.shapes.fakes.shape_rules import (
    RULES,
    Result,
    Sizes,
    at_least,
    guarded,
    nonempty,
    require,
    same,
    sizes_of,
    strides_of,
    values_of,
)

aten = torch.ops.aten

_Geometry = tuple[list[IntExpr], list[IntExpr], IntExpr]
"""Sizes, strides and the distance of the first element from the argument's."""

_View = Callable[..., _Geometry]

_END: Final = sys.maxsize
"""What PyTorch writes for an open end of a slice."""


def _view_rule(*overloads: OpOverload) -> Callable[[_View], _View]:
    """Registers ``view(x, sizes, strides, *args)``, which may change both lists."""

    def register(view: _View) -> _View:
        def rule(x: Any, /, *args: Any) -> list[Result]:
            require(type(x) is FakeTensor)
            sizes, strides, distance = view(x, list(sizes_of(x)), list(strides_of(x)), *args)
            (before,) = values_of((x.storage_offset(),))
            geometry = tuple(sizes), tuple(strides)
            return [Result(*geometry, x.dtype, x.fake_device, view=True, offset=before + distance)]

        for overload in overloads:
            RULES[overload] = rule
        return view

    return register


def _position(d: Any, rank: int) -> int:
    require(type(d) is int and -rank <= d < rank)
    return int(d) % rank


@_view_rule(aten.alias.default, aten.detach.default)
def _alias(x: FakeTensor, sizes: list[IntExpr], strides: list[IntExpr]) -> _Geometry:
    return sizes, strides, 0


@_view_rule(aten.t.default)
def _t(x: FakeTensor, sizes: list[IntExpr], strides: list[IntExpr]) -> _Geometry:
    require(len(sizes) <= 2)
    return sizes[::-1], strides[::-1], 0


@_view_rule(aten.transpose.int)
def _transpose(
    x: FakeTensor, sizes: list[IntExpr], strides: list[IntExpr], first: object, second: object
) -> _Geometry:
    a, b = _position(first, len(sizes)), _position(second, len(sizes))
    for values in (sizes, strides):
        values[a], values[b] = values[b], values[a]
    return sizes, strides, 0


@_view_rule(aten.permute.default)
def _permute(
    x: FakeTensor, sizes: list[IntExpr], strides: list[IntExpr], order: Sequence[object]
) -> _Geometry:
    places = [_position(d, len(sizes)) for d in order]
    require(sorted(places) == list(range(len(sizes))))
    return [sizes[d] for d in places], [strides[d] for d in places], 0


@_view_rule(aten.unsqueeze.default)
def _unsqueeze(
    x: FakeTensor, sizes: list[IntExpr], strides: list[IntExpr], dim: object
) -> _Geometry:
    d = _position(dim, len(sizes) + 1)
    step = sizes[d] * strides[d] if d < len(sizes) else 1
    sizes.insert(d, 1)
    strides.insert(d, step)
    return sizes, strides, 0


@_view_rule(aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default)
def _squeeze(
    x: FakeTensor, sizes: list[IntExpr], strides: list[IntExpr], dims: Any = None
) -> _Geometry:
    every = range(len(sizes)) if dims is None else dims
    named = {_position(d, len(sizes)) for d in ([every] if type(every) is int else every)}
    require(all(at_least(sizes[d], 2) or same(sizes[d], 1) or same(sizes[d], 0)
                for d in named))
    kept = [d for d in range(len(sizes)) if d not in named or not same(sizes[d], 1)]
    return [sizes[d] for d in kept], [strides[d] for d in kept], 0


@_view_rule(aten.select.int)
def _select(
    x: FakeTensor, sizes: list[IntExpr], strides: list[IntExpr], dim: object, index: Any
) -> _Geometry:
    d = _position(dim, len(sizes))
    require(type(index) is int)
    require(at_least(sizes[d], -index if index < 0 else index + 1))
    distance = strides[d] * (index + sizes[d] if index < 0 else index)
    del sizes[d], strides[d]
    return sizes, strides, distance


@_view_rule(aten.slice.Tensor)
def _slice(
    x: FakeTensor, sizes: list[IntExpr], strides: list[IntExpr],
    dim: object = 0, start: object = None, end: object = None, step: Any = 1,
) -> _Geometry:
    d = _position(dim, len(sizes))
    require(type(step) is int and step > 0)
    size = sizes[d]
    first = 0 if start is None else _bound(start, size)
    last = size if end is None or (type(end) is int and end == _END) else _bound(end, size)
    require(at_least(last - first, 0))
    sizes[d] = last - first if step == 1 else floor_div(last - first + (step - 1), step)
    distance = strides[d] * first
    strides[d] = strides[d] * step
    return sizes, strides, distance


def _bound(bound: object, size: IntExpr) -> IntExpr:
    """A slice's bound as a place within the size, if it is known to be one."""
    (place,) = values_of((bound,))
    if at_least(-place, 1):
        place = size + place
    require(at_least(place, 0) and at_least(size - place, 0))
    return place


@_view_rule(aten.expand.default)
def _expand(
    x: FakeTensor, sizes: list[IntExpr], strides: list[IntExpr], wanted: Sequence[object]
) -> _Geometry:
    targets = list(values_of(wanted))
    new = len(targets) - len(sizes)
    require(new >= 0 and len(sizes) > 0 and nonempty(targets))
    for d in reversed(range(len(targets))):
        if d < new:
            require(not same(targets[d], -1))
            strides.insert(0, sizes[0] * strides[0])
            sizes.insert(0, 1)
        place = max(d - new, 0)
        if same(targets[d], -1) or same(targets[d], sizes[place]):
            continue
        require(same(sizes[place], 1) and at_least(targets[d], 2))
        sizes[place], strides[place] = targets[d], 0
    return sizes, strides, 0


@_view_rule(aten.view.default, aten._unsafe_view.default)
def _view(
    x: FakeTensor, sizes: list[IntExpr], strides: list[IntExpr], wanted: Sequence[object]
) -> _Geometry:
    targets = _filled(sizes, values_of(wanted))
    return targets, viewed_strides(sizes, strides, targets), 0


def _filled(sizes: Sequence[IntExpr], wanted: Sizes) -> list[IntExpr]:
    """The wanted sizes, with -1 computed; guarded to hold as many elements as there are."""
    require(nonempty(sizes))
    total, known = math.prod(sizes), math.prod([n for n in wanted if not same(n, -1)])
    open_sizes = [d for d, n in enumerate(wanted) if same(n, -1)]
    if not open_sizes:
        require(same(total, known) or guarded(eq(total, known)))
        return list(wanted)
    require(len(open_sizes) == 1)
    require(guarded(ge(known, 1)))  # else any would do
    missing = floor_div(total, known)
    require(same(missing * known, total) or guarded(eq(mod(total, known), 0)))
    return [missing if d in open_sizes else n for d, n in enumerate(wanted)]


def viewed_strides(
    sizes: Sequence[IntExpr], strides: Sequence[IntExpr], wanted: Sequence[IntExpr]
) -> list[IntExpr]:
    """The strides of a nonempty tensor viewed as ``wanted``, which holds as many elements.

    Dimensions that lie behind each other in memory form a chunk, and each chunk is cut into wanted
    sizes from its inner end. Raises `Unusual` where this is not known to come out even.
    """
    result: list[IntExpr] = [1] * len(wanted)
    d = len(wanted) - 1
    for elements, step in _chunks(sizes, strides):
        taken: IntExpr = 1
        while d >= 0 and (not same(taken, elements) or same(wanted[d], 1)):
            result[d] = step * taken
            taken = taken * wanted[d]
            d -= 1
        require(same(taken, elements))
    require(d < 0)
    return result


def _chunks(
    sizes: Sequence[IntExpr], strides: Sequence[IntExpr]
) -> list[tuple[IntExpr, IntExpr]]:
    """Number of elements and inner stride of each chunk, from the innermost one."""
    chunks: list[tuple[IntExpr, IntExpr]] = []
    elements: IntExpr = 1
    step: IntExpr = strides[-1] if strides else 1
    for d in reversed(range(len(sizes))):
        elements = elements * sizes[d]
        if d and (same(sizes[d - 1], 1) or same(strides[d - 1], elements * step)):
            continue
        chunks.append((elements, step))
        elements, step = 1, strides[d - 1]
    return chunks or [(1, 1)]
