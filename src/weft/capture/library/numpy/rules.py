"""Rules for NumPy's functions: graph nodes on arrays, evaluated on constants.

Place in the pipeline: see `weft.capture.library`. `numpy_calls.exists` says which functions there
are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import BuiltinFunctionType, FunctionType
from typing import TYPE_CHECKING, Any, Final

import numpy
import torch

import weft.capture.library.tensors.tensor_index
import weft.capture.library.torch_functions.rules  # noqa: F401  their rules are extended here
from weft.capture.core.base import Args, Kwargs, SymbolicValue
from weft.capture.core.breaks import GraphBreak, graph_break
from weft.capture.core.constant import ConstantValue
from weft.capture.core.registry import wraps
from weft.capture.core.source import Source
from weft.capture.library.classes.classes import constructor
from weft.capture.library.containers.sequences import ListValue, SliceValue, TupleValue
from weft.capture.library.functions.builtins import method_rule, wrap_builtin
from weft.capture.library.functions.functions import RULES, rule
from weft.capture.library.numbers.symbolic_numbers import SymbolicNumberValue
from weft.capture.library.numpy import calls, polyfills
from weft.capture.library.numpy.arrays import ArrayValue, call_numpy
from weft.capture.library.numpy.known_arrays import evaluated
from weft.capture.library.numpy.number_rules import makes_array_of_size, of_numbers
from weft.capture.library.numpy.recording import record_numpy
from weft.capture.library.tensors.device_modes import with_default_device
from weft.capture.library.tensors.tensor import TENSOR_METHODS, TensorValue, record, tensor_method

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter

_FUNCTIONS: Final = (numpy.ufunc, type(numpy.sum), BuiltinFunctionType, FunctionType)
_NOT_PURE: Final = frozenset({
    "fromfile", "genfromtxt", "geterr", "geterrcall", "load", "loadtxt", "memmap", "save",
    "savetxt", "savez", "savez_compressed", "set_printoptions", "setbufsize", "seterr",
    "seterrcall", "show_config", "show_runtime",
})


_INNER: Final = ("_monotonicity", "c_einsum", "normalize_axis_index")
"""Functions without a public name that NumPy's own Python calls."""


def _public_functions() -> Iterator[tuple[str, object]]:
    """The functions of numpy and numpy.linalg, under the names of `numpy_calls`.

    Only loaded modules: NumPy imports its other modules when they are first named.
    """
    inner = sys.modules["numpy._core._multiarray_umath"]  # NumPy's own Python calls these
    for prefix, space in (("", numpy), ("linalg.", numpy.linalg), ("", inner)):
        for name, function in sorted(vars(space).items()):
            public = not name.startswith("_") and hasattr(space if space is not inner else numpy,
                                                          name)
            if isinstance(function, _FUNCTIONS) and (public or name in _INNER):
                yield prefix + name, function


def _register(paths: list[str], function: Any) -> None:
    """Register a function under its names, some of which `numpy_calls` may not know."""

    def handler(tx: Interpreter, /, *values: SymbolicValue, **kwargs: SymbolicValue
                ) -> SymbolicValue:
        args, path = [*values], next(filter(calls.exists, paths), paths[0])
        if path in _NOT_PURE:
            raise graph_break("unknown-c-function", f"numpy.{path}")
        if path in _INNER:
            return _evaluated(tx, function, args, kwargs)
        call: Callable[..., SymbolicValue] = call_numpy
        if not _has_arrays([*args, *kwargs.values()]):
            call, result = record_numpy, of_numbers(tx, function, args, kwargs)
            if result is None and not makes_array_of_size(tx, function, args):
                result = evaluated(tx, function, args, kwargs)
            if result is not None:
                return result
        try:
            return call(tx, path, args, kwargs)
        except GraphBreak as reason:
            python = getattr(function, "_implementation", None)
            if reason.kind.id != "unknown-c-function" or not isinstance(python, FunctionType):
                raise
        return tx.wrap_fixed(python, path).call(tx, args, kwargs)

    if id(function) not in RULES:
        rule(function)(handler)


def _evaluated(tx: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> SymbolicValue:
    result = evaluated(tx, function, args, kwargs)
    if result is None:
        raise graph_break("unknown-c-function", f"{function.__name__} of unknown arrays")
    return result


def _has_arrays(values: Any) -> bool:
    return any(
        isinstance(v, (ArrayValue, TensorValue)) or _has_arrays(getattr(v, "items", ()))
        for v in values
        if not isinstance(getattr(v, "items", ()), type(_has_arrays))
    )


_NAMES: Final[dict[int, tuple[Any, list[str]]]] = {}
for _path, _function in _public_functions():
    _NAMES.setdefault(id(_function), (_function, []))[1].append(_path)
for _function, _paths in _NAMES.values():
    _register(_paths, _function)


@wraps(numpy.ufunc, type(numpy.sum))
def _wrap_function(tx: Interpreter, obj: Any, source: Source | None) -> SymbolicValue:
    """A function of a module that was loaded later (numpy.fft) gets its rule here."""
    home = getattr(obj, "__module__", None) or ""
    if id(obj) not in RULES and home.startswith("numpy."):
        _register([f"{home.removeprefix('numpy.')}.{obj.__name__}"], obj)
    return wrap_builtin(tx, obj, source)


def _method_of_function(name: str) -> None:
    @method_rule((numpy.ufunc, name))
    def method(tx: Interpreter, ufunc: SymbolicValue, /, *args: SymbolicValue,
               **kwargs: SymbolicValue) -> SymbolicValue:
        path = f"{ufunc.real().__name__}.{name}"
        if path.count(".") > 1 or getattr(numpy, path.split(".")[0], None) is not ufunc.real():
            raise graph_break("unknown-c-function", path)
        return call_numpy(tx, path, [*args], kwargs)


for _name in ("accumulate", "at", "outer", "reduce", "reduceat"):
    _method_of_function(_name)


_SCALARS: Final = {kind for kind in vars(numpy).values() if isinstance(kind, type)}


@constructor(*(kind for kind in _SCALARS if issubclass(kind, numpy.generic)))
def _scalar(tx: Interpreter, cls: type, /, *values: SymbolicValue, **kwargs: SymbolicValue
            ) -> SymbolicValue:
    """`numpy.float32(x)`."""
    args = [*values]
    result = of_numbers(tx, cls, args, kwargs) or evaluated(tx, cls, args, kwargs)
    if result is None and len(args) == 1 and not kwargs and (
            _has_arrays(args) or isinstance(args[0], SymbolicNumberValue)):
        scalar = call_numpy(tx, "asarray", [args[0], ConstantValue(numpy.dtype(cls))], {})
        assert isinstance(scalar, ArrayValue)
        return ArrayValue(scalar.shared(tx), scalar=scalar.example.dim() == 0)
    if result is None:
        raise graph_break("unknown-operation", f"making a numpy.{cls.__name__}")
    return result


_CONVERTER = vars(sys.modules["numpy._core._multiarray_umath"])["_array_converter"]


@constructor(_CONVERTER)
def _converter(tx: Interpreter, cls: type, /, *args: SymbolicValue, **kwargs: SymbolicValue
               ) -> SymbolicValue:
    return tx.call_python(polyfills.ArrayConverter, [*args], kwargs)


@constructor(numpy.dtype)
def _dtype(tx: Interpreter, cls: type, /, *args: SymbolicValue, **kwargs: SymbolicValue
           ) -> SymbolicValue:
    dtype = evaluated(tx, cls, [*args], kwargs)
    if dtype is None:
        raise graph_break("unknown-operation", "making a numpy.dtype")
    return dtype


@rule(torch.from_numpy)
def _from_numpy(tx: Interpreter, array: SymbolicValue, /) -> SymbolicValue:
    if isinstance(array, ArrayValue) and not array.scalar:
        return array.shared(tx)
    raise graph_break("unknown-c-function", "torch.from_numpy of this value")


def _or_of_array(
    function: object, of_array: Callable[[Any, ArrayValue, Kwargs], SymbolicValue]
) -> None:
    """Extend the rule of a torch function by the case of an array."""
    other = RULES[id(function)][1]

    @rule(function)
    def handler(tx: Interpreter, /, *args: SymbolicValue, **kwargs: SymbolicValue
                ) -> SymbolicValue:
        if len(args) == 1 and isinstance(args[0], ArrayValue):
            return of_array(tx, args[0], with_default_device(tx, function, kwargs))
        return other.call((tx,), [_with_tensors(tx, arg, _is_scalar) for arg in args], kwargs)


def _with_tensors(
    tx: Interpreter, value: SymbolicValue, chosen: Callable[[ArrayValue], bool]
) -> SymbolicValue:
    """The value, or the sequence or slice, with the chosen arrays replaced by tensors."""
    value = tx.force(value)
    if isinstance(value, ArrayValue):
        return value.read(tx) if chosen(value) else value
    if not isinstance(value, (ListValue, TupleValue, SliceValue)):
        return value
    items = value.parts if isinstance(value, SliceValue) else value.all(tx)
    changed = [_with_tensors(tx, item, chosen) for item in items]
    if all(new is tx.force(old) for new, old in zip(changed, items, strict=True)):
        return value
    kind = next(k for k in (ListValue, TupleValue, SliceValue) if isinstance(value, k))
    return kind(changed)


def _is_scalar(array: ArrayValue) -> bool:
    return array.scalar


def _indexed_by_arrays(name: str) -> None:
    """A tensor method that accepts arrays as indices."""
    other = TENSOR_METHODS[name]

    @tensor_method(name)
    def method(tx: Interpreter, tensor: TensorValue, key: SymbolicValue, /, *args: SymbolicValue
               ) -> SymbolicValue:
        key = _with_tensors(tx, key, lambda array: True)
        return other.call((tx, tensor), [key, *args], {})


_indexed_by_arrays("__getitem__")
_indexed_by_arrays("__setitem__")


def _sharing(tx: Interpreter, array: ArrayValue, kwargs: Kwargs) -> SymbolicValue:
    tensor = array.shared(tx)
    if "requires_grad" in kwargs:
        raise graph_break("unknown-operation", "a tensor that requires grad made from an array")
    return record(tx, "to", [tensor], kwargs) if kwargs else tensor


def _copying(tx: Interpreter, array: ArrayValue, kwargs: Kwargs) -> SymbolicValue:
    copy = record(tx, "clone", [array.read(tx)])
    requires = kwargs.pop("requires_grad", None)
    copy = record(tx, "to", [copy], kwargs) if kwargs else copy
    if requires is not None and requires.truth(tx):
        raise graph_break("unknown-operation", "a tensor that requires grad made from an array")
    return copy


_or_of_array(torch.as_tensor, _sharing)
_or_of_array(torch.asarray, _sharing)
_or_of_array(torch.tensor, _copying)
