"""NumPy arrays: they are tensors in the graph.

Place in the pipeline: a value family over the tensor family. An outside array becomes the tensor
that shares its memory, so that writes to it are seen. Methods, operators and functions are
evaluated or recorded by `numpy_recording`. Arrays that follow from constants are no tensors as long
as they need not be (`known_arrays`)::

    a = x.numpy()          # an array value over the tensor value of x
    b = np.sqrt(a) + 1     # nodes of the graph; b is an array value again
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, Final, final

import numpy
import torch

from weft.capture.core.base import MISSING, Args, Kwargs, SymbolicValue
from weft.capture.core.breaks import GraphBreak, graph_break
from weft.capture.core.constant import FALSE, ConstantValue, constant, evaluate, python_object
from weft.capture.core.declared import Declared
from weft.capture.core.methods import BoundBuiltin
from weft.capture.core.operator_names import ARITHMETIC, COMPARISONS, method_name, plain_operator
from weft.capture.core.registry import wraps
from weft.capture.core.source import Source
from weft.capture.library.classes.attributes import type_lookup
from weft.capture.library.containers.sequences import ListValue, SliceValue, TupleValue
from weft.capture.library.numbers.symbolic_numbers import SymbolicNumberValue
from weft.capture.library.numpy import calls
from weft.capture.library.numpy.known_arrays import Memory, contents, evaluated, memory_of, rebuilt
from weft.capture.library.numpy.models import Blank
from weft.capture.library.tensors.tensor import (
    TensorValue,
    record,
    shape_value,
    tensor_method,
)
from weft.shapes.symnode import is_hinted
from weft.storable import storable

if TYPE_CHECKING:
    from weft.capture.core.protocols import Emitter, Interpreter

_METHODS: Final = frozenset(
    {
        "all", "any", "argmax", "argmin", "argsort", "astype", "clip", "conj", "conjugate", "copy",
        "cumprod", "cumsum", "diagonal", "dot", "fill", "flatten", "max", "mean", "min", "nonzero",
        "prod", "ravel", "repeat", "reshape", "round", "searchsorted", "squeeze", "std", "sum",
        "sort", "swapaxes", "take", "trace", "transpose", "var",
    }
)
_ATTRIBUTES: Final[dict[str, Any]] = {
    "dtype": lambda t: calls.numpy_dtype(t.dtype),
    "ndim": lambda t: t.dim(),
    "size": lambda t: t.numel(),
    "itemsize": lambda t: t.element_size(),
    "nbytes": lambda t: t.numel() * t.element_size(),
    "strides": lambda t: tuple(step * t.element_size() for step in t.stride()),
    **({"device": lambda t: "cpu"} if hasattr(numpy.ndarray, "device") else {}),  # since NumPy 2
}


call_numpy: Declared[[Interpreter, str, Args, Kwargs], SymbolicValue] = Declared()
"""Evaluate a NumPy operation, or record it as a node of the graph."""

operand: Declared[[Interpreter, SymbolicValue], SymbolicValue] = Declared()
"""An argument as graph nodes take it: NumPy's types and scalars become torch's."""


@final
class ArrayValue(SymbolicValue):
    """An ndarray or, if `scalar`, a NumPy scalar whose value depends on data."""

    __slots__ = ("__weakref__", "_known", "_memory", "_present", "_tensor", "original", "readonly",
                 "scalar")

    def __init__(
        self, tensor: TensorValue | None, *, scalar: bool = False, source: Source | None = None,
        original: Any = MISSING, readonly: bool = False,
    ) -> None:
        super().__init__(source)
        self.readonly = readonly
        self._tensor = tensor
        self.scalar = scalar
        self.original = original
        self._memory: Memory | None = None
        self._known: Any = None
        self._present: tuple[bytes, TensorValue] | None = None

    @classmethod
    def of_known(cls, array: numpy.ndarray[Any, Any], memory: Memory) -> ArrayValue:
        """An array made while capturing."""
        wrapped = cls(None)
        wrapped._known, wrapped._memory = array, memory
        memory.views.add(wrapped)
        if memory.shared is not None:
            raise graph_break("unknown-operation", "a view of memory that a tensor shares")
        return wrapped

    @property
    def known(self) -> Any:
        """The array itself if capture made it and knows its contents, else None."""
        return self._known

    def set_tensor(self, tensor: TensorValue | None) -> None:
        """From now on the graph has the array, as this tensor."""
        self._tensor, self._known, self._present = tensor, None, None

    def shared(self, tx: Interpreter) -> TensorValue:
        """The tensor that shares the array's memory."""
        if self._known is not None:
            assert self._memory is not None
            self._memory.share(tx)
        if self._tensor is None:
            raise graph_break("unknown-operation", "an array that shares memory as no tensor can")
        return self._tensor

    def read(self, tx: Interpreter) -> TensorValue:
        """A tensor with the array's present contents, to be read only."""
        if self._known is None:
            return self.shared(tx)
        now = self._known.tobytes()
        if self._present is None or self._present[0] != now:
            self._present = now, contents(tx, self._known)
        return self._present[1]

    def copied(self, tx: Interpreter) -> Any:
        """The array if its contents are known; of one from outside, a copy."""
        if self._known is not None:
            return self._known
        data = None if self._tensor is None else self._tensor.known_data(tx)
        if data is None or data.is_conj() or data.is_neg():
            return MISSING
        return data.numpy()[()] if self.scalar else data.numpy()

    @property
    def dtype(self) -> Any:
        if self._known is not None:
            return self._known.dtype
        return calls.numpy_dtype(self.example.dtype)

    def shape(self) -> Any:
        return self.example.shape if self._known is None else self._known.shape

    @property
    def example(self) -> torch.Tensor:
        """The fake tensor that stands for an array of unknown contents."""
        if self._tensor is None:
            raise graph_break("unknown-operation", "an array that shares memory as no tensor can")
        return self._tensor.example

    def python_type(self) -> type:
        kind: type = self.dtype.type if self.scalar else numpy.ndarray
        return kind

    def __repr__(self) -> str:
        return f"array {self.source}" if self.source is not None else "an array"

    def stand_in(self) -> object:
        """An array for NumPy to try an operation with: the array itself, or one of the same form;
        MISSING if its sizes depend on data."""
        if self._known is not None:
            return self._known
        return blank_like(self.example, scalar=self.scalar, writeable=not self.readonly)

    def dict_key(self, tx: Interpreter) -> object:
        if self.scalar:
            raise graph_break("data-dependent-value", "hash of a NumPy scalar")
        raise tx.error(TypeError, "unhashable type: 'numpy.ndarray'")

    # -- in the graph -----------------------------------------------------------------------------

    def as_number(self, tx: Interpreter) -> SymbolicValue:
        """The Python number in an array of one element."""
        return record(tx, "item", [self.shared(tx)])

    def plain_number(self, tx: Interpreter) -> SymbolicValue:
        return self.as_number(tx) if self.scalar else self

    def formatted_as(self, tx: Interpreter, spec: SymbolicValue) -> SymbolicValue:
        if self.scalar and (self.dtype.itemsize == 8 or python_object(tx, spec)):
            return self.as_number(tx)
        return self

    def _number(self, tx: Interpreter) -> SymbolicValue:
        """What torch functions take instead of a NumPy scalar; they refuse or convert arrays
        themselves."""
        if not self.scalar:
            raise graph_break("unknown-operation", f"{self!r} as an argument of a torch function")
        return self.as_number(tx)

    def proxy(self, tx: Interpreter) -> Any:
        return self._number(tx).proxy(tx)

    def fake(self, tx: Interpreter) -> Any:
        return self._number(tx).fake(tx)

    def rebuild(self, emit: Emitter) -> str:
        if self._known is not None:
            assert self._memory is not None
            return rebuilt(emit, self._memory, self._known, self)
        text = emit.value(self.shared(emit.tx))
        if self.example.is_complex():
            text += ".resolve_conj()"
        text += ".numpy()"
        name = emit.bind(self, f"{text}[()]" if self.scalar else text)
        if self.readonly:
            emit.line(f"{name}.setflags(write=False)")
        return name

    # -- attributes -------------------------------------------------------------------------------

    def getattr(self, tx: Interpreter, name: str) -> SymbolicValue:
        if name == "__class__":
            return tx.wrap_fixed(self.python_type(), "ndarray")
        if name == "flat":
            return FlatValue(self)
        if self._known is not None:
            attribute = evaluate(tx, lambda: getattr(self._known, name))
            return BoundBuiltin(self, name) if callable(attribute) else tx.wrap_new(attribute)
        if name == "shape":
            return TupleValue(shape_value(tx, self.example.shape).items)
        if name in _ATTRIBUTES:
            return tx.wrap_new(_ATTRIBUTES[name](self.example))
        if name in ("T", "real", "imag"):
            return call_numpy(tx, "transpose" if name == "T" else name, [self], {})
        model = self.stand_in() if name == "flags" else None
        if isinstance(model, Blank):
            return ConstantValue(model.filled((1,)).flags)
        special = name.startswith("__") and type_lookup(numpy.ndarray, name) is not MISSING
        if name in _METHODS or special or name in ("item", "tolist"):
            return BoundBuiltin(self, name)
        if type_lookup(self.python_type(), name) is not MISSING:
            raise graph_break("unknown-operation", f"attribute {name!r} of an array")
        kind = f"{self.python_type().__module__}.{self.python_type().__name__}"
        raise tx.error(AttributeError, f"'{kind}' object has no attribute '{name}'")

    def method(self, tx: Interpreter, name: str, args: Args, kwargs: Kwargs) -> SymbolicValue:
        if name in _OTHER_EFFECTS:
            raise graph_break("unknown-c-function", f"{name}() of an array")
        if self.copied(tx) is not MISSING:
            call = operator.methodcaller
            result = evaluated(tx, lambda array, *more, **named: call(name, *more, **named)(array),
                               [self, *args], kwargs)
            if result is not None:
                return result
        if name in _METHODS:
            return call_numpy(tx, f"method.{name}", [self, *args], kwargs)
        if name in _UNARY:
            return call_numpy(tx, f"operator.{name.strip('_')}", [self], {})
        if name == "__round__" and args and self.scalar:
            return call_numpy(tx, "method.round", [self, *args], kwargs)
        if name in _OPERATORS:
            return tx.binary(_OPERATORS[name], self, args[0])
        if name in ("item", "tolist") and not args and not kwargs:
            return self.shared(tx).method(tx, name, [], {})
        if name == "item" and not kwargs:
            return self.getitem(tx, _item_key(*args)).method(tx, "item", [], {})
        if self.example.dim() == 0 and name in _CONVERSIONS and not args:
            return tx.call_python(_CONVERSIONS[name], [self.as_number(tx)])
        raise self._unknown(tx, "data-dependent-value", f"{name}() of an array")

    def _unknown(self, tx: Interpreter, kind: str, detail: str) -> GraphBreak:
        """The break where the array's contents are needed."""
        return graph_break(kind, detail, self.shared(tx).proxy(tx))

    # -- operations -------------------------------------------------------------------------------

    def truth(self, tx: Interpreter) -> bool:
        known = self.copied(tx)
        if known is not MISSING:
            return evaluate(tx, lambda: bool(known))
        if self.scalar or _is_one(self.example):
            return self.shared(tx).truth(tx)
        raise graph_break("data-dependent-branch", "a branch on an array")

    def length(self, tx: Interpreter) -> int:
        if self._known is not None:
            return evaluate(tx, lambda: len(self._known))
        if self.example.dim() == 0:
            raise tx.error(TypeError, "len() of unsized object")
        return self.shared(tx).length(tx)

    def getitem(self, tx: Interpreter, key: SymbolicValue) -> SymbolicValue:
        if _is_symbolic(tx, key):
            return self._select(tx, key)
        return call_numpy(tx, "operator.getitem", [self, key], {})

    def _select(self, tx: Interpreter, key: SymbolicValue) -> SymbolicValue:
        """`self[key]` where the key has numbers that differ between calls."""
        key = _plain_index(tx, key)
        items = key.items if isinstance(key, TupleValue) else [key]
        scalar = len(items) == len(self.shape()) and not any(
            isinstance(tx.force(item), SliceValue) for item in items)
        tensor = self.read(tx) if scalar else self.shared(tx)
        element = tensor.getitem(tx, key)
        if not isinstance(element, TensorValue) or scalar is not (element.example.dim() == 0):
            raise graph_break("unknown-operation", f"indexing {self!r} by {key!r}")
        copied = record(tx, "clone", [element]) if scalar else element
        assert isinstance(copied, TensorValue)
        return ArrayValue(copied, scalar=scalar, readonly=self.readonly and not scalar)

    def setitem(self, tx: Interpreter, key: SymbolicValue, value: SymbolicValue) -> None:
        if self.scalar:
            raise tx.error(TypeError, "NumPy scalars cannot be changed")
        if _is_symbolic(tx, key) and not self.readonly:
            self.shared(tx).setitem(tx, _plain_index(tx, key), operand(tx, value))
            return
        call_numpy(tx, "operator.setitem", [self, key, value], {})

    def contains(self, tx: Interpreter, item: SymbolicValue) -> bool:
        answer = evaluated(tx, operator.contains, [self, item], {})
        if answer is None:
            raise self._unknown(tx, "data-dependent-value", "`in` on an array")
        return answer.truth(tx)

    def iter(self, tx: Interpreter) -> SymbolicValue:
        if self._known is not None and self._known.ndim == 0:
            raise tx.error(TypeError, "iteration over a 0-d array")
        rows = [self.getitem(tx, constant(i)) for i in range(self.length(tx))]
        return ListValue(rows).iter(tx)

    def binary(self, tx: Interpreter, op: str, other: SymbolicValue, reflected: bool) -> Any:
        left, right = (other, self) if reflected else (self, other)
        op = plain_operator(op) if reflected or self.scalar else op
        known_result = None
        if not has_symbolic(tx, other):
            known_result = evaluated(tx, getattr(operator, op), [left, right], {})
        if known_result is not None:
            return known_result
        if isinstance(other, TensorValue):
            number = self._number(tx)
            left, right = (other, number) if reflected else (number, other)
            return tx.binary(op, left, right)
        known = (ArrayValue, ListValue, TupleValue, SymbolicNumberValue)
        if not isinstance(other, known) and not is_plain_number(other):
            raise graph_break("unknown-operation", f"{op} of an array and {other!r}")
        result = call_numpy(tx, f"operator.{op}", [left, right], {})
        return result if plain_operator(op) == op else self


@final
class FlatValue(SymbolicValue):
    """`array.flat`."""

    __slots__ = ("array",)
    kind = numpy.flatiter

    def __init__(self, array: ArrayValue) -> None:
        super().__init__()
        self.array = array

    def _row(self, tx: Interpreter) -> SymbolicValue:
        return self.array.method(tx, "ravel", [], {})

    def iter(self, tx: Interpreter) -> SymbolicValue:
        return self._row(tx).iter(tx)

    def getitem(self, tx: Interpreter, key: SymbolicValue) -> SymbolicValue:
        return self._row(tx).getitem(tx, key).method(tx, "copy", [], {})

    def setitem(self, tx: Interpreter, key: SymbolicValue, value: SymbolicValue) -> None:
        known = self.array.known
        contiguous = known.flags.c_contiguous if known is not None else (
            self.array.example.is_contiguous())
        if not contiguous:
            raise graph_break("unknown-operation", "item assignment to a flat iterator")
        self._row(tx).setitem(tx, key, value)


def _is_symbolic(tx: Interpreter, key: SymbolicValue) -> bool:
    """Whether a basic index has an int that differs between calls."""
    items = [tx.force(item) for item in key.items] if isinstance(key, TupleValue) else [key]
    varies = [_is_int(item) for item in items]
    return any(varies) and all(
        is_int or isinstance(item, (ConstantValue, SliceValue))
        for item, is_int in zip(items, varies, strict=True))


def _is_int(value: SymbolicValue) -> bool:
    return isinstance(value, SymbolicNumberValue) or (
        isinstance(value, ArrayValue) and value.scalar and value.dtype.kind == "i")


def _plain_index(tx: Interpreter, key: SymbolicValue) -> SymbolicValue:
    """The index with numbers instead of NumPy scalars."""
    if isinstance(key, TupleValue):
        return TupleValue([_plain_index(tx, tx.force(item)) for item in key.items])
    return key.plain_number(tx)


def _is_one(example: torch.Tensor) -> bool:
    return all(is_fixed(n, 1) for n in example.shape)


_OTHER_EFFECTS: Final = frozenset({
    "__dlpack__", "__reduce__", "__reduce_ex__", "__setstate__", "dump", "resize", "setflags",
    "tofile",
})
"""Methods with effects outside, or that count references."""

_CONVERSIONS: Final[dict[str, Any]] = {
    "__index__": operator.index, "__float__": float, "__int__": int,
}
"""Methods that convert scalars, and the functions that call them."""

_UNARY: Final = ("__neg__", "__pos__", "__invert__", "__abs__")
_OPERATORS: Final = {method_name(op): op for op in (*ARITHMETIC, *COMPARISONS, "getitem")}


def is_plain_number(value: SymbolicValue) -> bool:
    """Whether it is a Python or NumPy number."""
    return value.is_constant and isinstance(value.constant(), (int, float, complex, numpy.generic))


def has_symbolic(tx: Interpreter, value: SymbolicValue) -> bool:
    """Whether the value is a symbolic number or a sequence with one, such as a shape."""
    if isinstance(value, (ListValue, TupleValue)):
        return any(has_symbolic(tx, tx.force(item)) for item in value.items)
    return isinstance(value, SymbolicNumberValue)


def is_fixed(size: object, number: int) -> bool:
    """Whether a size is this plain number."""
    return type(size) is int and size == number


def blank_like(example: torch.Tensor, *, scalar: bool = False, writeable: bool = True) -> Any:
    """The form of the array that has this tensor's memory; MISSING if its sizes depend on data."""
    sizes = (*example.shape, *example.stride())
    if any(type(n) is not int and not is_hinted(n) for n in sizes):
        return MISSING
    known = tuple(n if type(n) is int else int(n.node.hint) for n in sizes)
    dtype = calls.numpy_dtype(example.dtype)
    return Blank(known[:example.dim()], known[example.dim():], dtype, scalar, writeable)


# -- arrays from outside --------------------------------------------------------------------------


@wraps(numpy.ndarray)
def _wrap_array(tx: Interpreter, obj: Any, source: Source | None) -> SymbolicValue:
    if source is None:
        return ArrayValue.of_known(obj, memory_of(tx, obj))
    tensor = calls.tensor_of(obj)
    if tensor is None:
        raise graph_break("unknown-value", f"an array of {obj.dtype} that no tensor can stand for")
    tx.guards.add(source, "type_is", numpy.ndarray)
    inner = source.call(calls.tensor_of, f"from_numpy({source.name})")
    value = tx.wrap(tensor, inner)
    assert isinstance(value, TensorValue)
    return ArrayValue(value, source=source, original=obj)


@wraps(numpy.dtype, subclasses=True)
def _wrap_dtype(tx: Interpreter, obj: object, source: Source | None) -> SymbolicValue:
    tx.guards.identity(source, obj)
    return ConstantValue(obj)


@storable
@wraps(numpy.generic, subclasses=True)
def _wrap_scalar(tx: Interpreter, obj: object, source: Source | None) -> SymbolicValue:
    """A NumPy scalar is a constant."""
    if source is not None:
        tx.guards.same_key(source, obj, lambda array: (array.dtype, array.tobytes()))
    return ConstantValue(obj)


# -- tensors and arrays ---------------------------------------------------------------------------


def _item_key(position: SymbolicValue, *more: SymbolicValue) -> SymbolicValue:
    """What `array.item(...)` indexes with."""
    whole = not more and position.python_type() is tuple
    return position if whole else TupleValue([position, *more])


@tensor_method("numpy")
def _tensor_to_array(tx: Interpreter, tensor: TensorValue, *, force: SymbolicValue = FALSE
                     ) -> SymbolicValue:
    example = tensor.example
    if force is not FALSE or example.requires_grad or example.device.type != "cpu":
        raise graph_break("data-dependent-value", "numpy() of this tensor")
    return ArrayValue(tensor)
