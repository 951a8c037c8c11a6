"""NumPy arrays: they are tensors in the graph.

Place in the pipeline: a value family over the tensor family. An outside array becomes the tensor
that shares its memory (so that writes to it are seen). Methods, operators and functions become
nodes of `numpy_calls`, and results become arrays again. Result types, and which results are
scalars, are found by running NumPy itself while capturing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, final

import numpy
import torch

from weft.capture import numpy_calls
from weft.capture.breaks import graph_break
from weft.capture.graph import version_of
from weft.capture.numpy_models import Blank, Tried, try_out
from weft.capture.operations import plain_operator
from weft.capture.source import Source
from weft.capture.values.attributes import type_lookup
from weft.capture.values.base import MISSING, Args, Kwargs, SymbolicValue
from weft.capture.values.constant import (
    ConstantValue,
    constant,
    evaluate,
    python_object,
)
from weft.capture.values.containers.sequences import ListValue, SliceValue, TupleValue
from weft.capture.values.methods import BoundBuiltin
from weft.capture.values.numbers.symbolic_numbers import SymbolicNumberValue
from weft.capture.values.objects.classes import ClassValue
from weft.capture.values.registry import wraps
from weft.capture.values.tensors.tensor import TENSOR_METHODS, TensorValue, run, shape_value
from weft.shapes.symnode import is_hinted

if TYPE_CHECKING:
    from weft.capture.interpreter import Interpreter
    from weft.capture.replacement.emitter import Emitter

_METHODS: Final = frozenset(
    {
        "all", "any", "argmax", "argmin", "argsort", "astype", "clip", "conj", "conjugate", "copy",
        "cumprod", "cumsum", "diagonal", "dot", "fill", "flatten", "max", "mean", "min", "nonzero",
        "prod", "ravel", "repeat", "reshape", "round", "searchsorted", "squeeze", "std", "sum",
        "swapaxes", "take", "trace", "transpose", "var",
    }
)
_ATTRIBUTES: Final[dict[str, Any]] = {
    "dtype": lambda t: numpy_calls.numpy_dtype(t.dtype),
    "ndim": lambda t: t.dim(),
    "itemsize": lambda t: t.element_size(),
}


@final
class ArrayValue(SymbolicValue):
    """An ndarray or, if `scalar`, a NumPy scalar whose value depends on data."""

    __slots__ = ("original", "scalar", "tensor")

    def __init__(
        self, tensor: TensorValue, *, scalar: bool = False, source: Source | None = None,
        original: Any = MISSING,
    ) -> None:
        super().__init__(source)
        self.tensor = tensor
        self.scalar = scalar
        self.original = original

    def python_type(self) -> type:
        if not self.scalar:
            return numpy.ndarray
        kind: type = numpy_calls.numpy_dtype(self.tensor.example.dtype).type
        return kind

    def real(self) -> Any:
        return self.original

    def __repr__(self) -> str:
        return f"array {self.source}" if self.source is not None else "an array"

    def dict_key(self, tx: Interpreter) -> Any:
        if self.scalar:
            raise graph_break("data-dependent-value", "hash of a NumPy scalar")
        raise tx.error(TypeError, "unhashable type: 'numpy.ndarray'")

    # -- in the graph -----------------------------------------------------------------------------

    def _number(self, tx: Interpreter) -> SymbolicValue:
        """What torch functions take instead of a NumPy scalar; they refuse or convert arrays
        themselves."""
        if not self.scalar:
            raise graph_break("unknown-operation", f"{self!r} as an argument of a torch function")
        return run(tx, "call_method", "item", [self.tensor], {})

    def proxy(self, tx: Interpreter) -> Any:
        return self._number(tx).proxy(tx)

    def fake(self, tx: Interpreter) -> Any:
        return self._number(tx).fake(tx)

    def rebuild(self, emit: Emitter) -> str:
        text = emit.value(self.tensor)
        if self.tensor.example.is_complex():
            text += ".resolve_conj()"
        text += ".numpy()"
        return emit.bind(self, f"{text}[()]" if self.scalar else text)

    # -- attributes -------------------------------------------------------------------------------

    def getattr(self, tx: Interpreter, name: str) -> SymbolicValue:
        example = self.tensor.example
        if name == "shape":
            return TupleValue(shape_value(tx, example.shape).items)
        if name in _ATTRIBUTES:
            return tx.wrap_new(_ATTRIBUTES[name](example))
        if name == "size":
            return tx.wrap_new(example.numel())
        if name in ("T", "real", "imag"):
            return call_numpy(tx, "transpose" if name == "T" else name, [self], {})
        if name == "__class__":
            return tx.wrap_fixed(self.python_type(), "ndarray")
        special = name.startswith("__") and type_lookup(numpy.ndarray, name) is not MISSING
        if name in _METHODS or special or (self.scalar and name in _CONVERSIONS):
            return BoundBuiltin(self, name)
        if hasattr(self.python_type(), name):
            raise graph_break("unknown-operation", f"attribute {name!r} of an array")
        kind = f"{self.python_type().__module__}.{self.python_type().__name__}"
        raise tx.error(AttributeError, f"'{kind}' object has no attribute '{name}'")

    def method(self, tx: Interpreter, name: str, args: Args, kwargs: Kwargs) -> SymbolicValue:
        if name in _METHODS:
            return call_numpy(tx, f"method.{name}", [self, *args], kwargs)
        if name in _UNARY:
            return call_numpy(tx, f"operator.{name.strip('_')}", [self], {})
        if name.startswith("__") and name.strip("_") in _DUNDERS:
            return tx.binary(_DUNDERS[name.strip("_")], self, args[0])
        if self.scalar and name in _CONVERSIONS and not args and not kwargs:
            number, wanted = self._number(tx), _CONVERSIONS[name]
            return number if wanted is None else tx.call_python(wanted, number)
        raise graph_break("data-dependent-value", f"{name}() of an array")

    # -- operations -------------------------------------------------------------------------------

    def truth(self, tx: Interpreter) -> bool:
        if self.scalar:
            return self.tensor.truth(tx)
        raise graph_break("data-dependent-branch", "a branch on an array")

    def length(self, tx: Interpreter) -> int:
        if self.tensor.example.dim() == 0:
            raise tx.error(TypeError, "len() of unsized object")
        return self.tensor.length(tx)

    def getitem(self, tx: Interpreter, key: SymbolicValue) -> SymbolicValue:
        return call_numpy(tx, "operator.getitem", [self, key], {})

    def setitem(self, tx: Interpreter, key: SymbolicValue, value: SymbolicValue) -> None:
        if self.scalar:
            raise tx.error(TypeError, "NumPy scalars cannot be changed")
        call_numpy(tx, "operator.setitem", [self, key, value], {})

    def contains(self, tx: Interpreter, item: SymbolicValue) -> bool:
        raise graph_break("data-dependent-value", "`in` on an array")

    def iter(self, tx: Interpreter) -> SymbolicValue:
        rows = [self.getitem(tx, constant(i)) for i in range(self.length(tx))]
        return ListValue(rows).iter(tx)

    def binary(self, tx: Interpreter, op: str, other: SymbolicValue, reflected: bool) -> Any:
        if isinstance(other, SymbolicNumberValue):  # rather than an artifact for each size
            raise graph_break("unknown-operation", f"{op} of an array and {other!r}")
        if isinstance(other, TensorValue):
            number = self._number(tx)
            left, right = (other, number) if reflected else (number, other)
            return tx.binary(op, left, right)
        if not isinstance(other, (ArrayValue, ListValue, TupleValue)) and not _is_number(other):
            raise graph_break("unknown-operation", f"{op} of an array and {other!r}")
        in_place = plain_operator(op) != op and not reflected and not self.scalar
        left, right = (other, self) if reflected else (self, other)
        if in_place:
            call_numpy(tx, f"operator.{op}", [left, right], {})
            return self
        return call_numpy(tx, f"operator.{plain_operator(op)}", [left, right], {})


_CONVERSIONS: Final = {
    "item": None, "tolist": None, "__index__": None, "__float__": float, "__int__": int,
}
"""Methods that convert scalars, and the type of the plain number (None: its own)."""

_UNARY: Final = ("__neg__", "__pos__", "__invert__", "__abs__")
_DUNDERS: Final = {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "truediv", "floordiv": "floordiv",
    "mod": "mod", "pow": "pow", "matmul": "matmul", "eq": "eq", "ne": "ne", "lt": "lt", "le": "le",
    "gt": "gt", "ge": "ge", "and": "and_", "or": "or_", "xor": "xor", "getitem": "getitem",
}


def _is_number(value: SymbolicValue) -> bool:
    return value.is_constant and isinstance(value.constant(), (int, float, complex, numpy.generic))


# -- calls ----------------------------------------------------------------------------------------


_CONVERT: Final = ("array", "asarray", "ascontiguousarray", "concatenate", "dot", "hstack", "stack",
                   "vstack", "operator.getitem", "operator.setitem")
"""Functions that make arrays from tensors. Others call the tensors' methods, or return tensors."""

def call_numpy(tx: Interpreter, path: str, args: Args, kwargs: Kwargs) -> SymbolicValue:
    """Record a NumPy operation on arrays and constants as a node of the graph."""
    if "out" in kwargs or "where" in kwargs or not numpy_calls.exists(path):
        raise graph_break("unknown-c-function", f"numpy.{path} in this form")
    if path not in _CONVERT and any(
            isinstance(tx.force(value), TensorValue) for value in (*args, *kwargs.values())):
        raise graph_break("unknown-operation", f"numpy.{path} of a tensor")
    tried = _try_numpy(tx, path, args, kwargs)
    if tried is not None and not tried.agrees:
        raise graph_break("unknown-c-function", f"numpy.{path}, of which PyTorch's version differs")
    given, args = args, [_operand(tx, arg) for arg in args]
    kwargs = {name: _operand(tx, value) for name, value in kwargs.items()}
    result = run(tx, "call_function", numpy_calls.operation(path), args, kwargs)
    if tried is not None and tried.shares_memory:
        _note_copy(tx, args, result)
    same = _returned_argument(given, result)
    if same is not None:
        return same
    return _conform(tx, result, MISSING if tried is None else tried.result)


def _returned_argument(args: Args, result: SymbolicValue) -> SymbolicValue | None:
    """The argument that the operation returns itself, such as `asarray` and in-place operations
    do."""
    arrays = [a for a in args if isinstance(a, ArrayValue) and not a.scalar]
    if not isinstance(result, TensorValue):
        return None
    return next((a for a in arrays if a.tensor.example is result.example), None)


def _try_numpy(tx: Interpreter, path: str, args: Args, kwargs: Kwargs) -> Tried | None:
    """What NumPy itself does with such arguments, or None if that cannot be tried."""
    objects = [_stand_in(tx, arg) for arg in args]
    named = {name: _stand_in(tx, value) for name, value in kwargs.items()}
    if any(o is MISSING for o in (*objects, *named.values())):
        return None
    return try_out(path, objects, named)


def _stand_in(tx: Interpreter, value: SymbolicValue) -> Any:
    value = tx.force(value)
    if isinstance(value, (ArrayValue, TensorValue)):
        example = value.tensor.example if isinstance(value, ArrayValue) else value.example
        sizes = (*example.shape, *example.stride())
        if any(type(n) is not int and not is_hinted(n) for n in sizes):
            return MISSING
        known = tuple(n if type(n) is int else int(n.node.hint) for n in sizes)
        dtype = numpy_calls.numpy_dtype(example.dtype)
        scalar = isinstance(value, ArrayValue) and value.scalar
        return Blank(known[:example.dim()], known[example.dim():], dtype, scalar)
    if isinstance(value, (TupleValue, ListValue)):
        items = [_stand_in(tx, item) for item in value.items]
        return MISSING if any(item is MISSING for item in items) else value.build(items)
    if isinstance(value, SymbolicNumberValue):
        return value.in_this_call()  # types do not depend on it
    return python_object(tx, value)


@final
class CopiedView:
    """A result that is a view in NumPy and a copy in the graph, such as a reversed array."""

    def __init__(self, step: int, taken: list[torch.Tensor], made: list[torch.Tensor]) -> None:
        self.step = step
        self._taken, self._made = taken, made
        self._versions = self._now()

    def _now(self) -> list[int]:
        return [version_of(one) for one in (*self._taken, *self._made)]

    def shows(self, tx: Interpreter, emit: Emitter) -> bool:
        """Whether the difference can be noticed: one of the two was written to, or both outlive the
        graph."""
        if self._now() != self._versions:
            return True
        left = _storages(node.meta.get("example_value") for node in emit.outputs)
        before = _storages(one.node.meta.get("example_value") for one in tx.builder.inputs)
        return bool(_storages(self._made) & left and _storages(self._taken) & (left | before))


def _storages(values: Iterable[Any]) -> set[int]:
    return {value.untyped_storage()._cdata for value in values
            if isinstance(value, torch.Tensor) and value.layout is torch.strided}


def _note_copy(tx: Interpreter, args: Args, result: SymbolicValue) -> None:
    taken = [a.example for a in args if isinstance(a, TensorValue)]
    results = result.items if isinstance(result, (TupleValue, ListValue)) else [result]
    made = [one.example for one in results if isinstance(one, TensorValue)]
    if not _storages(made) <= _storages(taken):
        tx.early_ends.copied_views.append(CopiedView(tx.breaking_step(), taken, made))


def _conform(tx: Interpreter, value: SymbolicValue, model: Any) -> SymbolicValue:
    """The operation's result as arrays and scalars, with NumPy's types if those are known."""
    if isinstance(value, TensorValue):
        if isinstance(model, Blank):
            wanted = numpy_calls.torch_dtype(model.dtype)
            if wanted is None or len(model.shape) != value.example.dim():
                raise graph_break("unknown-c-function", f"a NumPy result of {model.dtype}")
            if wanted is not value.example.dtype:
                value = run(tx, "call_method", "to", [value, constant(wanted)], {})
                assert isinstance(value, TensorValue)
            return ArrayValue(value, scalar=model.scalar)
        return ArrayValue(value, scalar=value.example.dim() == 0)
    if isinstance(value, (TupleValue, ListValue)):
        models = list(model) if isinstance(model, (tuple, list)) else [MISSING] * len(value.items)
        items = [_conform(tx, v, m) for v, m in zip(value.items, models, strict=True)]
        return ListValue(items) if isinstance(model, list) else TupleValue(items)
    return value


def _operand(tx: Interpreter, value: SymbolicValue) -> SymbolicValue:
    """An argument as graph nodes take it: NumPy's types and scalars become torch's."""
    value = tx.force(value)
    if isinstance(value, (TupleValue, ListValue)):
        return type(value)([_operand(tx, item) for item in value.items])
    if isinstance(value, SliceValue):
        return SliceValue([_slice_bound(tx, tx.force(part)) for part in value.parts])
    if isinstance(value, ArrayValue):
        return value.tensor
    if isinstance(value, TensorValue):
        if value.example.requires_grad or value.example.device.type != "cpu":
            raise graph_break("unknown-operation", "a NumPy function of a tensor that is no array")
        return value
    if isinstance(value, ClassValue) or (
        isinstance(value, ConstantValue) and isinstance(value.value, numpy.dtype)
    ):
        dtype = evaluate(tx, lambda: numpy_calls.torch_dtype(value.constant()))
        if dtype is None:
            raise graph_break("unknown-operation", f"arrays of {value!r}")
        return constant(dtype)
    if isinstance(value, ConstantValue) and isinstance(value.value, numpy.generic):
        dtype = numpy_calls.torch_dtype(value.value.dtype)
        if dtype is None:
            raise graph_break("unknown-operation", f"arrays of {value!r}")
        named: Kwargs = {"dtype": constant(dtype)}
        return run(tx, "call_function", torch.tensor, [constant(value.value.item())], named)
    return value


def _slice_bound(tx: Interpreter, part: SymbolicValue) -> SymbolicValue:
    """A bound of a slice, as a plain number."""
    if isinstance(part, ArrayValue):
        raise graph_break("data-dependent-value", "a slice bounded by a NumPy scalar")
    number = isinstance(part, ConstantValue) and isinstance(part.value, numpy.integer)
    return constant(part.constant().item()) if number else _operand(tx, part)


# -- arrays from outside --------------------------------------------------------------------------


@wraps(numpy.ndarray)
def _wrap_array(tx: Interpreter, obj: Any, source: Source | None) -> SymbolicValue:
    if source is None:
        source = tx.tree.object(obj, "array")
    tensor = numpy_calls.tensor_of(obj)
    if tensor is None:
        raise graph_break("unknown-value", f"an array of {obj.dtype} that no tensor can stand for")
    tx.guards.add(source, "type_is", numpy.ndarray)
    inner = source.call(numpy_calls.tensor_of, f"from_numpy({source.name})")
    value = tx.wrap(tensor, inner)
    assert isinstance(value, TensorValue)
    return ArrayValue(value, source=source, original=obj)


@wraps(numpy.dtype, subclasses=True)
def _wrap_dtype(tx: Interpreter, obj: Any, source: Source | None) -> SymbolicValue:
    tx.guards.identity(source, obj)
    return ConstantValue(obj)


@wraps(numpy.generic, subclasses=True)
def _wrap_scalar(tx: Interpreter, obj: Any, source: Source | None) -> SymbolicValue:
    """A NumPy scalar is a constant."""
    if source is not None:
        tx.guards.same_key(source, obj, lambda one: (one.dtype, one.tobytes()))
    return ConstantValue(obj)


# -- tensors and arrays ---------------------------------------------------------------------------


def _tensor_to_array(
    tx: Interpreter, tensor: TensorValue, args: Args, kwargs: Kwargs
) -> SymbolicValue:
    example = tensor.example
    if args or kwargs or example.requires_grad or example.device.type != "cpu":
        raise graph_break("data-dependent-value", "numpy() of this tensor")
    return ArrayValue(tensor)


TENSOR_METHODS["numpy"] = _tensor_to_array
