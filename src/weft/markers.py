"""Marks that a program puts on its functions and tensors for weft to honour.

Place in the pipeline: below capture, which reads the marks; `weft` exports the functions::

    @weft.disable
    def log_metrics(x): ...             # never captured: a graph break, then plain Python

    if weft.is_compiling(): ...         # True while capture evaluates the program

    weft.mark_dynamic(x, 0, min=2)      # dimension 0 of x gets a symbolic size

A disabled function carries the attribute that `torch.compiler.disable` sets too, so capture looks
in one place for both.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, ParamSpec, TypeVar, cast, final, overload

import torch

from weft._frame import unhooked
from weft.errors import BadValue, NotCallable

P = ParamSpec("P")
R = TypeVar("R")

DISABLED: Final = "_torchdynamo_disable"
"""Attribute of functions that must not be captured (the name PyTorch's own libraries use)."""

DYNAMIC: Final = "_weft_dynamic"
"""Attribute of tensors: dict of dimension -> `DimRange`, or None for a dimension kept static."""


@final
@dataclass(frozen=True, slots=True)
class DimRange:
    """The sizes that a dimension marked dynamic may take; `max=None`: no upper end."""

    min: int = 0
    max: int | None = None


@overload
def disable(fn: Callable[P, R], *, reason: str = "") -> Callable[P, R]: ...
@overload
def disable(fn: None = None, *, reason: str = "") -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def disable(fn: Any = None, *, reason: str = "") -> Any:
    """`fn`, and all it calls, never captured: run as plain Python."""
    if fn is None:
        return functools.partial(disable, reason=reason)
    if not callable(fn):
        raise NotCallable(fn)

    @functools.wraps(fn)
    def disabled(*args: Any, **kwargs: Any) -> Any:
        with unhooked():
            return fn(*args, **kwargs)

    setattr(disabled, DISABLED, True)
    disabled.__dict__["_torchdynamo_disable_msg"] = reason or None
    return disabled


def is_disabled(fn: object) -> bool:
    """Whether `weft.disable` or `torch.compiler.disable` marked this callable."""
    return getattr(fn, DISABLED, False) is True


def is_compiling() -> bool:
    """False; capture evaluates the call to True."""
    return False


def mark_dynamic(
    tensor: torch.Tensor, dim: int | tuple[int, ...], *, min: int = 0, max: int | None = None
) -> None:
    """Give these dimensions of an input symbolic sizes from the first compile on."""
    if max is not None and max < min:
        raise BadValue(f"mark_dynamic: max={max} is below min={min}", do="swap them")
    _mark(tensor, dim, DimRange(min, max))


def mark_static(tensor: torch.Tensor, dim: int | tuple[int, ...] | None = None) -> None:
    """Keep these dimensions (all, without `dim`) of an input static, whatever changes."""
    _mark(tensor, tuple(range(tensor.ndim)) if dim is None else dim, None)


def _mark(tensor: torch.Tensor, dim: int | tuple[int, ...], mark: DimRange | None) -> None:
    marks = dynamic_marks(tensor)
    for d in (dim,) if isinstance(dim, int) else dim:
        if not -tensor.ndim <= d < tensor.ndim:
            raise BadValue(f"there is no dimension {d} in a tensor of {tensor.ndim} dimensions",
                           do=f"use 0 to {tensor.ndim - 1}")
        marks[d % tensor.ndim] = mark
    setattr(tensor, DYNAMIC, marks)


def dynamic_marks(tensor: torch.Tensor) -> dict[int, DimRange | None]:
    """What `mark_dynamic` (a range) and `mark_static` (None) said of a tensor's dimensions."""
    return dict(cast(dict[int, DimRange | None], getattr(tensor, DYNAMIC, {})))
