"""Marks that a program puts on its functions and tensors for weft to honour.

Place in the pipeline: below capture, which reads the marks; `weft` exports the functions::

    @weft.disable
    def log_metrics(x): ...             # never captured: a graph break, then plain Python

    @weft.allow_in_graph
    def odd_kernel(x): ...              # one node of the graph, not looked into

    if weft.is_compiling(): ...         # True while capture evaluates the program

    weft.mark_dynamic(x, 0, min=2)      # dimension 0 of x gets a symbolic size

A disabled function carries the attributes that `torch.compiler.disable` sets too (`torch_marks`),
so capture looks in one place for both.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from types import FunctionType, MethodType
from typing import Any, Final, ParamSpec, TypeVar, cast, overload

import torch

from weft._frame import skip, unhooked
from weft.dims import DimRange
from weft.errors import BadValue, NotCallable
from weft.torch_marks import (
    DISABLED,
    REASON,
    RECURSIVE,
    TENSOR_MARKS,
    dimension_marks,
    is_allowed,
    mark_wrapper,
    unmarked,
)

P = ParamSpec("P")
R = TypeVar("R")

DYNAMIC: Final = "_weft_dynamic"
"""Attribute of tensors: dict of dimension -> `DimRange`, or None for a dimension kept static."""


@overload
def disable(
    fn: Callable[P, R], *, recursive: bool = True, reason: str = ""
) -> Callable[P, R]: ...
@overload
def disable(
    fn: None = None, *, recursive: bool = True, reason: str = ""
) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def disable(fn: Any = None, *, recursive: bool = True, reason: str = "") -> Any:
    """Never capture `fn`: run it as plain Python, and if `recursive` also what it calls."""
    if fn is None:
        return functools.partial(disable, recursive=recursive, reason=reason)
    if not callable(fn):
        raise NotCallable(fn, "weft.disable")
    fn = unmarked(fn)
    disabled = _unhooked(fn) if recursive else _skip_frame(fn)
    disabled.__dict__.update({DISABLED: True, RECURSIVE: recursive, REASON: reason or None})
    mark_wrapper(disabled, fn)
    return disabled


def _unhooked(fn: Callable[P, R]) -> Callable[P, R]:
    @functools.wraps(fn)
    def disabled(*args: P.args, **kwargs: P.kwargs) -> R:
        with unhooked():
            return fn(*args, **kwargs)

    return disabled


def _skip_frame(fn: Callable[..., object]) -> Callable[..., object]:
    """A function of which only the frame itself is left to Python."""
    if isinstance(fn, MethodType):
        bound = disable(fn.__func__, recursive=False)
        return functools.wraps(fn)(functools.partial(bound, fn.__self__))
    if not isinstance(fn, FunctionType):
        @functools.wraps(fn, updated=())
        def call(*args: object, **kwargs: object) -> Any:
            return fn(*args, **kwargs)

        return _skip_frame(call)
    own = FunctionType(
        fn.__code__.replace(), fn.__globals__, fn.__name__, fn.__defaults__, fn.__closure__)
    own.__kwdefaults__ = fn.__kwdefaults__
    functools.update_wrapper(own, fn)
    skip(own.__code__)
    return own


def allow_in_graph(fn: Callable[P, R]) -> Callable[P, R]:
    """Mark `fn` as one operation: capture records the call and does not look inside.

    It runs while capturing, on tensors without data, and must return tensors (or containers of
    them) that depend on its arguments alone.
    """
    if not callable(fn):
        raise NotCallable(fn, "weft.allow_in_graph")
    _ALLOWED[id(fn)] = fn
    return fn


_ALLOWED: Final[dict[int, Any]] = {}


def is_allowed_in_graph(fn: object) -> bool:
    """Whether `allow_in_graph`, weft's or torch.compiler's, marked this callable."""
    return id(fn) in _ALLOWED or is_allowed(fn)


def is_compiling() -> bool:
    """False; capture evaluates the call to True."""
    return False


def mark_dynamic(
    tensor: torch.Tensor, dim: int | tuple[int, ...], *, min: int = 0, max: int | None = None
) -> None:
    """Give these dimensions of an input symbolic sizes from the first compile on."""
    _mark("mark_dynamic", tensor, dim, _range("mark_dynamic", min, max))


def mark_unbacked(
    tensor: torch.Tensor, dim: int | tuple[int, ...], *, min: int = 0, max: int | None = None
) -> None:
    """Give these dimensions of an input sizes that decide nothing: one graph for all, 0 and 1 too.

    A branch of the program on such a size breaks the graph.
    """
    _mark("mark_unbacked", tensor, dim, replace(_range("mark_unbacked", min, max), unbacked=True))


def mark_static(tensor: torch.Tensor, dim: int | tuple[int, ...] | None = None) -> None:
    """Keep these dimensions (all, without `dim`) of an input static, whatever changes."""
    _mark("mark_static", tensor, dim, None)


def _range(marker: str, min: int, max: int | None) -> DimRange:
    if max is not None and max < min:
        raise BadValue(f"{marker}: max={max} is below min={min}", do="swap them")
    return DimRange(min, max)


def _mark(
    marker: str, tensor: torch.Tensor, dim: int | tuple[int, ...] | None, mark: DimRange | None
) -> None:
    """Mark these dimensions; all, without `dim`."""
    if not isinstance(tensor, torch.Tensor):
        raise BadValue(f"{marker} takes a tensor, got {type(tensor).__name__}",
                       do="mark each tensor that the function is given")
    if dim is None:
        dim = tuple(range(tensor.ndim))
    marks = dict(_own_marks(tensor))
    for d in (dim,) if isinstance(dim, int) else dim:
        if not -tensor.ndim <= d < tensor.ndim:
            raise BadValue(f"there is no dimension {d} in a tensor of {tensor.ndim} dimensions",
                           do=f"use 0 to {tensor.ndim - 1}")
        marks[d % tensor.ndim] = mark
    setattr(tensor, DYNAMIC, marks)


def _own_marks(tensor: torch.Tensor) -> dict[int, DimRange | None]:
    return cast(dict[int, DimRange | None], getattr(tensor, DYNAMIC, {}))


def dynamic_marks(tensor: torch.Tensor) -> dict[int, DimRange | None]:
    """The marks of a tensor's dimensions: a range, or None for static ones; torch.compile's count
    like weft's."""
    attributes = tensor.__dict__
    if not any(name in attributes for name in _MARKS):
        return {}
    return {**dict(dimension_marks(attributes)), **_own_marks(tensor)}


_MARKS: Final = (DYNAMIC, *TENSOR_MARKS)
