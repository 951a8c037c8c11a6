"""NumPy functions as functions on tensors: the graph nodes that stand for NumPy calls.

Place in the pipeline: under `recording`; used while capturing (on fakes) and
when the graph runs. `operation("sum")(t)` is a tensor with the content of `numpy.sum(a)`, where the
array `a` has the content of `t`. PyTorch's own NumPy emulation does the work, or `numpy_operations`
where that differs, after the operands of element-wise functions are converted to the types that
NumPy computes in::

    operation("operator.add"), operation("method.astype"), operation("linalg.norm")
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, Final

import numpy
import torch

from weft._torch import torch_numpy

_UFUNCS: Final = {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "true_divide",
    "floordiv": "floor_divide", "mod": "remainder", "pow": "power", "and_": "bitwise_and",
    "or_": "bitwise_or", "xor": "bitwise_xor", "lshift": "left_shift", "rshift": "right_shift",
    "lt": "less", "le": "less_equal", "eq": "equal", "ne": "not_equal", "gt": "greater",
    "ge": "greater_equal", "matmul": "matmul",
}
"""NumPy's functions of the names that operators have in `operator`."""


def tensor_of(array: object) -> torch.Tensor | None:
    """The tensor that shares an array's memory, or None if no tensor can stand for the array."""
    if type(array) is not numpy.ndarray or not array.flags.writeable:
        return None
    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError):
        return None


def torch_dtype(dtype: Any) -> torch.dtype | None:
    """The torch dtype of whatever NumPy accepts as a dtype, or None."""
    candidate = getattr(torch, numpy.dtype(dtype).name, None)
    return candidate if isinstance(candidate, torch.dtype) else None


def numpy_dtype(dtype: torch.dtype) -> Any:
    """The NumPy dtype of a torch dtype."""
    return numpy.dtype(str(dtype).removeprefix("torch."))


#: Names that NumPy 2 added for functions that PyTorch's emulation has under the old one.
_OTHER_NAMES: Final = {
    "acos": "arccos", "acosh": "arccosh", "asanyarray": "asarray", "asin": "arcsin",
    "asinh": "arcsinh", "atan": "arctan", "atan2": "arctan2", "atanh": "arctanh",
    "bitwise_invert": "invert", "bitwise_left_shift": "left_shift",
    "bitwise_right_shift": "right_shift", "concat": "concatenate", "permute_dims": "transpose",
    "pow": "power",
}


OWN: Final[dict[str, Callable[..., Any]]] = {}
"""Operations that PyTorch's emulation lacks or does in another way (`numpy_operations`)."""

_WORSE: Final = frozenset({"corrcoef", "cov", "pad"})
"""Functions whose form in Python serves better than PyTorch's emulation."""


def exists(path: str) -> bool:
    """Whether there is an operation of this name."""
    if path in _WORSE:
        return False
    try:
        _resolve(path)
    except AttributeError:
        return False
    return True


def _resolve(path: str) -> Callable[..., Any]:
    if path in OWN:
        return OWN[path]
    family, _, name = path.rpartition(".")
    home: Any = torch_numpy()
    if family == "operator":
        home = operator
    elif family == "method":
        home = home.ndarray
    elif family:
        home = getattr(home, family)
    else:
        name = _OTHER_NAMES.get(name, name)
    function: Callable[..., object] = getattr(home, name)
    return function


def numpy_function(path: str) -> Callable[..., Any]:
    """NumPy's own function of this name."""
    family, _, name = path.rpartition(".")
    if family == "method":
        return lambda array, *args, **kwargs: getattr(array, name)(*args, **kwargs)
    home: Any = operator if family == "operator" else numpy
    for step in [] if family == "operator" else path.split(".")[:-1]:
        home = getattr(home, step)
    function: Callable[..., object] = getattr(home, name)
    return function


@functools.cache
def operation(path: str) -> Callable[..., Any]:
    """The function on tensors; the same object for the same path."""
    function = _resolve(path)
    ufunc = ufunc_of(path)

    def call(*args: object, **kwargs: object) -> Any:
        types: tuple[Any, ...] = ()
        if ufunc is not None and "dtype" not in kwargs:
            args, types = _in_loop_types(ufunc, args)
        if path in OWN:
            result = function(*args, **kwargs)
        else:
            arrays = [to_arrays(arg) for arg in args]
            result = to_tensors(function(*arrays, **{k: to_arrays(v) for k, v in kwargs.items()}))
        return result.to(types[0]) if types and isinstance(result, torch.Tensor) else result

    call.__name__ = call.__qualname__ = f"numpy_{path.replace('.', '_')}"
    call.__module__ = __name__
    globals()[call.__name__] = call  # where the text of a graph module finds it
    return call


def ufunc_of(path: str) -> numpy.ufunc | None:
    """The element-wise function of NumPy that an operation is."""
    family, _, name = path.rpartition(".")
    candidate = getattr(numpy, _UFUNCS.get(name, "") if family == "operator" else name, None)
    return candidate if family in ("", "operator") and isinstance(candidate, numpy.ufunc) else None


def _in_loop_types(ufunc: numpy.ufunc, args: tuple[object, ...]
                   ) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The operands in the types that NumPy computes in, and the types of the results."""
    kinds = tuple(arg.dtype if isinstance(arg, torch.Tensor) else type(arg)
                  for arg in args[:ufunc.nin])
    wanted = _loop_types(ufunc, kinds)
    operands = [_in_type(arg, _WIDER.get(dtype, dtype))
                for arg, dtype in zip(args, wanted[:ufunc.nin], strict=False)]
    return (*operands, *args[len(operands):]), wanted[ufunc.nin:]


def _in_type(operand: Any, dtype: torch.dtype) -> Any:
    if isinstance(operand, torch.Tensor):
        return operand.to(dtype)
    symbolic: bool = isinstance(operand, (torch.SymInt, torch.SymFloat))
    return torch.full((), operand, dtype=dtype) if symbolic else operand


_WIDER: Final = {torch.float16: torch.float32}
"""Types that NumPy computes with in another."""


@functools.cache
def _loop_types(ufunc: numpy.ufunc, kinds: tuple[Any, ...]) -> tuple[Any, ...]:
    """The types of a function's operands and results, or none if capture and NumPy do not know
    them."""
    dtypes: Any = tuple(numpy_dtype(kind) if isinstance(kind, torch.dtype) else _WEAK.get(kind)
                  for kind in kinds)
    if len(dtypes) != ufunc.nin or any(kind is None for kind in dtypes):  # (float64 equals None)
        return ()
    try:
        resolved = ufunc.resolve_dtypes((*dtypes, *(None,) * ufunc.nout))
    except TypeError:
        return ()
    types = tuple(map(torch_dtype, resolved))
    return () if None in types else types


_WEAK: Final = {int: int, float: float, complex: complex, bool: numpy.dtype(bool),
                torch.SymInt: int, torch.SymFloat: float}
"""Types of numbers that adapt to the arrays' types (bool does not)."""


def to_arrays(value: object) -> Any:
    """The value with the emulation's arrays instead of tensors."""
    if isinstance(value, torch.Tensor):
        return torch_numpy().ndarray(value)
    if isinstance(value, torch.SymFloat):
        number: Any = value
        return torch_numpy().ndarray(torch.full((), number, dtype=torch.float64))
    if isinstance(value, (list, tuple)):
        return type(value)([to_arrays(item) for item in value])
    if isinstance(value, slice):
        return slice(*(to_arrays(part) for part in (value.start, value.stop, value.step)))
    return value


def to_tensors(value: object) -> Any:
    """The value with tensors instead of the emulation's arrays."""
    if isinstance(value, torch_numpy().ndarray):
        return value.tensor
    if isinstance(value, tuple):
        return tuple(to_tensors(item) for item in value)
    if isinstance(value, list):
        return [to_tensors(item) for item in value]
    return value
