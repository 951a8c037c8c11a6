"""Metadata of views for plain and symbolic sizes alike: which view an operator's arguments mean.

Place in the pipeline: rules of `shape_rules.infer`, for the operators that return a view of their
first argument; sizes, strides and offsets are those of `shapes/algebra/views.py`. PyTorch computes
symbolic views in Python, one to three milliseconds each. Views that would need a guard, or of which
it is not known whether they exist, are left to PyTorch::

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
from weft.shapes.algebra.views import (
    Expand,
    Layout,
    Permute,
    Reshape,
    Select,
    Slice,
    Squeeze,
    Unsqueeze,
    View,
)
from weft.shapes.fakes.shape_rules import (
    RULES,
    Result,
    Sizes,
    Unusual,
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

_ViewRule = Callable[..., View]

_END: Final = sys.maxsize
"""What PyTorch writes for an open end of a slice."""


def _view_rule(*overloads: OpOverload) -> Callable[[_ViewRule], _ViewRule]:
    """Registers ``view(sizes, *args)``, which returns the view of a tensor of these sizes."""

    def register(view: _ViewRule) -> _ViewRule:
        def rule(x: Any, /, *args: Any) -> list[Result]:
            require(type(x) is FakeTensor)
            sizes = sizes_of(x)
            (start,) = values_of((x.storage_offset(),))
            layout = view(sizes, *args).strided(Layout(sizes, strides_of(x), start))
            if layout is None:
                raise Unusual
            return [Result(layout.sizes, layout.strides, x.dtype, x.fake_device, view=True,
                           offset=layout.offset)]

        for overload in overloads:
            RULES[overload] = rule
        return view

    return register


def _position(d: Any, rank: int) -> int:
    require(type(d) is int and -rank <= d < rank)
    return int(d) % rank


@_view_rule(aten.alias.default, aten.detach.default)
def _alias(sizes: Sizes) -> View:
    return Permute(tuple(range(len(sizes))))


@_view_rule(aten.t.default)
def _t(sizes: Sizes) -> View:
    require(len(sizes) <= 2)
    return Permute(tuple(reversed(range(len(sizes)))))


@_view_rule(aten.transpose.int)
def _transpose(sizes: Sizes, first: object, second: object) -> View:
    rank = len(sizes)
    return Permute.swapping(rank, _position(first, rank), _position(second, rank))


@_view_rule(aten.permute.default)
def _permute(sizes: Sizes, order: Sequence[object]) -> View:
    places = tuple(_position(d, len(sizes)) for d in order)
    require(sorted(places) == list(range(len(sizes))))
    return Permute(places)


@_view_rule(aten.unsqueeze.default)
def _unsqueeze(sizes: Sizes, dim: object) -> View:
    return Unsqueeze(_position(dim, len(sizes) + 1))


@_view_rule(aten.squeeze.dim, aten.squeeze.dims, aten.squeeze.default)
def _squeeze(sizes: Sizes, dims: Any = None) -> View:
    every = range(len(sizes)) if dims is None else dims
    named = {_position(d, len(sizes)) for d in ([every] if type(every) is int else every)}
    require(all(at_least(sizes[d], 2) or same(sizes[d], 1) or same(sizes[d], 0)
                for d in named))
    return Squeeze(tuple(d for d in sorted(named) if same(sizes[d], 1)))


@_view_rule(aten.select.int)
def _select(sizes: Sizes, dim: object, index: Any) -> View:
    d = _position(dim, len(sizes))
    require(type(index) is int)
    require(at_least(sizes[d], -index if index < 0 else index + 1))
    return Select(d, index + sizes[d] if index < 0 else index)


@_view_rule(aten.slice.Tensor)
def _slice(
    sizes: Sizes, dim: object = 0, start: object = None, end: object = None, step: Any = 1
) -> View:
    d = _position(dim, len(sizes))
    require(type(step) is int and step > 0)
    size = sizes[d]
    first = 0 if start is None else _bound(start, size)
    last = size if end is None or (type(end) is int and end == _END) else _bound(end, size)
    require(at_least(last - first, 0))
    kept = last - first if step == 1 else floor_div(last - first + (step - 1), step)
    return Slice(d, first, step, kept)


def _bound(bound: object, size: IntExpr) -> IntExpr:
    """A slice's bound as a place within the size, if it is known to be one."""
    (place,) = values_of((bound,))
    if at_least(-place, 1):
        place = size + place
    require(at_least(place, 0) and at_least(size - place, 0))
    return place


@_view_rule(aten.expand.default)
def _expand(sizes: Sizes, wanted: Sequence[object]) -> View:
    targets = values_of(wanted)
    new = len(targets) - len(sizes)
    require(new >= 0 and len(sizes) > 0 and nonempty(targets))
    require(not any(same(target, -1) for target in targets[:new]))
    shape = list(targets[:new])
    for size, target in zip(sizes, targets[new:], strict=True):
        kept = same(target, -1) or same(target, size)
        require(kept or (same(size, 1) and at_least(target, 2)))
        shape.append(size if kept else target)
    require(all(same(n, 1) or at_least(n, 2) for n in shape[:new]))
    return Expand(sizes, tuple(shape))


@_view_rule(aten.view.default, aten._unsafe_view.default)
def _view(sizes: Sizes, wanted: Sequence[object]) -> View:
    return Reshape(sizes, _filled(sizes, values_of(wanted)))


def _filled(sizes: Sizes, wanted: Sizes) -> Sizes:
    """The wanted sizes, with -1 computed; guarded to hold as many elements as there are."""
    require(nonempty(sizes))
    total, known = math.prod(sizes), math.prod([n for n in wanted if not same(n, -1)])
    open_sizes = [d for d, n in enumerate(wanted) if same(n, -1)]
    if not open_sizes:
        require(same(total, known) or guarded(eq(total, known)))
        return wanted
    require(len(open_sizes) == 1)
    require(guarded(ge(known, 1)))  # else any would do
    missing = floor_div(total, known)
    require(same(missing * known, total) or guarded(eq(mod(total, known), 0)))
    return tuple(missing if d in open_sizes else n for d, n in enumerate(wanted))
