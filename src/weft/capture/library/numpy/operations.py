"""NumPy's functions that PyTorch's emulation lacks or does in another way, on tensors.

Place in the pipeline: beside `numpy_calls`, whose table they fill; their operands have the types
that NumPy computes in. A function is right if `numpy_models` finds no difference to NumPy's::

    operation("nanmean")(t), operation("interp")(t, xp, fp), operation("maximum.reduce")([t, u])
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any, Final

import numpy
import torch

from weft.capture.library.numpy.calls import OWN, operation, to_arrays, to_tensors


def _array(array: Any, dtype: torch.dtype | None = None, copy: Any = True,
           order: str | None = "K", subok: bool = False, ndmin: int = 0) -> torch.Tensor:
    """`numpy.array` of an array or a number; the caller sees to the order in memory."""
    if not isinstance(array, torch.Tensor):
        array = torch.full((), array, dtype=_KINDS[type(array)])
    copies = copy in (True, numpy._CopyMode.ALWAYS)
    copied: torch.Tensor = array.to(array.dtype if dtype is None else dtype, copy=copies)
    missing = ndmin - copied.dim()
    return copied.reshape(*[1] * missing, *copied.shape) if missing > 0 else copied


def _full(shape: object, value: object, dtype: torch.dtype | None = None, **options: object
          ) -> torch.Tensor:
    filled = _array(value, dtype) if type(value) in _KINDS else torch.as_tensor(value, dtype=dtype)
    return filled.expand(shape if isinstance(shape, (tuple, list)) else (shape,)).clone(
        memory_format=torch.contiguous_format)


_KINDS: Final = {bool: torch.bool, int: torch.int64, float: torch.float64,
                 complex: torch.complex128, torch.SymInt: torch.int64,
                 torch.SymFloat: torch.float64}


def _diag(array: torch.Tensor, k: int = 0) -> torch.Tensor:
    return torch.diag(array, k) if array.dim() == 1 else torch.diagonal(array, k)


def _astype(array: torch.Tensor, dtype: torch.dtype, order: str = "K", casting: str = "unsafe",
            subok: bool = True, copy: bool = True) -> torch.Tensor:
    return array.to(dtype)


def _sign(array: torch.Tensor) -> torch.Tensor:
    return torch.where(array != array, array, torch.sign(array))


def _cbrt(array: torch.Tensor) -> torch.Tensor:
    root = array.abs() ** (1 / 3)
    return torch.copysign(torch.where(root.isinf() | (root == 0), root,
                                      (2 * root + array.abs() / (root * root)) / 3), array)


def _of_integers(function: Callable[..., Any]) -> Callable[..., object]:
    """A division that gives 0 where the divisor is 0, as NumPy's of integers do."""

    def divide(left: object, right: object) -> object:
        numbers = [operand for operand in (left, right) if isinstance(operand, torch.Tensor)]
        if numbers[0].dtype.is_floating_point:
            return function(left, right)
        divisor = torch.as_tensor(right, dtype=numbers[0].dtype)
        by_zero = divisor == 0
        quotient = function(torch.as_tensor(left, dtype=numbers[0].dtype),
                            torch.where(by_zero, 1, divisor))
        return torch.where(by_zero, 0, quotient)

    return divide


def _copyto(array: torch.Tensor, source: object, casting: str = "same_kind", where: object = True
            ) -> None:
    new = torch.as_tensor(source, dtype=array.dtype)
    array.copy_(new if where is True else torch.where(torch.as_tensor(where), new, array))


def _reduction(name: str, combine: str, identity: object) -> Callable[..., Any]:
    """A ufunc's `reduce`, by a function of that name."""

    def reduce(array: Any, axis: object = 0, dtype: Any = None, out: None = None,
               keepdims: bool = False, initial: object = None, where: Any = True) -> Any:
        if isinstance(array, (list, tuple)):
            array = torch.stack(tuple(array))
        if where is not True:
            start = identity if initial is None else initial
            array = torch.where(where, array, torch.as_tensor(start, dtype=array.dtype))
        options = {} if dtype is None else {"dtype": dtype}
        reduced = operation(name)(array, axis=axis, keepdims=bool(keepdims), **options)
        return reduced if initial is None else operation(combine)(reduced, initial)

    return reduce


def _nan_reduction(name: str, start: Any) -> Callable[..., object]:
    """A reduction that leaves out NaNs; a row of nothing else gives a NaN."""

    def reduce(array: torch.Tensor, axis: object = None, dtype: object = None, out: None = None,
               keepdims: bool = False) -> Any:
        named = {"axis": axis, "keepdims": bool(keepdims)}
        if not array.is_floating_point():
            return operation(name)(array, **named)
        gone = array.isnan()
        reduced = operation(name)(torch.where(gone, start, array), **named)
        return torch.where(operation("all")(gone, **named), math.nan, reduced) if start else reduced

    return reduce


def _nanmean(array: torch.Tensor, axis: object = None, dtype: object = None, out: None = None,
             keepdims: bool = False) -> Any:
    named = {"axis": axis, "keepdims": bool(keepdims)}
    if not array.is_floating_point():
        return operation("mean")(array, **named)
    gone = array.isnan()
    total = operation("sum")(torch.where(gone, 0, array), **named)
    return total / operation("sum")(~gone, **named).to(array.dtype)


def _nanvar(array: torch.Tensor, axis: object = None, dtype: object = None, out: None = None,
            ddof: int = 0, keepdims: bool = False) -> Any:
    named = {"axis": axis, "keepdims": bool(keepdims)}
    if not array.is_floating_point():
        return operation("var")(array, ddof=ddof, **named)
    gone = array.isnan()
    off = torch.where(gone, 0, array - _nanmean(array, axis, keepdims=True))
    count = operation("sum")(~gone, **named).to(array.dtype) - ddof
    return torch.where(count > 0, operation("sum")(off * off, **named) / count, math.nan)


def _by_numpy(name: str, array: torch.Tensor, kth: list[int], dim: int) -> torch.Tensor:
    more = [kth] if kth else []
    sorted_array = getattr(numpy, name)(array.resolve_conj().numpy(), *more, axis=dim)
    return torch.from_numpy(numpy.ascontiguousarray(sorted_array))


def _like(dtype: torch.dtype | None, array: torch.Tensor, kth: list[int], dim: int) -> torch.Tensor:
    return array.new_empty(array.shape, dtype=array.dtype if dtype is None else dtype)


def _sort(array: torch.Tensor, axis: int = -1, kind: str | None = None) -> None:
    array.copy_(torch.sort(array, axis).values)


# NumPy's own order of equal items, which is not that of the input.

_LIBRARY: Final = torch.library.Library("weft", "FRAGMENT")
for _name, _dtype in (("argsort", torch.int64), ("argpartition", torch.int64), ("partition", None)):
    _LIBRARY.define(f"numpy_{_name}(Tensor array, int[] kth, int dim) -> Tensor")
    _LIBRARY.impl(f"numpy_{_name}", functools.partial(_by_numpy, _name), "CPU")
    _LIBRARY.impl(f"numpy_{_name}", functools.partial(_like, _dtype), "Meta")


def _argsort(array: torch.Tensor, axis: int | None = -1, kind: str | None = None,
             order: None = None, *, stable: bool | None = None) -> torch.Tensor:
    array, dim = (array.flatten(), 0) if axis is None else (array, axis)
    if stable or kind in ("stable", "mergesort"):
        return torch.argsort(array, dim=dim, stable=True)
    places: torch.Tensor = torch.ops.weft.numpy_argsort(array, [], dim)
    return places


def _partition(name: str) -> Callable[..., torch.Tensor]:
    def partition(array: torch.Tensor, kth: object, axis: int | None = -1,
                  kind: str = "introselect",
                  order: None = None) -> torch.Tensor:
        array, dim = (array.flatten(), 0) if axis is None else (array, axis)
        places = list(kth) if isinstance(kth, (list, tuple)) else [kth]
        result: torch.Tensor = getattr(torch.ops.weft, f"numpy_{name}")(array, places, dim)
        return result

    return partition


def _median(array: torch.Tensor, axis: int | None = None, out: None = None,
            overwrite_input: bool = False, keepdims: bool = False) -> torch.Tensor:
    number = array if array.is_floating_point() else array.to(torch.float64)
    rank, dim = array.dim(), 0 if axis is None else axis
    rows = torch.sort(number.flatten() if axis is None else number, dim).values
    half = rows.shape[dim] // 2
    middle = rows.narrow(dim, half - 1 + rows.shape[dim] % 2, 2 - rows.shape[dim] % 2)
    last = rows.narrow(dim, rows.shape[dim] - 1, 1)
    median = torch.where(last.isnan(), last, middle.mean(dim, keepdim=True))
    if keepdims:
        return median.reshape([1] * rank) if axis is None else median
    return median.squeeze(dim)


def _quantile(array: torch.Tensor, q: object, axis: int | None = None, out: None = None,
              overwrite_input: bool = False, method: str = "linear", keepdims: bool = False
              ) -> torch.Tensor:
    if method != "linear" or keepdims:
        raise NotImplementedError
    number = array if array.is_floating_point() else array.to(torch.float64)
    rows = torch.sort(number.flatten() if axis is None else number.movedim(axis, 0), 0).values
    at = torch.as_tensor(q, dtype=torch.float64) * (rows.shape[0] - 1)
    low = at.floor()
    share = (at - low).reshape((*at.shape, *[1] * (rows.dim() - 1))).to(number.dtype)
    first, after = low.long(), at.ceil().long()
    quantile = torch.lerp(rows[first], rows[after], share.expand(rows[first].shape))
    return torch.where(rows[-1].isnan(), rows[-1], quantile)


def _percentile(array: torch.Tensor, q: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    return _quantile(array, torch.as_tensor(q, dtype=torch.float64) / 100, *args, **kwargs)


def _getitem(array: torch.Tensor, key: object) -> Any:
    """Indexing; slices that run backwards are forward ones, flipped."""
    parts = key if isinstance(key, tuple) else (key,)
    backward = [isinstance(part, slice) and isinstance(part.step, int) and part.step < 0
                for part in parts]
    if not any(backward) or not all(part is None or part is Ellipsis or isinstance(
            part, (slice, int)) for part in parts):
        return to_tensors(operator.getitem(to_arrays(array), to_arrays(key)))
    if Ellipsis in parts:
        at, missing = parts.index(Ellipsis), array.dim() - sum(
            part is not None and part is not Ellipsis for part in parts)
        parts = (*parts[:at], *[slice(None)] * missing, *parts[at + 1:])
    sizes = iter(array.shape)
    forward = [part if part is None else _forward(part, next(sizes)) for part in parts]
    kept = [part for part in parts if not isinstance(part, int)]
    flipped = [at for at, part in enumerate(kept) if part is not None and (part.step or 1) < 0]
    return array[tuple(forward)].flip(flipped)


def _forward(part: Any, size: int) -> Any:
    """The slice that has the same items in the other order, if it runs backwards."""
    if isinstance(part, int) or (part.step or 1) > 0:
        return part
    places = range(*part.indices(size))
    return slice(places[-1], places[0] + 1, -part.step) if len(places) else slice(0, 0)


def _windows(array: torch.Tensor, window_shape: object, axis: object = None, *, subok: bool = False,
             writeable: bool = False) -> torch.Tensor:
    sizes = window_shape if isinstance(window_shape, (tuple, list)) else (window_shape,)
    axes = range(array.dim()) if axis is None else axis if isinstance(axis, (tuple, list)) else (
        axis,)
    for size, at in zip(sizes, [at % array.dim() for at in axes], strict=True):
        array = array.unfold(at, size, 1)
    return array


def _as_strided(array: torch.Tensor, shape: Any = None, strides: Any = None, subok: bool = False,
                writeable: bool = True) -> torch.Tensor:
    steps = [step // array.element_size() for step in strides]
    return array.as_strided(shape, steps, array.storage_offset())


def _searchsorted(array: torch.Tensor, values: object, side: str = "left", sorter: None = None
                  ) -> torch.Tensor:
    """NaNs are greater than all numbers."""
    if sorter is not None:
        raise NotImplementedError
    values = torch.as_tensor(values)
    kind = torch.promote_types(array.dtype, values.dtype)
    array, values = array.to(kind), values.to(kind)
    missing = array.isnan()
    at = torch.searchsorted(array.where(~missing, math.inf) if kind.is_floating_point else array,
                            values.contiguous(), side=side)
    numbers = len(array) - missing.sum()
    last = len(array) if side == "right" else numbers
    return torch.where(values.isnan(), last, at.clamp(max=numbers))


def _unravel_index(index: torch.Tensor, shape: tuple[int, ...], order: str = "C"
                   ) -> tuple[torch.Tensor, ...]:
    indices = []
    for n in reversed(shape):
        indices.append(index % n)
        index = index // n
    return tuple(reversed(indices))


def _cumulative(function: Callable[..., object]) -> Callable[..., object]:
    return lambda array, axis=0: function(array, axis)


def _scan(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """`cumsum` and `cumprod`: in int64 for all integers."""

    def scan(array: torch.Tensor, axis: int | None = None, dtype: torch.dtype | None = None
             ) -> torch.Tensor:
        array, dim = (array.flatten(), 0) if axis is None else (array, axis)
        return function(array, dim, dtype=dtype)

    return scan


def _unless_integers(function: Callable[[torch.Tensor], torch.Tensor]
                     ) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda array: function(array) if array.is_floating_point() else array


def _outer(name: str) -> Callable[..., object]:
    def outer(left: torch.Tensor, right: torch.Tensor) -> Any:
        left, right = torch.as_tensor(left), torch.as_tensor(right)
        return operation(name)(left.reshape(*left.shape, *[1] * right.dim()), right)

    return outer


def _add_at(array: torch.Tensor, index: object, value: object) -> None:
    places = index if isinstance(index, tuple) else (index,)
    added = torch.as_tensor(value, dtype=array.dtype)
    array.index_put_(tuple(torch.as_tensor(place) for place in places), added, accumulate=True)


def _interp(x: torch.Tensor, xp: object, fp: object) -> torch.Tensor:
    """`numpy.interp`: on the right of the last point and on the left of the first, their values."""
    x, xp, fp = (torch.as_tensor(points, dtype=torch.float64) for points in (x, xp, fp))
    right = torch.searchsorted(xp, x.contiguous(), right=True).clamp(1, max(len(xp) - 1, 1))
    left = right - 1
    right = right.clamp(max=len(xp) - 1)
    slope = (fp[right] - fp[left]) / (xp[right] - xp[left])
    between = slope * (x - xp[left]) + fp[left]
    between = torch.where(between.isnan(), slope * (x - xp[right]) + fp[right], between)
    between = torch.where(between.isnan() & (fp[left] == fp[right]), fp[left], between)
    return torch.where(x >= xp[-1], fp[-1], torch.where(x <= xp[0], fp[0], between))


OWN.update({
    "add.at": _add_at,
    "allclose": lambda *args, **kwargs: operation("isclose")(*args, **kwargs).all(),
    "argpartition": _partition("argpartition"),
    "array": _array,
    "asanyarray": functools.partial(_array, copy=None),
    "asarray": functools.partial(_array, copy=None),
    "cbrt": _cbrt,
    "copyto": _copyto,
    "diag": _diag,
    "fmod": _of_integers(torch.fmod),
    "full": _full,
    "interp": _interp,
    "lib.stride_tricks.as_strided": _as_strided,
    "lib.stride_tricks.sliding_window_view": _windows,
    "median": _median,
    "method.astype": _astype,
    "method.copy": lambda array, order="C": array.clone(),
    "method.sort": _sort,
    "nanmax": _nan_reduction("max", -math.inf),
    "nanmean": _nanmean,
    "nanmin": _nan_reduction("min", math.inf),
    "nanstd": lambda *args, **kwargs: torch.sqrt(_nanvar(*args, **kwargs)),
    "nansum": _nan_reduction("sum", 0),
    "nanvar": _nanvar,
    "operator.getitem": _getitem,
    "partition": _partition("partition"),
    "percentile": _percentile,
    "quantile": _quantile,
    **dict.fromkeys(("method.searchsorted", "searchsorted"), _searchsorted),
    "sign": _sign,
    "unravel_index": _unravel_index,
    **dict.fromkeys(("argsort", "method.argsort"), _argsort),
    **dict.fromkeys(("floor_divide", "operator.floordiv"), _of_integers(torch.floor_divide)),
    **dict.fromkeys(("mod", "operator.mod", "remainder"), _of_integers(torch.remainder)),
    **dict.fromkeys(("cumprod", "method.cumprod"), _scan(torch.cumprod)),
    **dict.fromkeys(("cumsum", "method.cumsum"), _scan(torch.cumsum)),
    "square": lambda array: array * array,
    "trunc": _unless_integers(torch.trunc),
    **{f"{ufunc}.accumulate": _cumulative(function) for ufunc, function in (
        ("add", torch.cumsum), ("multiply", torch.cumprod),
        ("maximum", lambda array, axis: torch.cummax(array, axis).values),
        ("minimum", lambda array, axis: torch.cummin(array, axis).values))},
    **{f"{ufunc}.reduce": _reduction(name, ufunc, identity) for ufunc, name, identity in (
        ("add", "sum", 0), ("multiply", "prod", 1), ("maximum", "max", None),
        ("minimum", "min", None), ("logical_and", "all", True), ("logical_or", "any", False))},
    **{f"{name}.outer": _outer(name) for name in (
        "add", "subtract", "multiply", "divide", "maximum", "minimum", "equal", "less", "greater",
        "less_equal", "greater_equal", "power", "arctan2", "hypot", "logical_and", "logical_or")},
})
