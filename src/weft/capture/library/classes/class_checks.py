"""Rules for `isinstance` and `issubclass`, including abstract classes and protocols.

Place in the pipeline: see `weft.capture.library`. The type of a value is known; a metaclass that
looks at the instance (of protocols, or the program's own) is interpreted.
"""

from __future__ import annotations

import _abc  # type: ignore[import-not-found]
import abc
import types
import typing
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, final

from weft._torch import FakeTensor
from weft.capture.core.base import MISSING, SymbolicValue, is_heap_type
from weft.capture.core.breaks import graph_break
from weft.capture.core.constant import boolean, evaluate, python_object
from weft.capture.core.source import is_library
from weft.capture.library.classes.attributes import type_lookup
from weft.capture.library.classes.classes import decides_on_subclasses
from weft.capture.library.functions.builtins import method_rule
from weft.capture.library.functions.functions import rule
from weft.capture.library.tensors.tensor import TensorValue, own_class

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter


def classes_of(tx: Interpreter, value: SymbolicValue) -> object:
    """The second argument of isinstance, as Python objects."""
    obj = python_object(tx, value)
    if obj is MISSING:
        raise graph_break("unknown-operation", f"isinstance with {value!r}")
    for cls in obj if isinstance(obj, tuple) else (obj,):
        if tx.classes.made and isinstance(cls, type) and cls in tx.classes.made and (
                decides_on_subclasses(cls)):
            raise graph_break("unknown-operation", f"subclasses of {value!r}, which it names")
    return obj


@rule(isinstance)
def _isinstance(tx: Interpreter, value: SymbolicValue, wanted: SymbolicValue, /) -> SymbolicValue:
    classes = classes_of(tx, wanted)
    return boolean(evaluate(tx, lambda: _is_instance(tx, value, classes)))


def _is_instance(tx: Interpreter, value: SymbolicValue, classes: Any) -> bool:
    if isinstance(classes, tuple):
        return any(_is_instance(tx, value, cls) for cls in classes)
    if isinstance(classes, types.UnionType):
        return any(_is_instance(tx, value, cls) for cls in classes.__args__)
    kind = value.python_type()
    if _hides_class(kind) and not issubclass(kind, classes):
        raise graph_break("unknown-operation", f"isinstance of {value!r}, which names its class")
    checker = type_lookup(type(classes), "__instancecheck__")
    if getattr(checker, "__module__", "") not in _CHECK_CLASSES:
        return kind is classes or _asks_metaclass(tx, checker, classes, value)
    _rely_on_registry(tx, kind, classes)
    real = MISSING if classes is FakeTensor else _object(value)  # as capture's examples are
    return issubclass(kind, classes) if real is MISSING else isinstance(real, classes)


@final
class _Registered:
    """Whether a class is a subclass of an abstract one, as it was; asked again only when classes
    have been registered since."""

    def __init__(self, kind: type, answer: bool) -> None:
        self._kind = weakref.ref(kind)
        self._answer = answer
        self._token: object = abc.get_cache_token()

    def remade(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """As it is made in another process, which has registered other classes."""
        return registered_later, (self._kind(), self._answer)

    def forget(self) -> None:
        """Ask again at the next call."""
        self._token = None

    def __call__(self, abstract: type) -> bool:
        token, kind = abc.get_cache_token(), self._kind()
        if token != self._token and kind is not None:
            if issubclass(kind, abstract) is not self._answer:
                return False
            self._token = token
        return True


def registered_later(kind: type, answer: bool) -> _Registered:
    """The answer of another process, to be asked for first."""
    registered = _Registered(kind, answer)
    registered.forget()
    return registered


def _rely_on_registry(tx: Interpreter, kind: type, classes: type) -> None:
    """Guard that a class of the program stays a subclass of an abstract one or becomes none:
    `register` changes neither of them."""
    if not issubclass(type(classes), abc.ABCMeta) or kind in tx.classes.made or (
            classes in tx.classes.made or not is_heap_type(kind)
            or all(is_library(cls.__module__) for cls in (kind, classes))):
        return
    tx.guards.add(tx.tree.object(classes, classes.__qualname__), "py",
                  _Registered(kind, issubclass(kind, classes)))


def _object(value: SymbolicValue) -> object:
    """An object that `isinstance` can be called with instead of the program's."""
    if isinstance(value, TensorValue) and value.original is MISSING:
        return MISSING if own_class(value) else value.example
    return value.constant() if value.is_constant else value.real()


def _asks_metaclass(tx: Interpreter, checker: object, cls: type, value: SymbolicValue) -> bool:
    """The answer of a metaclass written in Python, which may look at the instance."""
    if not isinstance(checker, types.FunctionType):
        raise graph_break("unknown-operation", f"a check of {value!r} and {cls!r}")
    function, of = tx.wrap_fixed(checker, checker.__qualname__), tx.wrap_fixed(cls, cls.__name__)
    return function.call(tx, [of, value], {}).truth(tx)


_CHECK_CLASSES: Final = frozenset({"", None, "abc", "builtins", "torch.nn.parameter", "torch",
                                   "torch._opaque_base", "torch._custom_class_base"})
"""Modules of classes whose `__instancecheck__` looks at the class alone."""


@method_rule((type, "__instancecheck__"))
def _plain_check(tx: Interpreter, cls: SymbolicValue, instance: SymbolicValue, /
                 ) -> SymbolicValue:
    """`type.__instancecheck__`, called through `super()` in a metaclass."""
    kind = instance.python_type()
    if _hides_class(kind):
        raise graph_break("unknown-operation", f"isinstance of {instance!r}, which names its class")
    return boolean(cls.constant() in kind.__mro__)


@method_rule((type, "__subclasscheck__"))
def _plain_subclass_check(tx: Interpreter, cls: SymbolicValue, subclass: SymbolicValue, /
                          ) -> SymbolicValue:
    """`type.__subclasscheck__`, called through `super()` in a metaclass."""
    return boolean(evaluate(
        tx, lambda: type.__subclasscheck__(cls.constant(), subclass.constant())))


def _hides_class(kind: type) -> bool:
    """Whether the class overrides `__class__` of its instances."""
    own = type_lookup(kind, "__getattribute__")
    return (isinstance(own, types.FunctionType)
            or type_lookup(kind, "__class__") is not vars(object)["__class__"])


@rule(issubclass)
def _issubclass(tx: Interpreter, value: SymbolicValue, wanted: SymbolicValue, /) -> SymbolicValue:
    if not value.is_constant:
        kind = value.python_type()
        if any(type_lookup(kind, name) is not MISSING for name in ("__bases__", "__getattr__")):
            raise graph_break("unknown-operation", f"issubclass of {value!r}, which has bases")
        raise tx.error(TypeError, "issubclass() arg 1 must be a class")
    classes = classes_of(tx, wanted)
    return boolean(evaluate(tx, lambda: _is_subclass(tx, value, classes)))


def _is_subclass(tx: Interpreter, value: SymbolicValue, classes: Any) -> bool:
    if isinstance(classes, tuple):
        return any(_is_subclass(tx, value, cls) for cls in classes)
    checker = type_lookup(type(classes), "__subclasscheck__")
    if getattr(checker, "__module__", "") not in (*_CHECK_CLASSES, "typing"):
        return _asks_metaclass(tx, checker, classes, value)
    _rely_on_registry(tx, value.constant(), classes)
    return issubclass(value.constant(), classes)


@rule(_abc._abc_instancecheck)
def _abstract_instance_check(tx: Interpreter, owner: SymbolicValue, instance: SymbolicValue, /
                             ) -> SymbolicValue:
    cls, kind = owner.constant(), instance.python_type()
    return boolean(evaluate(tx, lambda: _called_from_abc(type(cls).__subclasscheck__, cls, kind)))


_called_from_abc: Final = types.FunctionType(
    (lambda function, *args: function(*args)).__code__, {"__name__": "abc"})
"""Protocols with data refuse subclass checks but those of the module abc, which they look for on
the stack."""


if hasattr(typing, "_get_protocol_attrs"):
    @rule(typing._get_protocol_attrs)
    def _protocol_attributes(tx: Interpreter, protocol: SymbolicValue, /) -> SymbolicValue:
        cls = protocol.constant()
        if cls in tx.classes.made:
            raise graph_break("unknown-operation", "a protocol made inside")
        return tx.wrap_new(typing._get_protocol_attrs(cls))  # type: ignore[attr-defined]
