"""Constants: immutable objects whose value capture knows.

Place in the pipeline: the most common family: numbers, strings, None, dtypes, devices, enum
members. Python itself evaluates operations on constants; outside ones are guarded by equality or
identity.
"""

from __future__ import annotations

import cmath
import enum
import math
import re
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar, final

import torch

from weft.capture.core.base import MISSING, Args, Kwargs, SymbolicValue
from weft.capture.core.breaks import Signal, graph_break
from weft.capture.core.declared import Declared
from weft.capture.core.operator_names import method_name
from weft.capture.core.registry import wraps
from weft.capture.core.source import Source, describe
from weft.interrupts import surface
from weft.shapes.symnode import UndecidedValue

if TYPE_CHECKING:
    from weft.capture.core.protocols import Emitter, Interpreter

T = TypeVar("T")

_LITERALS: Final = (int, float, str, bool, bytes, complex, type(None), type(Ellipsis))
_LONG: Final = 1_000
"""Bits of the longest numbers that replacements write out."""
NESTED: Final = 100
"""How deep containers may be nested to be copied, well below Python's recursion limit."""

_NUMBERS: Final = (int, float, bool, complex)
_BY_EQUALITY: Final = (int, float, str, bool, bytes, complex, type(None))
_BY_IDENTITY: Final = (torch.dtype, torch.layout, torch.memory_format, type(Ellipsis),
                       type(NotImplemented))


_BOUND: Final = (types.MethodType, types.BuiltinMethodType, types.MethodWrapperType)


@final
class ConstantValue(SymbolicValue):
    """An immutable Python object."""

    __slots__ = ("value",)
    is_constant = True

    def __init__(self, value: Any, source: Source | None = None) -> None:
        super().__init__(source)
        self.value = value

    @property
    def is_nan(self) -> bool:
        """Whether it is a NaN: it equals nothing, so identity counts."""
        return type(self.value) is float and self.value != self.value

    def python_type(self) -> type:
        return type(self.value)

    def constant(self) -> Any:
        return self.value

    def real(self) -> Any:
        return self.value

    def dict_key(self, tx: Interpreter) -> object:
        return tx.identities.key(self, self.value) if self.is_nan else self.value

    def truth(self, tx: Interpreter) -> bool:
        return bool(self.value)

    def length(self, tx: Interpreter) -> int:
        return len(evaluate(tx, lambda: [None] * len(self.value)))

    def getattr(self, tx: Interpreter, name: str) -> SymbolicValue:
        if isinstance(self.value, enum.Enum):
            own: SymbolicValue | None = member_attribute(tx, self, name)
            if own is not None:
                return own
        attribute = evaluate(tx, lambda: getattr(self.value, name))
        if isinstance(attribute, _BOUND):
            return ConstantMethod(self, name)
        if callable(attribute):  # the value of a member of an enumeration
            return tx.wrap_fixed(attribute, name)
        return tx.wrap_new(attribute)

    def method(self, tx: Interpreter, name: str, args: Args, kwargs: Kwargs) -> SymbolicValue:
        if isinstance(self.value, enum.Enum):
            return self.getattr(tx, name).call(tx, args, kwargs)
        return ConstantMethod(self, name).call(tx, args, kwargs)

    def call(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        if isinstance(self.value, enum.Enum) and callable(self.value):
            return self.method(tx, "__call__", args, kwargs)
        return super().call(tx, args, kwargs)

    def getitem(self, tx: Interpreter, key: SymbolicValue) -> SymbolicValue:
        index = plain_value(key)
        if index is not None and issubclass(index.python_type(), int):
            key = index
        obj = python_object(tx, key)
        if obj is MISSING and key.python_type() is slice:
            bounds = [python_object(tx, key.getattr(tx, n)) for n in ("start", "stop", "step")]
            obj = MISSING if MISSING in bounds else slice(*bounds)
        if obj is MISSING:
            return super().getitem(tx, key)
        return tx.wrap_new(evaluate(tx, lambda: self.value[obj]))

    def contains(self, tx: Interpreter, item: SymbolicValue) -> bool:
        obj = python_object(tx, item)
        if obj is MISSING:
            return super().contains(tx, item)
        return evaluate(tx, lambda: obj in self.value)

    def iter(self, tx: Interpreter) -> SymbolicValue:
        items = evaluate(tx, lambda: tuple(self.value))
        iterator: Any = tx.wrap_new(items).iter(tx)
        if type(self.value) in (str, bytes):
            iterator.text = self
        return iterator  # type: ignore[no-any-return]

    def binary(self, tx: Interpreter, op: str, other: SymbolicValue, reflected: bool) -> Any:
        """A number's operators in C see the number that an instance of a subclass is."""
        plain = plain_value(other)
        if reflected or type(self.value) not in _NUMBERS or plain is None or not plain.is_constant:
            return None
        name = method_name(op)
        operation = next((vars(base)[name] for base in type(self.value).__mro__
                          if name in vars(base)), None)
        result = NotImplemented if operation is None else evaluate(
            tx, lambda: operation(self.value, plain.constant()))
        return None if result is NotImplemented else tx.wrap_new(result)

    def proxy(self, tx: Interpreter) -> Any:
        plain = self.fake(tx)
        return plain if type(plain) is not complex or _is_literal(plain) else tx.builder.call(
            complex, (plain.real, plain.imag), {}, plain, tx.stack())

    def fake(self, tx: Interpreter) -> Any:
        if type(self.value).__module__ == "numpy" and hasattr(self.value, "item"):
            plain = self.value.item()
            if isinstance(plain, (bool, complex)) and not isinstance(self.value, complex):
                # some operations read it as a float, others refuse it or take it for what it is
                raise graph_break("unknown-value", f"{self!r} as an argument of a tensor operation")
            return plain  # a NumPy scalar is a number to torch
        if isinstance(self.value, enum.Enum) and isinstance(self.value, (int, float, str)):
            return next(base for base in (int, float, str)  # the graph's code knows no enums
                        if isinstance(self.value, base))(self.value.value)
        if isinstance(self.value, enum.Flag):  # a union of members has no name of its own there
            raise graph_break("unknown-value", f"{self!r} as an argument of a tensor operation")
        return self.value

    def rebuild(self, emit: Emitter) -> str:
        if type(self.value) is float:
            plain = self.value == self.value and abs(self.value) != float("inf")
            return repr(self.value) if plain else emit.constant(self.value)
        if type(self.value) is int and self.value.bit_length() > _LONG:
            return emit.constant(self.value)
        if type(self.value) is str and not _is_interned(self.value):
            return emit.constant(self.value)  # programs ask `is not argparse.SUPPRESS`
        if type(self.value) in _LITERALS and type(self.value) is not complex:
            return repr(self.value)
        return emit.constant(self.value)

    def __repr__(self) -> str:
        return describe(self.value)


def _is_literal(number: complex) -> bool:
    """Whether the text of a complex number evaluates to it: `-0j`, a sum, loses signs."""
    signs = [math.copysign(1.0, part) for part in (number.real, number.imag)]
    return cmath.isfinite(number) and signs[1] > 0 and (signs[0] > 0 or number.real != 0)


def _is_interned(text: str) -> bool:
    """Whether all literals with this text are one object."""
    return text.isascii() and (len(text) < 2 or text.replace("_", "a").isalnum())


METHODS: Final[dict[tuple[type, str], Callable[[Any, ConstantValue], SymbolicValue]]] = {}
"""Methods of constants that have an effect: the rule that is applied instead of running them."""


METHOD_POLYFILLS: Final[dict[tuple[type, str], Callable[..., Any]]] = {}
"""Polyfills of methods of constants, for arguments that are none: `pattern.sub(function, s)`."""


member_attribute: Declared[[Interpreter, ConstantValue, str], SymbolicValue | None] = Declared()
"""A method or property that the program's enum class defines itself, or None."""


list_iterator: Declared[[Interpreter, Any], SymbolicValue] = Declared()
"""An iterator over the constants that a call returned."""


_TAKE_ALL: Final = frozenset({
    (bytes, "join"), (frozenset, "union"), (frozenset, "intersection"),
    (frozenset, "difference"), (frozenset, "issubset"), (frozenset, "issuperset"),
    (frozenset, "isdisjoint"), (frozenset, "symmetric_difference"),
})
"""Methods that consume any iterable."""


@final
class ConstantMethod(SymbolicValue):
    """A method of a constant, such as `"a".join`."""

    __slots__ = ("name", "owner")

    def __init__(self, owner: ConstantValue, name: str) -> None:
        super().__init__()
        self.owner = owner
        self.name = name

    def python_type(self) -> type:
        return type(getattr(self.owner.value, self.name))

    def binary(self, tx: Interpreter, op: str, other: SymbolicValue, reflected: bool) -> Any:
        if op not in ("eq", "ne") or not isinstance(other, ConstantMethod):
            return None
        same = self.name == other.name and tx.same(self.owner, other.owner)
        return boolean(same is (op == "eq"))

    def call(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        own = METHODS.get((type(self.owner.value), self.name))
        if own is not None:
            return own(tx, self.owner)
        if isinstance(self.owner.value, re.Pattern):  # it reads the text only
            args = [plain_value(tx.force(arg)) or arg for arg in args]
        polyfill = METHOD_POLYFILLS.get((type(self.owner.value), self.name))
        if polyfill is not None and not all(a.is_constant for a in (*args, *kwargs.values())):
            return tx.wrap_fixed(polyfill, self.name).call(tx, [self.owner, *args], kwargs)
        known = known_arguments(tx, args, kwargs, self._object)
        if known is None:
            raise graph_break("unknown-operation", f"{self.owner!r}.{self.name} on {args!r}")
        result = evaluate(tx, lambda: getattr(self.owner.value, self.name)(*known[0], **known[1]))
        if hasattr(type(result), "__next__"):  # `pattern.finditer(text)`: always a new iterator
            return list_iterator(tx, result)
        return tx.wrap_new(result)

    def _object(self, tx: Interpreter, value: SymbolicValue) -> object:
        """The Python object of an argument; for an iterator, a copy of its items."""
        obj = python_object(tx, value)
        if obj is not MISSING or (type(self.owner.value), self.name) not in _TAKE_ALL:
            return obj
        items = [python_object(tx, item) for item in tx.force(value).iterate(tx)]
        return MISSING if any(item is MISSING for item in items) else items

    def rebuild(self, emit: Emitter) -> str:
        # The same object in each call, for the guards of a continuation that is given it.
        return emit.constant(getattr(self.owner.value, self.name))


def evaluate(tx: Interpreter, thunk: Callable[[], T]) -> T:
    """Run Python code on constants; an exception becomes the program's."""
    try:
        return thunk()
    except Signal:
        raise
    except UndecidedValue as error:
        raise graph_break("data-dependent-value", str(error)) from error
    except Exception as error:  # noqa: BLE001  the program gets it
        surface(error)
        raised = tx.error(type(error), *filter(_is_plain, error.args))
        for name, obj in getattr(error, "__dict__", {}).items():
            if not _is_plain(obj):
                raise graph_break("unknown-value", f"{name} of a {type(error).__name__}") from None
            raised.value.attributes.setitem(tx, constant(name), tx.wrap_new(obj))
        raise raised from None


def _is_plain(obj: Any) -> bool:
    """Whether an exception's argument can be made a value."""
    return isinstance(obj, (*_LITERALS, type)) or (
        type(obj) in (tuple, list) and all(map(_is_plain, obj)))


def python_object(tx: Interpreter, value: SymbolicValue) -> Any:
    """A copy of the Python object that a value of constants stands for, or `MISSING`."""
    value = tx.force(value)
    if value.is_constant:
        return value.constant()
    if value in tx.copying or len(tx.copying) > NESTED:
        return MISSING
    tx.copying.append(value)
    try:
        return value.copied(tx)
    finally:
        tx.copying.pop()


def known_arguments(
    tx: Interpreter, args: Sequence[SymbolicValue], kwargs: Kwargs,
    known: Callable[[Interpreter, SymbolicValue], object] = python_object,
) -> tuple[list[object], dict[str, object]] | None:
    """The objects that `known` finds for the arguments, or None if it finds `MISSING` for one."""
    objects = [known(tx, arg) for arg in args]
    named = {name: known(tx, arg) for name, arg in kwargs.items()}
    return None if any(o is MISSING for o in (*objects, *named.values())) else (objects, named)


def known_objects(
    tx: Interpreter, args: Sequence[SymbolicValue], function: Any,
    known: Callable[[Interpreter, SymbolicValue], object] = python_object,
) -> list[object]:
    """The objects that `known` finds for the arguments of a function that changes the state of the
    process; breaks the graph if it finds `MISSING` for one."""
    objects = [known(tx, arg) for arg in args]
    if any(o is MISSING for o in objects):
        raise graph_break("state", f"{function.__name__} of values that are no constants")
    return objects


def evaluate_call(tx: Interpreter, function: Any, args: Sequence[SymbolicValue], kwargs: Kwargs
                  ) -> object:
    """The result of Python's own call of a function, or `MISSING` if an argument is not known."""
    known = known_arguments(tx, args, kwargs)
    return MISSING if known is None else evaluate(tx, lambda: function(*known[0], **known[1]))


PLAIN: Final = (str, int, float, bytes, tuple)
"""Types whose instances are values: their methods, and C functions, see nothing else of them."""


def plain_value(value: SymbolicValue) -> SymbolicValue | None:
    """The number, text or tuple that an instance of a subclass of these types is, else None."""
    plain = value.underlying()
    return plain if plain is not value and issubclass(value.python_type(), PLAIN) else None


def constant(value: object) -> ConstantValue:
    """A constant without a source."""
    return ConstantValue(value)


NONE: Final = ConstantValue(None)
TRUE: Final = ConstantValue(True)
FALSE: Final = ConstantValue(False)
ZERO: Final = ConstantValue(0)
ONE: Final = ConstantValue(1)
NOT_IMPLEMENTED: Final = ConstantValue(NotImplemented)


def is_none(value: SymbolicValue) -> bool:
    """`value is None`."""
    return value is NONE or (value.is_constant and value.constant() is None)


def boolean(value: object) -> ConstantValue:
    """True or False."""
    return TRUE if value else FALSE


@wraps(*_BY_EQUALITY)
def _wrap_number(tx: Interpreter, obj: object, source: Source | None) -> SymbolicValue:
    symbolic = tx.wrap_symbolic_number(obj, source)
    if symbolic is not None:
        return symbolic
    if source is not None:
        tx.guards.add(source, "eq", obj)
    if obj == obj:
        return ConstantValue(obj)
    value = ConstantValue(obj, source)  # NaN equals nothing: which one it is may matter
    tx.outside.remember(obj, value)
    return value


@wraps(*_BY_IDENTITY)
@wraps(enum.Enum, subclasses=True)
def _wrap_identity(tx: Interpreter, obj: object, source: Source | None) -> SymbolicValue:
    if source is not None:
        tx.guards.add(source, "is", obj)
    return ConstantValue(obj)


@wraps(torch.device, torch.finfo, torch.iinfo, torch.nn.attention.SDPBackend)
def _wrap_equal(tx: Interpreter, obj: object, source: Source | None) -> SymbolicValue:
    if source is not None:
        tx.guards.same_key(source, obj)
    return ConstantValue(obj)
