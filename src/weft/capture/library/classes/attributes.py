"""Attribute access by Python's own rules: classes, descriptors, instance dictionaries.

Place in the pipeline: under `objects`, `classes` and `modules`. `type_lookup` finds what a class
defines; `bind` does what `__get__` would do.
"""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, final

from weft._frame import CompiledFunction
from weft._torch import InstanceMethod
from weft.capture.bytecode.tables import TABLE
from weft.capture.core.base import MISSING, SymbolicValue, is_heap_type
from weft.capture.core.breaks import ObservedException, graph_break
from weft.capture.core.constant import ConstantValue, constant, member_attribute
from weft.capture.core.declared import Declared
from weft.capture.guards.class_guards import ATTRIBUTES, BASES, defined, note_lookup
from weft.capture.library.functions.functions import BoundMethodValue
from weft.quoting import assignment
from weft.registrar import registrar

if TYPE_CHECKING:
    from weft.capture.core.protocols import Emitter, Interpreter


_SLOT_TYPES = (types.MemberDescriptorType, types.GetSetDescriptorType)

C_METHODS = (types.WrapperDescriptorType, types.MethodDescriptorType,
             types.ClassMethodDescriptorType)


def type_lookup(cls: type, name: str) -> Any:
    """What the class or one of its bases defines as `name`, unbound, or MISSING; guarded."""
    if BASES(cls) is None:
        raise graph_break("unknown-value", "a class that is being made")
    owner, attribute = defined(cls, name)
    note_lookup(cls, name, owner, attribute)
    return attribute


def gives_length(value: SymbolicValue) -> bool:
    """Whether the number of items comes from a `__len__` or `__length_hint__` written in Python."""
    methods = (type_lookup(value.python_type(), name) for name in ("__len__", "__length_hint__"))
    return any(isinstance(method, types.FunctionType) for method in methods)


def is_iterable(tx: Interpreter, value: SymbolicValue) -> bool:
    """Whether the value's class supports `iter(value)`."""
    kind = tx.force(value).python_type()
    return any(type_lookup(kind, name) is not MISSING for name in ("__iter__", "__getitem__"))


def is_data_descriptor(attribute: object) -> bool:
    """Whether the descriptor takes precedence over the instance dictionary."""
    return any(type_lookup(type(attribute), name) is not MISSING
               for name in ("__set__", "__delete__"))


def is_read_first(attribute: object) -> bool:
    """Whether reading asks the descriptor before the instance dictionary: one that only sets or
    deletes is not asked."""
    return (is_data_descriptor(attribute)
            and type_lookup(type(attribute), "__get__") is not MISSING)


def guard_inherited(tx: Interpreter, cls: type, name: str) -> None:
    """Guard what a class made inside inherits under `name`. (Lookups in others are guarded by
    `type_lookup`.)"""
    if cls not in tx.classes.made:
        return
    for base in BASES(cls):
        own = ATTRIBUTES(base).get(name, MISSING)
        if base not in tx.classes.made:
            type_lookup(base, name)
        if own is not MISSING:
            return


def class_value(tx: Interpreter, cls: type, name: str, attribute: object) -> SymbolicValue:
    """The value of a class attribute that is not a descriptor; data is guarded, code is not."""
    if isinstance(attribute, (types.FunctionType, type)):
        return tx.wrap_fixed(attribute, f"{cls.__name__}.{name}")
    owner = next(base for base in cls.__mro__ if name in ATTRIBUTES(base))
    if owner in tx.classes.made:
        return tx.wrap(attribute, None)
    if not is_heap_type(owner):  # a C type, which cannot be changed
        return tx.wrap_fixed(attribute, f"{cls.__name__}.{name}")
    source = tx.tree.object(owner, owner.__qualname__).instance_dict().dict_item(name)
    return tx.wrap(attribute, source)


@final
class ClassAttributes:
    """The attributes that the program set on one class."""

    source = None

    def __init__(self, cls: type) -> None:
        self.cls = cls
        self.values: dict[str, SymbolicValue] = {}

    def replay(self, emit: Emitter) -> None:
        target = emit.constant(self.cls)
        for name, value in self.values.items():
            emit.line(assignment(target, name, emit.value(value)))


def write_class_attribute(tx: Interpreter, cls: type, name: str, value: SymbolicValue) -> None:
    """`cls.name = value`, where the attribute is data before and after: nothing else depends on
    it."""
    if cls in tx.classes.made:
        set_made_attribute(tx, cls, name, value)
        return
    old = type_lookup(cls, name)
    immutable = not is_heap_type(cls) or cls.__flags__ & _IMMUTABLE_TYPE
    if immutable or name.startswith("__") or hasattr(type(old), "__get__") or hasattr(
            value.python_type(), "__get__"):
        raise graph_break("unknown-operation", f"setting attribute {name!r} of {cls.__name__}")
    written = tx.classes.attributes.get(cls)
    if written is None:
        written = tx.classes.attributes[cls] = ClassAttributes(cls)
    written.values[name] = value
    tx.effects.touch(written)


set_made_attribute: Declared[[Interpreter, Any, str, SymbolicValue], None] = Declared()
"""`made.name = value` of a class made inside."""

_IMMUTABLE_TYPE: Final = 1 << 8


def written_attribute(tx: Interpreter, cls: type, name: str) -> SymbolicValue | None:
    """The attribute as the program wrote it, unless a class earlier in the MRO defines it."""
    if not tx.classes.attributes:
        return None
    for base in cls.__mro__:
        written = tx.classes.attributes.get(base)
        if written is not None and name in written.values:
            value: SymbolicValue = written.values[name]
            return value
        if name in base.__dict__:
            return None
    return None


Binder = Callable[["Interpreter", SymbolicValue, type, str, Any], SymbolicValue]

BINDERS: dict[type, Binder] = {}
"""How descriptors of each type bind to (value, class)."""

binder = registrar(BINDERS)
"""Register how descriptors of these types bind."""


def bind(tx: Interpreter, owner: SymbolicValue, cls: type, name: str, attribute: object
         ) -> SymbolicValue:
    """`owner.name`, where the class defines it as `attribute`: what its `__get__` returns."""
    guard_inherited(tx, cls, name)
    getter = type_lookup(type(attribute), "__get__")
    kind = property if getter is property.__get__ else type(attribute)  # also for subclasses
    bound = BINDERS.get(kind)
    if bound is not None:
        return bound(tx, owner, cls, name, attribute)
    if getter is MISSING:
        return class_value(tx, cls, name, attribute)
    if isinstance(getter, types.FunctionType):
        descriptor = class_value(tx, cls, name, attribute)
        function = tx.wrap_fixed(getter, getter.__qualname__)
        return function.call(tx, [descriptor, owner, tx.wrap_fixed(cls, cls.__name__)], {})
    raise graph_break("unknown-operation", f"the descriptor {cls.__name__}.{name}")


@binder(types.FunctionType, functools._lru_cache_wrapper, CompiledFunction)
def _bind_function(tx: Interpreter, owner: SymbolicValue, cls: type, name: str, attribute: Any
                   ) -> SymbolicValue:
    return BoundMethodValue(owner, tx.wrap_fixed(attribute, attribute.__qualname__))


@binder(staticmethod)
def _bind_static(tx: Interpreter, owner: SymbolicValue, cls: type, name: str, attribute: Any
                 ) -> SymbolicValue:
    return tx.wrap_fixed(attribute.__func__, f"{cls.__name__}.{name}")


@binder(classmethod)
def _bind_class_method(tx: Interpreter, owner: SymbolicValue, cls: type, name: str,
                       attribute: object
                       ) -> SymbolicValue:
    return bound_class_method(tx, tx.wrap_fixed(cls, cls.__name__), attribute, name)


def bound_class_method(tx: Interpreter, owner: SymbolicValue, attribute: Any, name: str
                       ) -> SymbolicValue:
    """What a `classmethod` gives for the class `owner`; up to Python 3.12 it binds what it
    wraps."""
    inner = attribute.__func__
    function = tx.wrap_fixed(inner, name)
    getter = type_lookup(type(inner), "__get__") if TABLE.version < (3, 13) else MISSING
    if isinstance(inner, types.FunctionType) or (
            getter is MISSING and type_lookup(type(inner), "__call__") is not MISSING):
        return BoundMethodValue(owner, function)
    if isinstance(inner, classmethod) and getter is not MISSING:
        return bound_class_method(tx, owner, inner, name)
    if not isinstance(getter, types.FunctionType):
        raise graph_break("unknown-operation", f"a classmethod around {function!r}")
    return tx.wrap_fixed(getter, name).call(tx, [function, owner, owner], {})


class _Owner:
    """A stand-in for any class of the program, to try properties on."""


def property_error(tx: Interpreter, cls: type, use: Callable[[Any], object]) -> ObservedException:
    """The error of using a part that a property lacks, in Python's own words, with the class's
    name."""
    try:
        use(_Owner())
    except AttributeError as error:
        text = str(error).replace(repr(_Owner.__qualname__), repr(cls.__qualname__))
        return tx.error(AttributeError, text)
    raise graph_break("unknown-operation", f"a property of {cls.__name__}")


@binder(property)
def _bind_property(tx: Interpreter, owner: SymbolicValue, cls: type, name: str, attribute: Any
                   ) -> SymbolicValue:
    if attribute.fget is None:
        raise property_error(tx, cls, lambda it: attribute.__get__(it, type(it)))
    return tx.wrap_fixed(attribute.fget, f"{cls.__name__}.{name}").call(tx, [owner], {})


@binder(functools.cached_property)
def _bind_cached(tx: Interpreter, owner: SymbolicValue, cls: type, name: str, attribute: Any
                 ) -> SymbolicValue:
    value = tx.wrap_fixed(attribute.func, f"{cls.__name__}.{name}").call(tx, [owner], {})
    key = getattr(attribute, "attrname", None) or name
    owner.getattr(tx, "__dict__").setitem(tx, constant(key), value)
    return value


@binder(*_SLOT_TYPES)
def _bind_slot(tx: Interpreter, owner: SymbolicValue, cls: type, name: str, attribute: object
               ) -> SymbolicValue:
    check_slot(tx, cls, name, attribute)
    return owner.slot_attribute(tx, name)


def check_slot(tx: Interpreter, cls: type, name: str, slot: Any) -> None:
    """Raise the TypeError of a C descriptor that a class has borrowed from a class which is no base
    of it; one under another name breaks the graph."""
    if not issubclass(cls, slot.__objclass__):
        home = slot.__objclass__.__name__
        raise tx.error(TypeError, f"descriptor {slot.__name__!r} for {home!r} objects doesn't "
                       f"apply to a {cls.__name__!r} object")
    if slot.__name__ != name:
        raise graph_break("unknown-operation", f"{slot.__name__!r} under the name {name!r}")


@binder(InstanceMethod)
def _bind_instance_method(tx: Interpreter, owner: SymbolicValue, cls: type, name: str,
                          attribute: Any) -> SymbolicValue:
    return BoundMethodValue(owner, tx.wrap_fixed(attribute.__func__, f"{cls.__name__}.{name}"))


@binder(types.ClassMethodDescriptorType)
def _bind_c_class_method(tx: Interpreter, owner: SymbolicValue, cls: type, name: str,
                         attribute: object) -> SymbolicValue:
    function = tx.wrap_fixed(attribute, f"{cls.__name__}.{name}")
    return BoundMethodValue(tx.wrap_fixed(cls, cls.__name__), function)


@binder(types.WrapperDescriptorType, types.MethodDescriptorType)
def _bind_c_method(tx: Interpreter, owner: SymbolicValue, cls: type, name: str, attribute: object
                   ) -> SymbolicValue:
    return BoundMethodValue(owner, tx.wrap_fixed(attribute, f"{cls.__name__}.{name}"))


_PYTHON_DESCRIPTORS: Final = (types.FunctionType, staticmethod, classmethod, property, type)


@member_attribute.define
def _of_member(tx: Interpreter, member: ConstantValue, name: str) -> SymbolicValue | None:
    cls = type(member.value)
    attribute = type_lookup(cls, name)
    is_own = getattr(attribute, "__module__", "") != "enum"
    if not isinstance(attribute, _PYTHON_DESCRIPTORS) or not is_own:
        return None
    return None if isinstance(attribute, type) else bind(tx, member, cls, name, attribute)


_WITHOUT: Final[dict[str, Callable[[Any], Any]]] = {
    "__abs__": abs, "__contains__": lambda obj: 0 in obj,
    "__delitem__": lambda obj: operator.delitem(obj, 0), "__getitem__": lambda obj: obj[0],
    "__index__": operator.index, "__invert__": operator.invert, "__len__": len,
    "__neg__": operator.neg, "__next__": next, "__pos__": operator.pos,
    "__setitem__": lambda obj: operator.setitem(obj, 0, 0),
}
"""For each special method: an operation that calls it."""


@functools.cache
def refusal(kind: str, name: str) -> str:
    """Python's error message for an object whose class lacks the special method."""
    try:
        _WITHOUT[name](type(kind, (), {})())
    except (TypeError, KeyError) as error:
        return str(error)
    raise AssertionError(name)


def require_special(tx: Interpreter, value: SymbolicValue, name: str) -> None:
    """Raise the program's TypeError if the value's class lacks the special method."""
    kind = value.python_type()
    if type_lookup(kind, name) is MISSING:
        raise tx.error(TypeError, refusal(kind.__name__, name))
