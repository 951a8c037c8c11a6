"""Gradients of tensors made of tensors: two autograd functions between a wrapper and its parts.

Place in the pipeline: `wrappers.py` writes a graph on the parts of its wrappers. Where a wrapper
has a gradient, its parts have none: autograd knows the whole only, and the gradient may be made of
other parts than the tensor (a `DTensor` placed otherwise). So the parts come with *carriers*,
tensors without memory that have the shapes of the gradient's parts and stand for them in autograd::

    w_0, c_0 = Unwrapped.apply(plan, w)        # outside; its backward: w.grad = wrapper of c_0's
    ...compiled graph(w_0, c_0, x):
        w = Wrapped.apply(plan, w_0, c_0)      # its backward: gradient of c_0 = part of w's
        y = x @ w                              # the class and autograd do what they do in eager
        y_0, = Unwrapped.apply(of_result, y)   # no carriers: y_0 has the gradient itself
    y = Wrapped.apply(of_result, y_0)

Each function is the other's derivative, so derivatives of any order go through them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import torch

from weft._torch import apply_function
from weft.aot.training.tangents import TangentLayout
from weft.aot.views import Unsupported
from weft.shapes.fakes.wrappers import Structure, detached, is_wrapper, parts
from weft.shapes.symnode import certainly_equal

Pieces = Sequence[torch.Tensor]


@final
@dataclass(frozen=True)
class Plan:
    """How a wrapper and its gradient are made of tensors."""

    like: torch.Tensor
    """A tensor of the same form: a wrapper, or (of a gradient) a plain tensor."""
    gradient: torch.Tensor | None = None
    """A tensor of the form of its gradient; None: the same form, without carriers."""
    sources: tuple[int | None, ...] = ()
    """For each leaf of the gradient: the leaf of the tensor that it is, or None: it is carried."""

    @cached_property
    def structure(self) -> Structure:
        """How the tensor is made of others."""
        return Structure(self.like)

    def join(self, pieces: Pieces) -> Any:
        """A tensor of this form from its leaves."""
        return self.structure.join(iter(pieces))

    @cached_property
    def of_gradient(self) -> Plan:
        """The plan of the gradient, whose own gradient has the same form."""
        return self if self.gradient is None else Plan(self.gradient)

    @cached_property
    def carried(self) -> list[int]:
        """The leaves of the gradient that carry it."""
        if self.gradient is None:
            return [i for i, leaf in enumerate(self.structure.pieces) if carries(leaf)]
        return [i for i, source in enumerate(self.sources) if source is None]

    def carriers(self, values: Pieces) -> list[torch.Tensor]:
        """Tensors without memory that stand for the gradient's leaves, on the values' device."""
        if self.gradient is None:
            return []
        known, like = self.structure.pieces, values[0]
        return [like.new_empty_strided(_sizes(of, known, values), (0,) * of.dim(), dtype=of.dtype)
                for of in self._carriers]

    @cached_property
    def _carriers(self) -> list[torch.Tensor]:
        """The leaves of the gradient that carry it."""
        of = self.of_gradient.structure.pieces
        return [of[i] for i in self.carried]

    @cached_property
    def _kept(self) -> list[int]:
        """The leaves of the tensor that are leaves of its gradient, too."""
        sources = range(self.structure.count) if self.gradient is None else self.sources
        carried = set(self.carried)
        return [s for i, s in enumerate(sources) if i not in carried and s is not None]

    def kept(self, values: Pieces) -> Pieces:
        """The leaves of the tensor that are leaves of its gradient, too."""
        return [values[i] for i in self._kept]

    def gradient_leaves(self, kept: Pieces, carried: Pieces) -> Pieces:
        """The leaves of the gradient."""
        if not kept:
            return carried
        n, at = len(kept) + len(carried), set(self.carried)
        own, fixed = iter(carried), iter(kept)
        return [next(own if i in at else fixed) for i in range(n)]


def _sizes(of: torch.Tensor, known: Pieces, values: Pieces) -> Sequence[int]:
    """The sizes of a gradient's leaf: numbers, or the same symbols as a leaf of the tensor has."""
    if all(type(n) is int for n in of.shape):
        return of.shape
    for leaf, value in zip(known, values, strict=True):
        if certainly_equal(leaf.shape, of.shape):
            return value.shape
    raise Unsupported("a gradient of a wrapped tensor with symbolic sizes of its own")


def carries(leaf: torch.Tensor) -> bool:
    """Whether derivatives flow through a leaf: nested tensors keep numbers as sizes of others."""
    has_elements = not certainly_equal((leaf.numel(),), (0,))
    return has_elements and (leaf.is_floating_point() or leaf.is_complex())


def same_form(value: Any, like: Any) -> bool:
    """Whether both are made in the same way of leaves of the same shapes."""
    if not isinstance(like, torch.Tensor):
        return bool(value == like)
    if not is_wrapper(type(like)):
        return not is_wrapper(type(value)) and _fit(value.shape, like.shape)
    if type(value) is not type(like):
        return False
    names, context = parts(like)
    return bool(parts(value) == (names, context)) and all(
        same_form(getattr(value, name), getattr(like, name)) for name in names)


def _fit(sizes: Sequence[int], expected: Sequence[object]) -> bool:
    """Whether sizes are the expected ones, of which symbolic ones fit all."""
    return len(sizes) == len(expected) and all(
        a == b for a, b in zip(sizes, expected, strict=True) if type(b) is int)


def in_form(value: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A gradient in the form of `like`: in its memory order, or as its class can bring it there."""
    if same_form(value, like):
        return value
    if _fit(value.shape, like.shape) and not _fit(value.stride(), like.stride()):
        value = TangentLayout.of(like).fit(value)
    coerce = getattr(value, "__coerce_same_metadata_as_tangent__", None)
    if coerce is not None and type(value) is type(like) and not same_form(value, like):
        value = coerce(parts(like)[1])
    if same_form(value, like):
        return value
    raise RuntimeError(
        f"the gradient that arrives is a {type(value).__name__} of another form than the "
        f"{type(like).__name__} that was compiled; pass one like the result, or leave the function "
        "that returns it uncompiled (weft.disable)")


def _constant(leaf: torch.Tensor) -> torch.Tensor:
    """The tensor without its gradient; the same object if it has none (nested tensors are of one
    shape if their offsets are one tensor)."""
    return leaf.detach() if leaf.requires_grad else leaf


@final
class Wrapped(torch.autograd.Function):
    """`Wrapped.apply(plan, *leaves, *carriers)`: the wrapper."""

    @staticmethod
    def forward(ctx: Any, plan: Plan, *pieces: torch.Tensor) -> Any:
        """The wrapper of the leaves; the carriers matter to autograd only."""
        ctx.set_materialize_grads(False)
        ctx.plan, ctx.n = plan, plan.structure.count
        return plan.join([_constant(piece) for piece in pieces[: ctx.n]])

    @staticmethod
    def backward(ctx: Any, gradient: object) -> Any:
        """The leaves of the gradient: of the carriers, or of the leaves themselves."""
        plan: Plan = ctx.plan
        gradients: list[Any] = [None] * ctx.n
        at = plan.carried
        if gradient is None:
            return (None, *gradients, *([None] * len(at) if plan.gradient is not None else []))
        own = apply_function(Unwrapped, (plan.of_gradient,), gradient)
        if plan.gradient is not None:
            return (None, *gradients, *(own[i] for i in at))
        for i in at:
            gradients[i] = own[i]
        return (None, *gradients)


@final
class Unwrapped(torch.autograd.Function):
    """`Unwrapped.apply(plans, *wrappers)`: of each wrapper its leaves, then the carriers.

    One function for all inputs of a graph: a node of autograd costs more than a wrapper does.
    """

    @staticmethod
    def forward(ctx: Any, plans: Sequence[Plan], *wrappers: torch.Tensor) -> Any:
        """The leaves as tensors of their own, and the carriers."""
        ctx.set_materialize_grads(False)
        ctx.gradients, leaves = [], list[torch.Tensor]()
        for plan, wrapper in zip(plans, wrappers, strict=True):
            leaves += _divided(ctx.gradients, plan, wrapper, len(leaves))
        differentiable = {i for gradient in ctx.gradients for i in gradient.places}
        ctx.mark_non_differentiable(*(v for i, v in enumerate(leaves) if i not in differentiable))
        return tuple(leaves)

    @staticmethod
    def backward(ctx: Any, *tangents: torch.Tensor | None) -> Any:
        """The gradients of the wrappers, from what arrives at their leaves or carriers."""
        wanted = ctx.needs_input_grad[1:]
        return None, *(gradient.of(tangents) if needed else None
                       for gradient, needed in zip(ctx.gradients, wanted, strict=True))


@final
class _Gradient:
    """The gradient of a wrapper that was divided: where it arrives among the tangents."""

    __slots__ = ("forms", "kept", "places", "plan")

    def __init__(
        self, plan: Plan, kept: Pieces, places: Sequence[int], carriers: Pieces
    ) -> None:
        self.plan, self.kept, self.places = plan, kept, places
        self.forms = [(x.shape, x.dtype, x.device) for x in carriers]

    def of(self, tangents: Sequence[torch.Tensor | None]) -> Any:
        """The gradient, None if nothing arrived."""
        arrived = [tangents[i] for i in self.places]
        if all(tangent is None for tangent in arrived):
            return None
        carried = [torch.zeros(shape, dtype=dtype, device=device) if own is None else own
                   for own, (shape, dtype, device) in zip(arrived, self.forms, strict=True)]
        pieces = self.plan.gradient_leaves(self.kept, carried)
        if not torch.is_grad_enabled():
            return self.plan.of_gradient.join([_constant(piece) for piece in pieces])
        return apply_function(Wrapped, self.plan.of_gradient, *pieces)


def _divided(
    gradients: list[_Gradient], plan: Plan, wrapper: torch.Tensor, at: int
) -> list[torch.Tensor]:
    """The leaves and carriers of a wrapper, which are outputs from this index on; adds how its
    gradient is made."""
    if plan.gradient is not None:
        values = [_constant(leaf) for leaf in plan.structure.leaves(wrapper)]
        carriers = plan.carriers(values)
        first = at + len(values)
        places: Sequence[int] = range(first, first + len(carriers))
    else:  # a result, or a gradient
        carried = set(plan.carried)
        values = [leaf.detach() if i in carried else _constant(leaf) for i, leaf in enumerate(
            plan.structure.leaves(in_form(detached(wrapper), plan.like)))]
        carriers, places = [], [at + i for i in plan.carried]
    gradients.append(_Gradient(
        plan, plan.kept(values), places, carriers or [values[i] for i in plan.carried]))
    return [*values, *carriers]
