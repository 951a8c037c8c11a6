"""NumPy functions as functions on tensors: the graph nodes that stand for NumPy calls.

Place in the pipeline: under `values/numpy_arrays`; used while capturing (on fakes) and when the
graph runs. `operation("sum")(t)` is a tensor with the content of `numpy.sum(a)`, where the array
`a` has the content of `t`. PyTorch's own NumPy emulation does the work, after the operands of
element-wise functions are converted to NumPy's result type::

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

#: Functions on numbers whose operands NumPy first brings to one type.
_PROMOTING_OPERATORS: Final = frozenset(
    {
        "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor",
        "lt", "le", "eq", "ne", "gt", "ge", "matmul",
    }
)


def tensor_of(array: Any) -> torch.Tensor | None:
    """The tensor that shares an array's memory, or None if no tensor can stand for the array."""
    if type(array) is not numpy.ndarray or not array.flags.writeable:
        return None
    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError):
        return None


def torch_dtype(dtype: Any) -> torch.dtype | None:
    """The torch dtype of whatever NumPy accepts as a dtype, or None."""
    found = getattr(torch, numpy.dtype(dtype).name, None)
    return found if isinstance(found, torch.dtype) else None


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


def exists(path: str) -> bool:
    """Whether there is an operation of this name."""
    try:
        _resolve(path)
    except AttributeError:
        return False
    return True


def _resolve(path: str) -> Callable[..., Any]:
    family, _, name = path.rpartition(".")
    home: Any = torch_numpy()
    if family == "operator":
        return getattr(operator, name)  # type: ignore[no-any-return]
    if family == "method":
        return getattr(home.ndarray, name)  # type: ignore[no-any-return]
    if family:
        return getattr(getattr(home, family), name)  # type: ignore[no-any-return]
    return getattr(home, _OTHER_NAMES.get(name, name))  # type: ignore[no-any-return]


def numpy_function(path: str) -> Callable[..., Any]:
    """NumPy's own function of this name."""
    family, _, name = path.rpartition(".")
    homes = {"": numpy, "operator": operator, "method": numpy.ndarray}
    home = homes[family] if family in homes else getattr(numpy, family)
    return getattr(home, name)  # type: ignore[no-any-return]


@functools.cache
def operation(path: str) -> Callable[..., Any]:
    """The function on tensors; the same object for the same path."""
    function = _resolve(path)
    promotes = _promotes(path)

    def call(*args: Any, **kwargs: Any) -> Any:
        if promotes:
            args = _promote(args)
        arrays = [_to_arrays(arg) for arg in args]
        return _to_tensors(function(*arrays, **{k: _to_arrays(v) for k, v in kwargs.items()}))

    call.__name__ = call.__qualname__ = f"numpy_{path.replace('.', '_')}"
    call.__module__ = __name__
    globals()[call.__name__] = call  # where the text of a graph module finds it
    return call


def _promotes(path: str) -> bool:
    family, _, name = path.rpartition(".")
    if family == "operator":
        return name in _PROMOTING_OPERATORS
    function = getattr(numpy, name, None) if not family else None
    return isinstance(function, numpy.ufunc) and function.nin > 1


def _promote(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The first two operands in NumPy's common type; torch gives 0-dimensional ones less weight."""
    operands = [a for a in args[:2] if isinstance(a, torch.Tensor)]
    if len(operands) < 2 or operands[0].dtype == operands[1].dtype:
        return args
    wanted = torch_dtype(numpy.result_type(*(numpy_dtype(t.dtype) for t in operands)))
    if wanted is None:
        return args
    return (*(t.to(wanted) for t in operands), *args[2:])


def _to_arrays(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return torch_numpy().ndarray(value)
    if isinstance(value, (list, tuple)):
        return type(value)([_to_arrays(item) for item in value])
    if isinstance(value, slice):
        return slice(*(_to_arrays(part) for part in (value.start, value.stop, value.step)))
    return value


def _to_tensors(value: Any) -> Any:
    if isinstance(value, torch_numpy().ndarray):
        return value.tensor
    if isinstance(value, tuple):
        return tuple(_to_tensors(item) for item in value)
    if isinstance(value, list):
        return [_to_tensors(item) for item in value]
    return value
