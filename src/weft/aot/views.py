"""View operators and their inverses: a write to a view becomes a new value of what it views.

Place in the pipeline: the functionaliser replays `ViewStep`s to read a view of a changed base, and
undoes them to write through a view::

    y = x[1]; y.add_(1)  # recorded as:  new_y = x[1] + 1;  new_x = select_scatter(x, new_y, 0, 1)

Each operator has an inverse, `(emit, parent, child, args) -> new parent`, on fx nodes; `args` are
the view's arguments after the viewed tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol, final

import torch
from torch.fx import Node

from weft._torch import OpOverload
from weft.registrar import registrar
from weft.shapes.algebra.views import Permute
from weft.shapes.symnode import certainly_equal
from weft.shapes.tensor_layouts import is_row_major, memory_order

aten = torch.ops.aten


class Unsupported(Exception):
    """The graph does something that has no functional form; it is run in another way."""


class Emit(Protocol):
    """Appends an operator to the graph being recorded."""

    def __call__(self, op: OpOverload, *args: Any, **kwargs: Any) -> Node: ...


@final
@dataclass(frozen=True, slots=True)
class ViewStep:
    """One view operator applied to a tensor: `op(tensor, *args)`."""

    op: OpOverload
    args: tuple[Any, ...]

    def apply(self, emit: Emit, parent: Node) -> Node:
        """The view of `parent`."""
        return emit(self.op, parent, *self.args)

    def undo(self, emit: Emit, parent: Node, child: Node) -> Node:
        """`parent` with the viewed part replaced by `child`."""
        inverse = INVERSES.get(self.op)
        if inverse is None:
            raise Unsupported(f"write through {self.op}")
        return inverse(emit, parent, child, self.args)


Inverse = Callable[[Emit, Node, Node, tuple[Any, ...]], Node]
INVERSES: Final[dict[OpOverload, Inverse]] = {}

_SCATTERS: Final = {
    aten.select.int: aten.select_scatter.default,
    aten.slice.Tensor: aten.slice_scatter.default,
    aten.diagonal.default: aten.diagonal_scatter.default,
    aten.as_strided.default: aten.as_strided_scatter.default,
}
"""Views of parts, and the operators that return the base with another part there."""

_TURNED_BACK: Final = {
    aten.t.default: aten.t.default,
    aten.transpose.int: aten.transpose.int,
    aten.view_as_complex.default: aten.view_as_real.default,
    aten._conj.default: aten._conj_physical.default,
}
"""Views of the whole, and the operators that undo them, with the same arguments."""

IDENTITIES: Final = frozenset(
    {aten.detach.default, aten.alias.default, aten.lift_fresh.default, aten._fw_primal.default}
)
"""Views of the whole tensor as it is: no node is recorded for them."""

_inverse = registrar(INVERSES)


def _meta(node: Node) -> torch.Tensor:
    fake: torch.Tensor = node.meta["val"]
    return fake


def _scattered(scatter: OpOverload) -> Inverse:
    return lambda emit, parent, child, args: emit(scatter, parent, child, *args)


def _turned_back(inverse: OpOverload) -> Inverse:
    return lambda emit, parent, child, args: emit(inverse, child, *args)


INVERSES.update({view: _scattered(scatter) for view, scatter in _SCATTERS.items()})
INVERSES.update({view: _turned_back(inverse) for view, inverse in _TURNED_BACK.items()})


@_inverse(
    aten.view.default, aten._reshape_alias.default, aten.unsqueeze.default,
    aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims,
)
def _reshape_back(emit: Emit, parent: Node, child: Node, args: tuple[object, ...]) -> Node:
    return reshape(emit, child, _meta(parent).size())


@_inverse(aten.permute.default)
def _permute_back(emit: Emit, parent: Node, child: Node, args: tuple[Any, ...]) -> Node:
    rank = _meta(parent).dim()
    return permute(emit, child, Permute(tuple(d % rank for d in args[0])).inverse())


@_inverse(aten.expand.default)
def _expand_back(emit: Emit, parent: Node, child: Node, args: tuple[object, ...]) -> Node:
    """Eager lets a broadcast tensor be written only in parts without repeated elements; which of
    the copies was written is not known here."""
    size = _meta(parent).size()
    if not certainly_equal(_meta(child).numel(), _meta(parent).numel()):
        raise Unsupported("write to a part of a broadcast tensor")
    return reshape(emit, child, size)


@_inverse(aten.view.dtype)
def _view_dtype_back(emit: Emit, parent: Node, child: Node, args: tuple[object, ...]) -> Node:
    return emit(aten.view.dtype, child, _meta(parent).dtype)


@_inverse(aten.view_as_real.default)
def _view_as_real_back(emit: Emit, parent: Node, child: Node, args: tuple[object, ...]) -> Node:
    return emit(aten.view_as_complex.default, contiguous(emit, child))


# -- layout ----------------------------------------------------------------------------------------


def reshape(emit: Emit, node: Node, size: Any) -> Node:
    """A reshape, which copies only if a view is not possible."""
    size = list(size)
    if certainly_equal(_meta(node).size(), size):
        return node
    try:
        return emit(aten.view.default, node, size)
    except (RuntimeError, ValueError):
        return emit(aten.view.default, contiguous(emit, node), size)


def permute(emit: Emit, node: Node, view: Permute) -> Node:
    """A permutation of a node's dimensions."""
    return emit(aten.permute.default, node, list(view.order))


def contiguous(emit: Emit, node: Node) -> Node:
    """The same values, contiguous."""
    if is_row_major(_meta(node)):
        return node
    return emit(aten.clone.default, node, memory_format=torch.contiguous_format)


def restride(emit: Emit, node: Node, stride: tuple[object, ...]) -> Node:
    """The same values in memory order `stride`, if that is dense; otherwise unchanged."""
    have = _meta(node)
    if certainly_equal(have.stride(), stride) or any(certainly_equal(n, 0) for n in have.size()):
        return node
    order = memory_order(stride)
    if order.is_identity:
        return contiguous(emit, node)
    return permute(emit, contiguous(emit, permute(emit, node, order)), order.inverse())
