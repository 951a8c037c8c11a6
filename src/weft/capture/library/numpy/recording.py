"""NumPy operations while capturing: evaluated on what is known, else recorded as nodes.

Place in the pipeline: above `numpy_arrays`, whose methods end here, and under the rules of
`rules`. A node calls the operation's form in PyTorch (`numpy_calls`) on the
arrays' tensors. What NumPy itself would return (the type, whether it is a scalar, a view or an
argument itself) is found by running NumPy while capturing, on arrays of the same form
(`numpy_models`)::

    np.sum(a, axis=0)      # the node `sum(a, axis=0)`; its result as an array of NumPy's type

Where PyTorch's form cannot do what NumPy does, the graph breaks.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy
import torch

from weft.capture.core.base import MISSING, Args, Kwargs, SymbolicValue
from weft.capture.core.breaks import graph_break
from weft.capture.core.constant import (
    ConstantValue,
    constant,
    evaluate,
    is_none,
    known_arguments,
    python_object,
)
from weft.capture.core.graph import storages
from weft.capture.core.operator_names import plain_operator
from weft.capture.library.classes.classes import ClassValue
from weft.capture.library.containers.sequences import ListValue, SliceValue, TupleValue
from weft.capture.library.numbers.symbolic_numbers import SymbolicNumberValue
from weft.capture.library.numpy import calls
from weft.capture.library.numpy.arrays import (
    ArrayValue,
    blank_like,
    call_numpy,
    has_symbolic,
    is_fixed,
    is_plain_number,
    operand,
)
from weft.capture.library.numpy.copied_views import note_copy
from weft.capture.library.numpy.known_arrays import evaluated
from weft.capture.library.numpy.models import Blank, Tried, try_out
from weft.capture.library.tensors.tensor import TensorValue, record
from weft.shapes.symnode import is_hinted

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter

_CONVERT: Final = ("array", "asarray", "ascontiguousarray", "concatenate", "dot", "hstack", "stack",
                   "vstack", "operator.getitem", "operator.setitem")
"""Functions that make arrays from tensors. Others call the tensors' methods, or return tensors."""


@call_numpy.define
def _call_numpy(tx: Interpreter, path: str, args: Args, kwargs: Kwargs) -> SymbolicValue:
    """Evaluate a NumPy operation, or record it as a node of the graph."""
    if not any(has_symbolic(tx, tx.force(value)) for value in (*args, *kwargs.values())):
        result = evaluated(tx, calls.numpy_function(path), args, kwargs)
        if result is not None:
            return result
    return record_numpy(tx, path, args, kwargs)


def record_numpy(tx: Interpreter, path: str, args: Args, kwargs: Kwargs) -> SymbolicValue:
    """Record a NumPy operation as a node of the graph."""
    args = [tx.force(arg) for arg in args]
    kwargs = {name: tx.force(value) for name, value in kwargs.items()}
    if path in ("array", "asarray") and isinstance(args[0], (ListValue, TupleValue)):
        return _array_of_items(tx, path, args, kwargs)
    args = [_as_array(tx, arg) for arg in args]
    ufunc = calls.ufunc_of(path)
    if ufunc is not None and len(args) == ufunc.nin + 1:
        kwargs["out"] = args.pop()
    if "out" in kwargs and not is_none(kwargs["out"]):
        return _call_into(tx, path, args, **kwargs)
    if path in _OF_TYPES and (tried := _try_numpy(tx, path, args, kwargs)) is not None:
        return tx.wrap_new(tried.result)
    _check_call(tx, path, args, kwargs)
    tried = _try_numpy(tx, path, args, kwargs)
    if tried is not None and not tried.agrees:
        raise graph_break("unknown-c-function", f"numpy.{path}, of which PyTorch's version differs")
    itself = args[tried.argument] if tried is not None and tried.argument >= 0 else None
    if isinstance(itself, ArrayValue) and not _writes(path):
        return itself
    return _record(tx, path, args, kwargs, tried)


def _check_call(tx: Interpreter, path: str, args: Args, kwargs: Kwargs) -> None:
    """End the graph, or raise NumPy's exception, if no node can stand for the call."""
    if ("where" in kwargs and path not in calls.OWN) or not calls.exists(path):
        raise graph_break("unknown-c-function", f"numpy.{path} in this form")
    if path not in _CONVERT and any(
            isinstance(value, TensorValue) for value in (*args, *kwargs.values())):
        raise graph_break("unknown-operation", f"numpy.{path} of a tensor")
    if _writes(path) and isinstance(args[0], ArrayValue) and args[0].readonly:
        what = "assignment destination" if "set" in path or "fill" in path else "output array"
        raise tx.error(ValueError, f"{what} is read-only")


def _record(tx: Interpreter, path: str, args: Args, kwargs: Kwargs, tried: Tried | None
            ) -> SymbolicValue:
    """The node, and its results as NumPy has them: as views, copies or an argument itself."""
    writes = _writes(path)
    if writes and isinstance(args[0], ArrayValue):
        args[0].shared(tx)
    operands = [_operand(tx, arg) for arg in args]
    named = {name: _operand(tx, value) for name, value in kwargs.items()}
    if writes:
        operands[1:] = [_apart(tx, source, operands[0]) for source in operands[1:]]
    result = record(tx, calls.operation(path), operands, named)
    constants = {array: tensor.example for array, tensor in zip(args, operands, strict=True)
                 if isinstance(array, ArrayValue) and array.known is not None
                 and isinstance(tensor, TensorValue)}
    if storages(_tensors(result)) & storages(constants.values()):
        for array in constants:
            array.shared(tx)
        return _call_numpy(tx, path, args, kwargs)
    if tried is not None and tried.shares_memory:
        note_copy(tx, operands, _tensors(result))
    if tried is not None and not tried.shares_memory and not writes:
        result = _apart(tx, result, *operands)
    same = _returned_argument(args, result)
    if same is not None:
        return same
    return _conform(tx, result, MISSING if tried is None else tried.result)


def _writes(path: str) -> bool:
    """Whether the operation writes to its first argument."""
    family, _, name = path.rpartition(".")
    return path in ("operator.setitem", "method.fill", "method.sort", "copyto") or name == "at" or (
        family == "operator" and plain_operator(name) != name)


_OF_TYPES: Final = frozenset({
    "can_cast", "common_type", "iscomplexobj", "isrealobj", "isscalar", "iterable", "result_type",
})
"""Functions whose results depend on types only."""


_SAME_KIND: Final = constant("same_kind")


def _call_into(
    tx: Interpreter, path: str, args: Args, *, out: SymbolicValue,
    where: SymbolicValue | None = None, casting: SymbolicValue = _SAME_KIND,
    **kwargs: SymbolicValue,
) -> SymbolicValue:
    """A call with `out`, as a call and a copy."""
    if isinstance(out, TupleValue) and len(out.items) == 1:
        out = tx.force(out.items[0])
    result = _call_numpy(tx, path, args, kwargs)
    if not isinstance(result, ArrayValue) or not isinstance(out, ArrayValue) or out.scalar:
        raise graph_break("unknown-c-function", f"numpy.{path} in this form")
    same = result.dtype == out.dtype or (
        calls.ufunc_of(path) is not None
        and numpy.can_cast(result.dtype, out.dtype, casting.constant()))
    if not same:
        raise graph_break("unknown-c-function", f"numpy.{path} with an `out` of another type")
    if where is not None:
        result = _call_numpy(tx, "where", [where, result, out], {})
        assert isinstance(result, ArrayValue)
    if not result.scalar and len(result.example.shape) != len(out.shape()):
        raise graph_break("unknown-c-function", f"numpy.{path} with an `out` of another shape")
    out.setitem(tx, constant(Ellipsis), result)
    return out


def _array_of_items(tx: Interpreter, path: str, args: Args, kwargs: Kwargs) -> SymbolicValue:
    """An array of numbers and arrays, some of them unknown, in a list."""
    tried = _try_numpy(tx, path, [_like(tx, args[0]), *args[1:]], kwargs)
    model = None if tried is None else tried.result
    dtype = calls.torch_dtype(model.dtype) if isinstance(model, Blank) else None
    if model is None or dtype is None:
        raise graph_break("unknown-c-function", f"numpy.{path} of these items")
    stacked = _stacked(tx, args[0], dtype)
    if not isinstance(stacked, TensorValue) or stacked.example.dim() != len(model.shape):
        raise graph_break("unknown-c-function", f"numpy.{path} in this form")
    return ArrayValue(stacked)


def _as_array(tx: Interpreter, value: SymbolicValue) -> SymbolicValue:
    """A list of numbers, some of which only data gives, as an array."""
    if not isinstance(value, (ListValue, TupleValue)):
        return value
    items = [tx.force(item) for item in value.items]
    data = any(_is_datum(item) for item in items)
    if not data or not all(_is_datum(item) or is_plain_number(item) for item in items):
        return value
    return _array_of_items(tx, "array", [value], {})


def _is_datum(value: SymbolicValue) -> bool:
    """Whether it is a float, or a NumPy scalar, of unknown value."""
    return (isinstance(value, ArrayValue) and value.scalar) or (
        isinstance(value, SymbolicNumberValue) and value.python_type() is float)


def _like(tx: Interpreter, value: SymbolicValue) -> SymbolicValue:
    """The value with ones for numbers that depend on data."""
    value = tx.force(value)
    if isinstance(value, (ListValue, TupleValue)):
        return ListValue([_like(tx, item) for item in value.items])
    unknown = isinstance(value, SymbolicNumberValue) and value.in_this_call() is MISSING
    return constant(value.python_type()(1)) if unknown else value


def _stacked(tx: Interpreter, value: SymbolicValue, dtype: torch.dtype) -> SymbolicValue:
    value = tx.force(value)
    if isinstance(value, (ListValue, TupleValue)):
        parts = [_stacked(tx, item, dtype) for item in value.items]
        return record(tx, torch.stack, [ListValue(parts)])
    options: Kwargs = {"dtype": constant(dtype)}
    if isinstance(value, (ArrayValue, TensorValue)):
        return record(tx, "to", [_operand(tx, value)], options)
    options["device"] = constant(torch.device("cpu"))
    plain = value.constant() if value.is_constant else None
    number = constant(plain.item()) if isinstance(plain, numpy.generic) else value
    return record(tx, torch.full, [TupleValue([]), number], options)


def _apart(tx: Interpreter, value: SymbolicValue, *others: SymbolicValue) -> SymbolicValue:
    """The tensors in a value, copied if they share memory with the others."""
    taken = storages(other.example for other in others if isinstance(other, TensorValue))
    if isinstance(value, TensorValue) and storages([value.example]) & taken:
        return record(tx, "clone", [value])
    if isinstance(value, (TupleValue, ListValue)) and any(map(_is_tensor, value.items)):
        return type(value)([_apart(tx, item, *others) for item in value.items])
    return value


def _is_tensor(value: SymbolicValue) -> bool:
    return isinstance(value, TensorValue)


def _tensors(result: SymbolicValue) -> list[torch.Tensor]:
    """The fakes in an operation's result."""
    results = result.items if isinstance(result, (TupleValue, ListValue)) else [result]
    return [value.example for value in results if isinstance(value, TensorValue)]


def _returned_argument(args: Args, result: SymbolicValue) -> SymbolicValue | None:
    """The argument that the operation returns itself, such as `asarray` and in-place operations
    do."""
    arrays = [a for a in args if isinstance(a, ArrayValue) and not a.scalar and a.known is None]
    if not isinstance(result, TensorValue):
        return None
    return next((a for a in arrays if a.example is result.example), None)


def _try_numpy(tx: Interpreter, path: str, args: Args, kwargs: Kwargs) -> Tried | None:
    """What NumPy itself does with such arguments, or None if that cannot be tried."""
    known = known_arguments(tx, args, kwargs, _stand_in)
    return None if known is None else try_out(path, known)


def _stand_in(tx: Interpreter, value: SymbolicValue) -> object:
    value = tx.force(value)
    if isinstance(value, ArrayValue):
        return value.stand_in()
    if isinstance(value, TensorValue):
        return blank_like(value.example)
    if isinstance(value, (TupleValue, ListValue)):
        items = [_stand_in(tx, item) for item in value.items]
        return MISSING if any(item is MISSING for item in items) else value.build(items)
    if isinstance(value, SymbolicNumberValue):
        return value.in_this_call()  # types do not depend on it
    return python_object(tx, value)


def _conform(tx: Interpreter, value: SymbolicValue, model: object) -> SymbolicValue:
    """The operation's result as arrays and scalars, with NumPy's types if those are known."""
    if isinstance(value, TensorValue):
        if isinstance(model, Blank):
            wanted = calls.torch_dtype(model.dtype)
            if wanted is None or len(model.shape) != value.example.dim():
                raise graph_break("unknown-c-function", f"a NumPy result of {model.dtype}")
            if wanted is not value.example.dtype:
                value = record(tx, "to", [value, constant(wanted)])
                assert isinstance(value, TensorValue)
            return ArrayValue(_laid_out(tx, value, model), scalar=model.scalar,
                              readonly=not model.writeable)
        return ArrayValue(value, scalar=value.example.dim() == 0)
    if isinstance(value, (TupleValue, ListValue)):
        models = list(model) if isinstance(model, (tuple, list)) else [MISSING] * len(value.items)
        items = [_conform(tx, v, m) for v, m in zip(value.items, models, strict=True)]
        return ListValue(items) if isinstance(model, list) else TupleValue(items)
    return value


def _laid_out(tx: Interpreter, tensor: TensorValue, model: Blank) -> TensorValue:
    """The tensor with its dimensions in the same order in memory as NumPy's."""
    sizes = tensor.example.shape
    real = [at for at, n in enumerate(model.shape) if n != 1 and not is_fixed(sizes[at], 1)]
    order = sorted(real, key=lambda at: -model.strides[at])
    steps = [model.strides[at] for at in order]
    rest = [model.shape[at] for at in order[1:]]
    dense = [math.prod(rest[at:]) for at in range(len(order))]
    if steps != dense or 0 in model.shape or _in_order(tensor.example.stride(), order):
        return tensor
    places = order + [at for at in range(len(sizes)) if at not in order]
    back = [places.index(at) for at in range(len(sizes))]
    for name, arguments in (("permute", places), ("contiguous", []), ("permute", back)):
        moved = record(tx, name, [tensor, *map(constant, arguments)])
        assert isinstance(moved, TensorValue)
        tensor = moved
    return tensor


def _in_order(strides: tuple[Any, ...], order: list[int]) -> bool:
    steps = [strides[at] for at in order]
    if any(type(step) is not int and not is_hinted(step) for step in steps):
        return True
    hints = [step if type(step) is int else int(step.node.hint) for step in steps]
    return hints == sorted(hints, reverse=True)


@operand.define
def _operand(tx: Interpreter, value: SymbolicValue) -> SymbolicValue:
    """An argument as graph nodes take it: NumPy's types and scalars become torch's."""
    value = tx.force(value)
    if isinstance(value, (TupleValue, ListValue)):
        return type(value)([_operand(tx, item) for item in value.items])
    if isinstance(value, SliceValue):
        return SliceValue([_slice_bound(tx, tx.force(part)) for part in value.parts])
    if isinstance(value, ArrayValue):
        return value.read(tx)
    if isinstance(value, TensorValue):
        if value.example.requires_grad or value.example.device.type != "cpu":
            raise graph_break("unknown-operation", "a NumPy function of a tensor that is no array")
        return value
    if isinstance(value, ClassValue) or (
        isinstance(value, ConstantValue) and isinstance(value.value, numpy.dtype)
    ):
        dtype = evaluate(tx, lambda: calls.torch_dtype(value.constant()))
        if dtype is None:
            raise graph_break("unknown-operation", f"arrays of {value!r}")
        return constant(dtype)
    if isinstance(value, ConstantValue) and isinstance(value.value, numpy.generic):
        dtype = calls.torch_dtype(value.value.dtype)
        if dtype is None:
            raise graph_break("unknown-operation", f"arrays of {value!r}")
        named: Kwargs = {"dtype": constant(dtype)}
        return record(tx, torch.tensor, [constant(value.value.item())], named)
    return value


def _slice_bound(tx: Interpreter, part: SymbolicValue) -> SymbolicValue:
    """A bound of a slice, as a plain number."""
    if isinstance(part, ArrayValue):
        raise graph_break("data-dependent-value", "a slice bounded by a NumPy scalar")
    number = isinstance(part, ConstantValue) and isinstance(part.value, numpy.integer)
    return constant(part.constant().item()) if number else _operand(tx, part)
