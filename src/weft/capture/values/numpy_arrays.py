"""NumPy arrays: they are tensors in the graph.

Place in the pipeline: a value family over the tensor family. An outside array is the tensor that shares
its memory (so that writing to it is seen); methods, operators and functions become nodes of
`numpy_calls`; what leaves the graph becomes an array again. A 0-dimensional result is a NumPy scalar.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, final

import numpy
import torch

from weft.capture import numpy_calls
from weft.capture.breaks import graph_break
from weft.capture.operations import plain_operator
from weft.capture.source import Source
from weft.capture.values.base import MISSING, Args, Kwargs, SymbolicValue
from weft.capture.values.classes import ClassValue
from weft.capture.values.constant import ConstantValue, boolean, constant, evaluate
from weft.capture.values.methods import BoundBuiltin
from weft.capture.values.registry import wraps
from weft.capture.values.sequences import ListValue, SliceValue, TupleValue
from weft.capture.values.tensors import TENSOR_METHODS, TensorValue, run, shape_value

if TYPE_CHECKING:
    from weft.capture.interpreter import Interpreter
    from weft.capture.replacement import Emitter

_METHODS: Final = frozenset(
    {
        "all", "any", "argmax", "argmin", "argsort", "astype", "clip", "conj", "conjugate", "copy",
        "cumprod", "cumsum", "diagonal", "dot", "fill", "flatten", "max", "mean", "min", "nonzero",
        "prod", "ravel", "repeat", "reshape", "round", "searchsorted", "squeeze", "std", "sum",
        "swapaxes", "take", "trace", "transpose", "var",
    }
)  # fmt: skip
_GIVES_ARRAY: Final = frozenset(
    {
        "array", "asarray", "ascontiguousarray", "copy", "empty", "empty_like", "full", "full_like",
        "ones", "ones_like", "zeros", "zeros_like", "reshape", "squeeze", "transpose", "ravel",
        "atleast_1d", "broadcast_to", "method.astype", "method.copy", "method.reshape",
        "method.squeeze", "method.transpose", "method.view",
    }
)  # fmt: skip
"""Operations whose 0-dimensional result is an array, not a scalar."""

_ATTRIBUTES: Final[dict[str, Any]] = {
    "dtype": lambda t: numpy_calls.numpy_dtype(t.dtype),
    "ndim": lambda t: t.dim(),
    "itemsize": lambda t: t.element_size(),
}


@final
class ArrayValue(SymbolicValue):
    """An ndarray, or (`scalar`) a NumPy scalar whose value depends on data."""

    __slots__ = ("original", "scalar", "tensor")

    def __init__(
        self, tensor: TensorValue, *, scalar: bool = False, source: Source | None = None,
        original: Any = MISSING,
    ) -> None:  # fmt: skip
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

    def proxy(self, tx: Interpreter) -> Any:
        return self.tensor.proxy(tx)

    def fake(self, tx: Interpreter) -> Any:
        return self.tensor.example

    def rebuild(self, emit: Emitter) -> str:
        text = f"{emit.value(self.tensor)}.numpy()"
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
        if name in _METHODS or name.startswith("__") and hasattr(numpy.ndarray, name):
            return BoundBuiltin(self, name)
        if hasattr(self.python_type(), name):
            raise graph_break("unknown-operation", f"attribute {name!r} of an array")
        kind = f"{self.python_type().__module__}.{self.python_type().__name__}"
        raise tx.error(AttributeError, f"'{kind}' object has no attribute '{name}'")

    def method(self, tx: Interpreter, name: str, args: Args, kwargs: Kwargs) -> SymbolicValue:
        if name in _METHODS:
            return call_numpy(tx, f"method.{name}", [self, *args], kwargs)
        if name.startswith("__") and name.strip("_") in _DUNDERS:
            return tx.binary(_DUNDERS[name.strip("_")], self, args[0])
        raise graph_break("data-dependent-value", f"{name}() of an array")

    # -- operations -------------------------------------------------------------------------------

    def truth(self, tx: Interpreter) -> bool:
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
        if not isinstance(other, (ArrayValue, ListValue, TupleValue)) and not _is_number(other):
            if other.is_constant and other.constant() is None and op in ("eq", "ne"):
                return boolean(op == "ne") if self.scalar else None
            return None
        in_place = plain_operator(op) != op and not reflected and not self.scalar
        left, right = (other, self) if reflected else (self, other)
        if in_place:
            call_numpy(tx, f"operator.{op}", [left, right], {})
            return self
        return call_numpy(tx, f"operator.{plain_operator(op)}", [left, right], {})


_DUNDERS: Final = {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "truediv", "floordiv": "floordiv",
    "mod": "mod", "pow": "pow", "matmul": "matmul", "eq": "eq", "ne": "ne", "lt": "lt", "le": "le",
    "gt": "gt", "ge": "ge", "and": "and_", "or": "or_", "xor": "xor", "getitem": "getitem",
}  # fmt: skip


def _is_number(value: SymbolicValue) -> bool:
    return value.is_constant and isinstance(value.constant(), (int, float, complex, numpy.generic))


# -- calls ----------------------------------------------------------------------------------------


def call_numpy(tx: Interpreter, path: str, args: Args, kwargs: Kwargs) -> SymbolicValue:
    """A NumPy operation on arrays and constants, as a node of the graph."""
    if "out" in kwargs or "where" in kwargs or not numpy_calls.exists(path):
        raise graph_break("unknown-c-function", f"numpy.{path} in this form")
    args = [_operand(tx, arg) for arg in args]
    kwargs = {name: _operand(tx, value) for name, value in kwargs.items()}
    result = run(tx, "call_function", numpy_calls.operation(path), args, kwargs)
    return _as_array(result, keeps_array=path in _GIVES_ARRAY)


def _as_array(value: SymbolicValue, *, keeps_array: bool) -> SymbolicValue:
    if isinstance(value, TensorValue):
        return ArrayValue(value, scalar=value.example.dim() == 0 and not keeps_array)
    if isinstance(value, TupleValue):
        return TupleValue([_as_array(item, keeps_array=True) for item in value.items])
    if isinstance(value, ListValue):
        return ListValue([_as_array(item, keeps_array=True) for item in value.items])
    return value


def _operand(tx: Interpreter, value: SymbolicValue) -> SymbolicValue:
    """An argument as a node can take it: NumPy's types and scalars become torch's."""
    value = tx.force(value)
    if isinstance(value, (TupleValue, ListValue)):
        return type(value)([_operand(tx, item) for item in value.items])
    if isinstance(value, SliceValue):
        return SliceValue([_operand(tx, part) for part in value.parts])
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
    if source is not None and source.accessor[0] != "object":
        tx.guards.add(source, "is", obj)
    return ConstantValue(obj)


@wraps(numpy.generic, subclasses=True)
def _wrap_scalar(tx: Interpreter, obj: Any, source: Source | None) -> SymbolicValue:
    """A NumPy scalar is a constant."""
    if source is not None:
        tx.guards.add(source, "type_is", type(obj))
        tx.guards.add(source, "py", obj.__eq__)
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
