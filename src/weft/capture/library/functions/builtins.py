"""C functions: builtins, methods of C types, torch functions.

Place in the pipeline: a value family. A C function either has a rule, or is a graph
operation, or is pure and run on constants; otherwise it breaks the graph.
"""

from __future__ import annotations

import re
import types
from collections import OrderedDict, deque
from typing import TYPE_CHECKING, Any, Final, final

import torch

from weft._torch import (
    InstanceMethod,
    cond_operator,
    flex_attention_operator,
    while_loop_operator,
)
from weft.capture.core.base import MISSING, Args, Kwargs, SymbolicValue
from weft.capture.core.breaks import GraphBreak, graph_break
from weft.capture.core.constant import (
    ConstantValue,
    constant,
    evaluate,
    evaluate_call,
    plain_value,
    python_object,
)
from weft.capture.core.declared import Declared
from weft.capture.core.methods import ContainerMethods
from weft.capture.core.operator_names import COMPARISONS, OPERATOR_METHODS
from weft.capture.core.registry import wraps
from weft.capture.core.rules import Rule, rules
from weft.capture.core.source import Source
from weft.capture.library.classes.attributes import type_lookup
from weft.capture.library.classes.unknown import is_plain_method
from weft.capture.library.functions.functions import rule_of
from weft.capture.library.numbers.math_functions import converts, math_of_number
from weft.capture.library.numbers.symbolic_numbers import SymbolicNumberValue
from weft.capture.library.tensors.tensor import TensorValue, record
from weft.capture.library.tensors.torch_names import is_graph_function, is_operator, is_pure
from weft.torch_marks import is_disallowed, substitute

if TYPE_CHECKING:
    from weft.capture.core.protocols import Emitter, Interpreter

_WITH_METHODS: Final = (TensorValue, ConstantValue, SymbolicNumberValue)
_SLOTS: Final = (types.GetSetDescriptorType, types.MemberDescriptorType)
_PLAIN_READS: Final = (object.__getattribute__, type.__getattribute__)
_KINDS: Final = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
                 types.MethodWrapperType, types.ClassMethodDescriptorType,
                 types.GetSetDescriptorType, types.MemberDescriptorType,
                 type(re.compile("").match))


call_operator: Declared[[Interpreter, Any, Args, Kwargs], SymbolicValue] = Declared()
"""The result of an operator of torch's dispatcher."""


@final
class BuiltinValue(SymbolicValue):
    """A function written in C, or a torch function that is treated like one."""

    __slots__ = ("function",)

    def __init__(self, function: Any, source: Source | None = None) -> None:
        super().__init__(source)
        self.function = function

    def python_type(self) -> type:
        return type(self.function)

    def real(self) -> Any:
        return self.function

    def dict_key(self, tx: Interpreter) -> object:
        return self.function

    def __repr__(self) -> str:
        return getattr(self.function, "__qualname__", None) or repr(self.function)

    def proxy(self, tx: Interpreter) -> Any:
        return self.function

    def fake(self, tx: Interpreter) -> Any:
        return self.function

    def getattr(self, tx: Interpreter, name: str) -> SymbolicValue:
        attribute = evaluate(tx, lambda: getattr(self.function, name))
        if name == "__self__":
            return tx.wrap_fixed(attribute, repr(self))
        return tx.wrap_fixed(attribute, f"{self!r}.{name}")

    def binary(self, tx: Interpreter, op: str, other: SymbolicValue, reflected: bool) -> Any:
        if op not in ("eq", "ne") or not isinstance(other, BuiltinValue):
            return None
        return constant((self.function == other.function) is (op == "eq"))  # methods: of the same

    def call(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        args = [tx.force(arg) for arg in args]
        if is_disallowed(self.function):
            raise graph_break("user", f"{self!r}, which is not allowed in graphs")
        own = rule_of(self.function)
        if own is not None:
            return self._by_rule(own, tx, args, kwargs)
        if is_operator(self.function):
            return call_operator(tx, self.function, args, kwargs)
        if is_graph_function(self.function):
            return record(tx, self.function, args, kwargs)
        descriptor = self._read_by_descriptor(args)
        if descriptor is not None:
            return _read(tx, args[0], descriptor)
        owner = getattr(self.function, "__objclass__", None)
        if owner is not None and isinstance(self.function, types.MethodWrapperType):
            args = [tx.wrap_fixed(self.function.__self__, repr(self)), *args]
        if owner is not None and args:
            return self._method_of_type(tx, owner, args, kwargs)
        bound = getattr(self.function, "__self__", None)
        if bound is not None and not isinstance(bound, (types.ModuleType, type)) and not (
                type(bound).__name__.startswith(("pybind11", "PyCapsule"))):
            return self._method_of_object(tx, tx.wrap_fixed(bound, repr(self)), args, kwargs)
        return self._on_constants(tx, args, kwargs)

    def _read_by_descriptor(self, args: Args) -> object:
        """The C descriptor whose `__get__` this call is, as `inspect` makes such calls, if reading
        the attribute is the same, or the object has no such attribute."""
        descriptor = getattr(self.function, "__self__", None)
        if (not isinstance(self.function, types.MethodWrapperType) or not args
                or self.function.__name__ != "__get__" or not isinstance(descriptor, _SLOTS)):
            return None
        kind = args[0].python_type()
        if not issubclass(kind, descriptor.__objclass__):
            return None if kind is types.NoneType and len(args) > 1 else descriptor
        plain = type_lookup(kind, "__getattribute__") in _PLAIN_READS
        attribute = type_lookup(kind, descriptor.__name__) if plain else None
        return descriptor if attribute is descriptor else None

    def _method_of_object(self, tx: Interpreter, value: SymbolicValue, args: Args, kwargs: Kwargs
                          ) -> SymbolicValue:
        """A call of a bound method that was stored in a variable: `get = d.get; get(k)`."""
        name = self.function.__name__
        special = EXTERNAL_METHODS.get((value.python_type(), name))
        if special is not None:
            return special.call((tx,), [value, *args], kwargs)
        if type(value).method is not SymbolicValue.method:
            return value.method(tx, name, args, kwargs)
        method = None if isinstance(value, BuiltinValue) else value.getattr(tx, name)
        if method is None or isinstance(method, BuiltinValue):  # that would recurse
            raise graph_break("unknown-c-function", f"{name} of {value!r}")
        return method.call(tx, args, kwargs)

    def _method_of_type(self, tx: Interpreter, owner: type, args: Args, kwargs: Kwargs
                        ) -> SymbolicValue:
        """A call of a method through its class: `dict.get(d, k)`."""
        name = self.function.__name__
        target = args[0]
        if owner is object and name in OBJECT_METHODS:
            return OBJECT_METHODS[name].call((tx,), args, kwargs)
        if owner is dict and name in _CHANGES and issubclass(target.python_type(), OrderedDict):
            raise graph_break("unknown-operation", f"dict.{name} of an OrderedDict")
        if owner is tuple and name in vars(torch.Size) and any(
                arg.python_type() is torch.Size for arg in args):  # it has another one
            raise graph_break("unknown-operation", f"tuple.{name} of a torch.Size")
        result = operator_of_base(tx, owner, name, args)
        if result is not None:
            return result
        contents = target.underlying()
        if contents is not target and owner is not object and issubclass(
                contents.python_type(), owner):
            python = method_of_subclass(tx, owner, name, target.python_type())
            if python is not None:
                return python.call(tx, args, kwargs)
            if name == "__getitem__" and issubclass(owner, dict) and len(args) == 2:
                return target.missing_key(tx, args[1])  # type: ignore[attr-defined, no-any-return]
            if name in OPERATOR_METHODS and len(args) == 2 and isinstance(
                    contents, ContainerMethods):
                return contents.operator(tx, name, args[1], target)
            return contents.method(tx, name, args[1:], kwargs)
        if isinstance(target, ConstantValue) and type(target.value) is not owner:
            return self._on_constants(tx, args, kwargs)
        if isinstance(target, _WITH_METHODS) or hasattr(target, f"m_{name}"):
            return target.method(tx, name, args[1:], kwargs)
        special = EXTERNAL_METHODS.get((owner, name))
        if special is not None:
            return special.call((tx,), args, kwargs)
        raise graph_break("unknown-c-function", f"{owner.__name__}.{name} on {target!r}")

    def _by_rule(self, own: Rule, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        try:
            return own.call((tx,), args, kwargs)
        except (IndexError, TypeError, KeyError) as error:
            detail = f"{self!r} with {len(args)} arguments: {error}"
            raise graph_break("unknown-c-function", detail) from error

    def _on_constants(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        if converts(self.function):
            args = [arg.plain_number(tx) for arg in args]
        number = math_of_number(tx, self.function, args, kwargs)
        if number is not None:
            return number
        if not is_pure(self.function):
            polyfill = substitute(self.function)
            if polyfill is not None:
                return tx.wrap_fixed(polyfill, repr(self)).call(tx, args, kwargs)
            raise graph_break("unknown-c-function", f"a call of {self!r}")
        if self.function.__name__ == "__new__" and args and (
                python_object(tx, args[0]) is not self.function.__self__):
            raise graph_break("unknown-c-function", f"{self!r} of a class of the program")
        result = evaluate_call(tx, self.function, args, kwargs)
        if result is MISSING:
            raise graph_break("unknown-c-function", f"{self!r} on values that are not constants")
        return tx.wrap_new(result)

    def rebuild(self, emit: Emitter) -> str:
        return emit.constant(self.function)


def operator_of_base(tx: Interpreter, owner: type, name: str, args: Args) -> SymbolicValue | None:
    """`float.__add__(a, b)`, which looks at the plain values only; None if it is another method."""
    op, reflected = OPERATOR_METHODS.get(name, ("", False))
    if not op or len(args) != 2 or owner not in _OPERANDS:
        return None
    left, right = (plain_value(arg) or arg for arg in args)
    repeats = op == "mul" and owner in _SEQUENCES
    if left.python_type() is not owner or (op not in (*COMPARISONS, "add", "mul")
                                           and owner in _SEQUENCES):
        return None
    if not issubclass(right.python_type(), int if repeats else _OPERANDS[owner]):
        refuses = owner in _SEQUENCES and op not in COMPARISONS  # raises an error
        return None if refuses else constant(NotImplemented)
    return tx.binary(op, right, left) if reflected else tx.binary(op, left, right)


_SEQUENCES: Final = (str, bytes, tuple)
_OPERANDS: Final[dict[type, Any]] = {
    int: int, float: (int, float), str: str, bytes: bytes, tuple: tuple}
"""What the operators of a type take on their other side."""

_OWNERS: Final = (list, dict, set, deque, torch.Tensor, torch.nn.Parameter)
"""Types whose bound methods are wrapped as such."""

_CHANGES: Final = frozenset({"__delitem__", "__setitem__", "clear", "pop", "popitem", "setdefault",
                             "update"})
"""Methods of dict that bypass an OrderedDict's order."""

OBJECT_METHODS: dict[str, Rule] = {}
"""The rules of the methods of `object`, which take it first, by name."""

object_method = rules(OBJECT_METHODS)

EXTERNAL_METHODS: dict[tuple[type, str], Rule] = {}
"""The same of methods of other C types, by type and name."""

method_rule = rules(EXTERNAL_METHODS)


def is_ruled_class_method(attribute: object) -> bool:
    """Whether what a class defines is a class method in C with a rule, which gets the class."""
    return isinstance(attribute, types.ClassMethodDescriptorType) and (
        rule_of(attribute) is not None
        or (attribute.__objclass__, attribute.__name__) in EXTERNAL_METHODS)


SUBCLASS_METHODS: dict[tuple[type, str], tuple[Any, tuple[str, ...]]] = {}
"""C methods that call other methods of the object, which a subclass may override: (type, name) ->
their Python form, and the names of these methods. C's method is called if the subclass overrides
none of them; the Python form is always interpreted if no name is given."""


def method_of_subclass(
    tx: Interpreter, owner: type, name: str, cls: type
) -> SymbolicValue | None:
    """The Python form of `owner.name` for instances of a subclass whose methods it calls."""
    python, asked = SUBCLASS_METHODS.get((owner, name), (None, ()))
    if python is None or cls is owner:
        return None
    if asked and not any(isinstance(type_lookup(cls, a), types.FunctionType) for a in asked):
        return None
    return tx.wrap_fixed(python, name)


def _read(tx: Interpreter, value: SymbolicValue, descriptor: Any) -> SymbolicValue:
    """The attribute of a C descriptor, or Python's error for an object of another type."""
    name, owner, kind = descriptor.__name__, descriptor.__objclass__, value.python_type()
    if issubclass(kind, owner):
        return value.getattr(tx, name)
    if kind is types.NoneType:
        raise tx.error(TypeError, "__get__(None, None) is invalid")
    raise tx.error(TypeError, f"descriptor '{name}' for '{owner.__name__}' objects doesn't apply "
                   f"to a '{kind.__name__}' object")


@wraps(*_KINDS)
def wrap_builtin(tx: Interpreter, obj: Any, source: Source | None) -> SymbolicValue:
    """A C function from outside, guarded by identity.

    Bound methods are new objects each time (`items.append`): the owner and the method are guarded.
    """
    if source is None or source.is_fixed:
        if _is_ruled_bound(obj):
            owner = tx.wrap_fixed(obj.__self__, obj.__self__.__name__)
            return owner.getattr(tx, obj.__name__)
    else:
        method = _bound_method(tx, obj, source)
        if method is not None:
            return method
        tx.guards.add(source, "is", obj)
    return BuiltinValue(obj, source)


def _is_ruled_bound(method: Any) -> bool:
    """Whether this is `Class.method` of a class method in C with a rule, as the class has it."""
    owner: Any = getattr(method, "__self__", None)
    return (issubclass(type(owner), type) and rule_of(method) is None
            and is_ruled_class_method(type_lookup(owner, method.__name__))
            and getattr(owner, method.__name__) == method)


def _bound_method(tx: Interpreter, obj: Any, source: Source) -> SymbolicValue | None:
    owner = getattr(obj, "__self__", MISSING)
    if owner is MISSING:  # a method of a class, not bound
        return None
    known = _is_ruled_bound(obj) or (
        type(owner) in _OWNERS and getattr(owner, obj.__name__, None) == obj)
    if not known and (issubclass(type(owner), type) or not is_plain_method(owner, obj.__name__)):
        return None
    tx.guards.add(source, "type_is", type(obj))
    tx.guards.add(source.attribute("__name__"), "eq", obj.__name__)
    tx.guards.add(source.attribute("__self__"), "type_is", type(owner))
    try:
        return tx.wrap(owner, source.attribute("__self__")).getattr(tx, obj.__name__)
    except GraphBreak:  # the call breaks, not what reads the method
        return None


@wraps(InstanceMethod)
def _wrap_instance_method(tx: Interpreter, obj: Any, source: Source | None) -> SymbolicValue:
    """A method of a C++ class, read from the class: what it holds is called."""
    return tx.wrap(obj.__func__, source.attribute("__func__") if source is not None else None)


@wraps(type(torch.ops.aten.add), type(torch.ops.aten.add.Tensor), type(cond_operator),
       type(while_loop_operator), type(flex_attention_operator))
def _wrap_operator(tx: Interpreter, obj: object, source: Source | None) -> SymbolicValue:
    return wrap_builtin(tx, obj, source)
