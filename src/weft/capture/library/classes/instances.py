"""Instances of Python classes, made outside or inside.

Place in the pipeline: the family of all objects without another one. Attributes are read one by one
from the instance dictionary (a `DictValue`) and the class; an instance of a class derived from
list, dict, ... has its items in `contents`. Changes are recorded and written back.
"""

from __future__ import annotations

import functools
import sys
import threading
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from weft import _frame
from weft.capture.core.base import MISSING, Args, Kwargs, SymbolicValue
from weft.capture.core.breaks import ObservedException, graph_break
from weft.capture.core.constant import (
    NONE,
    NOT_IMPLEMENTED,
    PLAIN,
    ConstantValue,
    boolean,
    constant,
    list_iterator,
    plain_value,
    python_object,
)
from weft.capture.core.operator_names import (
    COMPARISONS,
    method_name,
    plain_operator,
    reflected_method,
)
from weft.capture.core.registry import wraps
from weft.capture.core.source import Source
from weft.capture.library.classes.attributes import (
    bind,
    check_slot,
    class_value,
    guard_inherited,
    is_data_descriptor,
    is_iterable,
    is_read_first,
    property_error,
    refusal,
    type_lookup,
    written_attribute,
)
from weft.capture.library.classes.unknown import unknown
from weft.capture.library.containers.deques import DequeValue, outside_deque
from weft.capture.library.containers.iterators import LazyIterator, unless_ended
from weft.capture.library.containers.mapping import DictValue
from weft.capture.library.containers.named_tuples import class_attribute, tuple_subclass
from weft.capture.library.containers.sequences import ListValue, TupleValue, tuple_items
from weft.capture.library.containers.sets import SetValue
from weft.capture.library.containers.user_keys import is_compared_by_code, user_key
from weft.capture.library.functions.builtins import method_of_subclass, operator_of_base
from weft.capture.library.functions.functions import PartialValue, outside_partial
from weft.capture.library.numbers.symbolic_numbers import SymbolicNumberValue
from weft.interrupts import surface

if TYPE_CHECKING:
    from weft.capture.core.protocols import Emitter, Interpreter

_DELETED = constant("<deleted>")
_LIBRARY = ("torch", "weft")


def instance_dict(obj: Any) -> dict[str, object] | None:
    """The object's `__dict__`, read without running code of its class."""
    try:
        if issubclass(type(obj), threading.local):  # a dictionary for each thread
            namespace = threading.local.__getattribute__(obj, "__dict__")
        elif isinstance(type_lookup(type(obj), "__dict__"), types.GetSetDescriptorType):
            namespace = object.__getattribute__(obj, "__dict__")
        else:  # the class defines another one, or a slot
            namespace = _frame.instance_dict(obj)
    except AttributeError:
        return None
    return namespace if isinstance(namespace, dict) else None


def _is_slot(attribute: object) -> bool:
    """Whether the descriptor belongs to `__slots__` of a Python class; those of C types may refuse
    values."""
    return (isinstance(attribute, types.MemberDescriptorType)
            and "__slots__" in vars(attribute.__objclass__))


def has_slot(obj: object, name: str) -> bool:
    """Whether a `__slots__` member is set, found without running code of the object's class."""
    try:
        object.__getattribute__(obj, name)
    except AttributeError:
        return False
    return True


class ObjectValue(SymbolicValue):
    """An instance of `cls`."""

    __slots__ = ("attributes", "cls", "contents", "namespace", "original", "slots",
                 "slots_written", "weakly_held")

    def __init__(self, cls: type, source: Source | None = None, original: Any = MISSING) -> None:
        super().__init__(source)
        self.cls = cls
        self.original = original
        self.attributes = self._make_dict()
        self.namespace: SymbolicValue | None = None
        """What the program set or read as `__dict__`; a dictionary may be its own."""
        self.slots: dict[str, SymbolicValue] = {}
        self.slots_written: dict[str, None] = {}
        self.contents: SymbolicValue | None = None
        self.weakly_held = False

    def own_attributes(self) -> DictValue:
        return self.attributes

    def underlying(self) -> SymbolicValue:
        return self if self.contents is None else self.contents

    def _make_dict(self) -> DictValue:
        namespace = instance_dict(self.original) if self.source is not None else None
        if self.source is None or namespace is None:
            return DictValue()
        one_each = issubclass(self.cls, threading.local)  # a dictionary for each thread
        place = self.source.attribute("__dict__") if one_each else self.source.instance_dict()
        attributes = DictValue(place, namespace)
        attributes.owner_type = self.cls
        return attributes

    def python_type(self) -> type:
        return self.cls

    def __repr__(self) -> str:
        return f"a {self.cls.__name__} object"

    def _plain_key(self, tx: Interpreter, plain: SymbolicValue) -> object:
        """A key that hashes and compares as the number, text or tuple, but is not that object:
        which of two equal keys a set holds is told by identity."""
        obj = self.original if self.original is not MISSING else self.copied(tx)
        return plain.dict_key(tx) if obj is MISSING else obj

    def dict_key(self, tx: Interpreter) -> object:
        hasher = type_lookup(self.cls, "__hash__")
        plain = plain_value(self)
        if plain is not None and all(type_lookup(self.cls, name) is type_lookup(
                plain.python_type(), name) for name in ("__eq__", "__hash__")):
            return self._plain_key(tx, plain)
        if hasher is object.__hash__:
            return self if self.original is MISSING else tx.identities.key(self, self.original)
        if isinstance(hasher, types.FunctionType):
            if self.original is not MISSING and _is_identity(self.cls, hasher):
                return tx.identities.key(self, self.original)
            return user_key(tx, self)
        if hasher is None:
            raise tx.error(TypeError, f"unhashable type: '{self.cls.__name__}'")
        raise graph_break("unknown-operation", f"{self!r} as a dictionary key")

    # -- attributes -------------------------------------------------------------------------------

    def _defined(self, tx: Interpreter, name: str) -> object:
        """What the class defines under a name, guarded."""
        attribute = type_lookup(self.cls, name)
        guard_inherited(tx, self.cls, name)
        return attribute

    def _hook(self, tx: Interpreter, name: str) -> object:
        """A special method of attribute access that the program's class overrides, or None."""
        hook = self._defined(tx, name)
        if isinstance(hook, types.FunctionType) or hook is MISSING:
            return hook
        if isinstance(hook, types.WrapperDescriptorType) and hook.__name__ == name:
            return MISSING
        if isinstance(hook, (types.WrapperDescriptorType, types.MethodDescriptorType)):
            return hook  # `__getattr__ = dict.get`
        raise graph_break("unknown-operation", f"{name} of {self!r}")

    def getattr(self, tx: Interpreter, name: str) -> SymbolicValue:
        hook = self._hook(tx, "__getattribute__")
        if hook is not MISSING:
            return self._hooked_getattr(tx, hook, name)
        return self.generic_getattr(tx, name)

    def _hooked_getattr(self, tx: Interpreter, hook: Any, name: str) -> SymbolicValue:
        function = tx.wrap_fixed(hook, hook.__qualname__)
        try:
            return function.call(tx, [self, constant(name)], {})
        except ObservedException as error:
            if not issubclass(error.value.python_type(), AttributeError):
                raise
            return self.missing_attribute(tx, name, error)

    def generic_getattr(self, tx: Interpreter, name: str, fallback: bool = True) -> SymbolicValue:
        """`object.__getattribute__`, then `__getattr__`."""
        attribute = type_lookup(self.cls, name)
        if attribute is not MISSING and is_read_first(attribute):
            return self._bind(tx, name, attribute)
        if name == "__dict__" and issubclass(self.cls, threading.local):  # no descriptor has it
            return self.namespace or self.attributes
        value = self.attributes.lookup(tx, name)
        if value is not None:
            return value
        written = written_attribute(tx, self.cls, name)
        if written is not None:
            return written
        if attribute is not MISSING:
            return self._bind(tx, name, attribute)
        guard_inherited(tx, self.cls, name)
        if self._is_found_in_c(name):
            raise graph_break("unknown-operation", f"attribute {name!r} of {self!r}")
        error = self._missing(tx, name)
        if not fallback:
            raise error
        return self.missing_attribute(tx, name, error)

    def _is_found_in_c(self, name: str) -> bool:
        """Whether the class's own access to attributes, in C, has the attribute, which neither the
        class nor the object's dictionary holds (`decimal.Context.traps`)."""
        getter = type_lookup(self.cls, "__getattribute__")
        usual: Any = object.__getattribute__
        if self.original is MISSING or name in (instance_dict(self.original) or {}) or (
                getter is usual or not isinstance(getter, types.WrapperDescriptorType)):
            return False
        try:
            getter(self.original, name)
        except Exception as error:  # noqa: BLE001  the usual access raises it for itself
            surface(error)
            return False
        return True

    def _bind(self, tx: Interpreter, name: str, attribute: object) -> SymbolicValue:
        if name == "__class__" and isinstance(attribute, types.GetSetDescriptorType):
            return tx.wrap_fixed(self.cls, self.cls.__name__)
        if name == "__dict__" and isinstance(attribute, _C_DESCRIPTORS):
            return self._own_dict()
        try:
            return bind(tx, self, self.cls, name, attribute)
        except ObservedException as error:
            if not issubclass(error.value.python_type(), AttributeError) or not isinstance(
                    type_lookup(self.cls, "__getattr__"), types.FunctionType):
                raise
            return self.missing_attribute(tx, name, error)

    def _own_dict(self) -> SymbolicValue:
        """What `__dict__` gives: of an object made inside, a dictionary that the replacement makes
        and sets, since the program may keep it."""
        made_inside = self.source is None and not issubclass(self.cls, threading.local)
        if made_inside and self.namespace is None:
            self.namespace = self.attributes
        return self.namespace or self.attributes

    def missing_attribute(self, tx: Interpreter, name: str, error: ObservedException
                          ) -> SymbolicValue:
        """The result of `__getattr__`; raises `error` if the class has none."""
        hook = self._hook(tx, "__getattr__")
        if hook is MISSING:
            raise error
        return tx.call_python(hook, [self, constant(name)])

    def slot_attribute(self, tx: Interpreter, name: str) -> SymbolicValue:
        """A `__slots__` member, or a C-level attribute of an outside object."""
        plain = plain_value(self)
        if plain is not None and hasattr(plain.python_type(), name):
            return plain.getattr(tx, name)
        if isinstance(self.contents, PartialValue) and self.contents.has_member(
                type_lookup(self.cls, name)):
            return self.contents.getattr(tx, name)
        value = self.slots.get(name)
        if value is _DELETED:
            raise self._missing(tx, name)
        if value is None:
            if self.source is None or self.original is MISSING:
                if name != "__weakref__":
                    member = type_lookup(self.cls, name)
                    raise self._error_of(tx, name, member.__get__)
                if self.weakly_held:
                    raise graph_break("unknown-operation", "the first of the weak references")
                return NONE
            try:
                obj = object.__getattribute__(self.original, name)
            except AttributeError as error:
                tx.guards.add(self.source, "no_attr", name)
                raise tx.error(AttributeError, *error.args) from None
            except Exception as error:  # the error is raised again when the program reads it
                surface(error)
                raise graph_break("unknown-operation", f"attribute {name!r} of {self!r}") from error
            value = self.slots[name] = tx.wrap(obj, self.source.attribute(name))
        elif self.source is not None:
            tx.guards.note(self.source.attribute(name))
        return value

    def _missing(self, tx: Interpreter, name: str) -> ObservedException:
        return tx.error(AttributeError, f"'{self.cls.__name__}' object has no attribute '{name}'")

    def setattr(self, tx: Interpreter, name: str, value: SymbolicValue) -> None:
        hook = self._hook(tx, "__setattr__")
        if hook is not MISSING:
            tx.call_python(hook, [self, constant(name), value])
        else:
            self.generic_setattr(tx, name, value)

    def generic_setattr(self, tx: Interpreter, name: str, value: SymbolicValue) -> None:
        """`object.__setattr__`."""
        attribute = self._defined(tx, name)
        if attribute is not MISSING and is_data_descriptor(attribute):
            self._set_descriptor(tx, name, attribute, value)
        elif not self._has_place(name):
            raise self._no_place(tx, name)
        else:
            self.attributes.store(tx, name, constant(name), value)

    def use_namespace(self, value: SymbolicValue) -> None:
        """Make another dictionary the object's `__dict__`."""
        attributes = attributes_of(value)
        if attributes is None:
            raise graph_break("unknown-operation", f"{value!r} as attributes of {self!r}")
        self.attributes, self.namespace = attributes, value

    def _has_place(self, name: str) -> bool:
        """Whether the object has a dictionary for the attribute."""
        return _has_dict(self.cls) and not (self.cls is threading.local and name == "__dict__")

    def _no_place(self, tx: Interpreter, name: str) -> ObservedException:
        """The error of setting or deleting an attribute of an object without a dictionary."""
        return self._error_of(tx, name, lambda it: self._in_c.__setattr__(it, name, None))

    @property
    def _in_c(self) -> Any:
        """The class whose functions in C make the object and set its attributes."""
        return threading.local if self.cls is threading.local else object

    def _error_of(
        self, tx: Interpreter, name: str, use: Callable[[Any], object]
    ) -> ObservedException:
        """The AttributeError of an object without contents, in the words of the Python version."""
        try:
            use(self._in_c.__new__(self.cls))
        except AttributeError as error:
            return tx.error(AttributeError, *error.args)
        except TypeError:  # a C base class makes the instances
            return self._missing(tx, name)
        raise graph_break("unknown-operation", f"attribute {name!r} of {self!r}")

    def _set_descriptor(self, tx: Interpreter, name: str, attribute: object, value: SymbolicValue
                        ) -> None:
        if isinstance(attribute, property):
            if attribute.fset is None:
                raise property_error(tx, self.cls, lambda it: attribute.__set__(it, None))
            tx.wrap_fixed(attribute.fset, name).call(tx, [self, value], {})
        elif _is_slot(attribute):
            check_slot(tx, self.cls, name, attribute)
            self.set_slot(tx, name, value)
        elif attribute in PLAIN_SETTERS:
            self.set_slot(tx, name, value)
        elif name == "__dict__" and self.source is None and attributes_of(value) is not None:
            self.use_namespace(value)
        else:
            setter = type_lookup(type(attribute), "__set__")
            if not isinstance(setter, types.FunctionType):
                raise graph_break("unknown-operation", f"setting {name!r} of {self!r}")
            descriptor = class_value(tx, self.cls, name, attribute)
            tx.wrap_fixed(setter, name).call(tx, [descriptor, self, value], {})

    def set_slot(self, tx: Interpreter, name: str, value: SymbolicValue) -> None:
        """Write a `__slots__` member."""
        self.slots[name] = value
        self.slots_written[name] = None
        if self.source is not None:
            tx.effects.touch(self)

    def _delete_slot(self, tx: Interpreter, name: str) -> None:
        try:
            self.slot_attribute(tx, name)
        except ObservedException as error:
            error.value.args = [constant(name)]
            raise
        self.set_slot(tx, name, _DELETED)

    def delattr(self, tx: Interpreter, name: str) -> None:
        hook = self._hook(tx, "__delattr__")
        if hook is not MISSING:
            tx.call_python(hook, [self, constant(name)])
        else:
            self.generic_delattr(tx, name)

    def generic_delattr(self, tx: Interpreter, name: str) -> None:
        """`object.__delattr__`."""
        attribute = type_lookup(self.cls, name)
        if _is_slot(attribute):
            check_slot(tx, self.cls, name, attribute)
            self._delete_slot(tx, name)
        elif isinstance(attribute, property):
            if attribute.fdel is None:
                raise property_error(tx, self.cls, attribute.__delete__)
            tx.wrap_fixed(attribute.fdel, name).call(tx, [self], {})
        elif attribute is not MISSING and is_data_descriptor(attribute):
            deleter = type_lookup(type(attribute), "__delete__")
            if not isinstance(deleter, types.FunctionType):
                raise graph_break("unknown-operation", f"deleting {name!r} of {self!r}")
            descriptor = class_value(tx, self.cls, name, attribute)
            tx.wrap_fixed(deleter, name).call(tx, [descriptor, self], {})
        elif not self._has_place(name):
            raise self._no_place(tx, name)
        elif self.attributes.remove(tx, name) is None:
            raise self._missing(tx, name)

    # -- protocols --------------------------------------------------------------------------------

    def special(self, tx: Interpreter, name: str) -> SymbolicValue | None:
        """The bound special method, looked up on the class, or None."""
        attribute = type_lookup(self.cls, name)
        if attribute is MISSING or attribute is None:
            return None
        return bind(tx, self, self.cls, name, attribute)

    def _special(self, tx: Interpreter, name: str, *args: SymbolicValue) -> SymbolicValue:
        method = self.special(tx, name)
        if method is None:
            raise tx.error(TypeError, refusal(self.cls.__name__, name))
        return method.call(tx, list(args), {})

    def call(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        method = self.special(tx, "__call__")
        if method is None:
            raise tx.error(TypeError, f"'{self.cls.__name__}' object is not callable")
        return method.call(tx, args, kwargs)

    def truth(self, tx: Interpreter) -> bool:
        if self._defined(tx, "__bool__") is not MISSING:
            answer = tx.force(self._special(tx, "__bool__"))
            if answer.python_type() is not bool:
                kind = answer.python_type().__name__
                raise tx.error(TypeError, f"__bool__ should return bool, returned {kind}")
            return answer.truth(tx)
        if self._defined(tx, "__len__") is not MISSING:
            return self.rows(tx).truth(tx)
        return True

    def rows(self, tx: Interpreter) -> SymbolicValue:
        """`len(self)`, which may be a symbolic size."""
        count = tx.force(self._special(tx, "__len__"))
        if not isinstance(count, SymbolicNumberValue) or not issubclass(count.python_type(), int):
            return constant(self._checked_length(tx, count))
        if tx.binary("lt", count, constant(0)).truth(tx):
            raise tx.error(ValueError, "__len__() should return >= 0")
        return count

    def length(self, tx: Interpreter) -> int:
        return self._checked_length(tx, self._special(tx, "__len__"))

    def _checked_length(self, tx: Interpreter, value: SymbolicValue) -> int:
        length = python_object(tx, value)
        if not isinstance(length, int) or length > sys.maxsize:
            raise graph_break("unknown-operation", f"the length of {self!r}")
        if length < 0:
            raise tx.error(ValueError, "__len__() should return >= 0")
        return length

    def getitem(self, tx: Interpreter, key: SymbolicValue) -> SymbolicValue:
        return self._special(tx, "__getitem__", key)

    def missing_key(self, tx: Interpreter, key: SymbolicValue) -> SymbolicValue:
        """`dict.__getitem__` of an instance of a subclass of dict, for a missing key."""
        contents = self.contents
        assert isinstance(contents, DictValue)
        hook = self._defined(tx, "__missing__")
        if hook in (MISSING, defaultdict.__missing__) or contents.contains(tx, key):
            return contents.getitem(tx, key)
        return self._special(tx, "__missing__", key)

    def setitem(self, tx: Interpreter, key: SymbolicValue, value: SymbolicValue) -> None:
        self._special(tx, "__setitem__", key, value)

    def delitem(self, tx: Interpreter, key: SymbolicValue) -> None:
        self._special(tx, "__delitem__", key)

    def contains(self, tx: Interpreter, item: SymbolicValue) -> bool:
        if self._defined(tx, "__contains__") is not MISSING:
            return self._special(tx, "__contains__", item).truth(tx)
        if not is_iterable(tx, self):
            raise tx.error(TypeError, refusal(self.cls.__name__, "__contains__"))
        return super().contains(tx, item)

    def iter(self, tx: Interpreter) -> SymbolicValue:
        if self._defined(tx, "__iter__") is not MISSING:
            iterator = tx.force(self._special(tx, "__iter__"))
            if not hasattr(iterator.python_type(), "__next__"):
                kind = iterator.python_type().__name__
                raise tx.error(TypeError, f"iter() returned non-iterator of type '{kind}'")
            return iterator
        if type_lookup(self.cls, "__getitem__") is MISSING:
            raise tx.error(TypeError, f"'{self.cls.__name__}' object is not iterable")
        return LazyIterator(type(iter([])), lambda: self._index_until_error(tx))

    def _index_until_error(self, tx: Interpreter) -> Any:
        index = 0
        while True:
            try:
                item = self.getitem(tx, constant(index))
            except ObservedException as error:
                if issubclass(error.value.python_type(), (IndexError, StopIteration)):
                    return
                raise
            yield item
            index += 1

    def next_item(self, tx: Interpreter) -> SymbolicValue:
        """`next(self)`; raises StopIteration at the end."""
        if self._defined(tx, "__next__") is MISSING:
            raise tx.error(TypeError, f"'{self.cls.__name__}' object is not an iterator")
        return self._special(tx, "__next__")

    def next(self, tx: Interpreter) -> SymbolicValue | None:
        return unless_ended(lambda: self.next_item(tx))

    def binary(self, tx: Interpreter, op: str, other: SymbolicValue, reflected: bool) -> Any:
        names = [reflected_method(op)] if reflected else [
            method_name(operator_name) for operator_name in dict.fromkeys((op, plain_operator(op)))]
        for name in names:
            attribute = self._defined(tx, name)
            if attribute is MISSING or attribute in _DEFAULT_COMPARISONS:
                continue
            plain = plain_value(self)
            if self._is_operator_of_base(tx, name, attribute):
                result = self._operator_of_base(tx, op, name, other, reflected)
            elif plain is None or isinstance(attribute, types.FunctionType):
                result = bind(tx, self, self.cls, name, attribute).call(tx, [other], {})
            elif not issubclass(plain.python_type(), getattr(attribute, "__objclass__", type)):
                raise graph_break("unknown-operation", f"{name} of {self!r} by another class")
            else:
                result = operator_of_base(tx, plain.python_type(), name, [self, other])
            if result is not None and result is not NOT_IMPLEMENTED and not (
                    result.is_constant and result.constant() is NotImplemented):
                return result
        if op == "ne" and type_lookup(self.cls, "__ne__") is object.__ne__:
            same = self.binary(tx, "eq", other, reflected)
            return None if same is None else boolean(not same.truth(tx))
        return None

    def _is_operator_of_base(self, tx: Interpreter, name: str, attribute: object) -> bool:
        """Whether the operator is that of a list, set or deque; for dictionaries, `d |= other`."""
        if not isinstance(attribute, types.WrapperDescriptorType) or plain_value(self) is not None:
            return False
        known = name.startswith("__i") or not isinstance(self.contents, DictValue)
        if isinstance(self.contents, DequeValue) and isinstance(
                type_lookup(self.cls, "__iter__"), types.FunctionType):
            return False  # it is called to compare deques
        return self.contents is not None and known and method_of_subclass(
            tx, attribute.__objclass__, name, self.cls) is None

    def _operator_of_base(self, tx: Interpreter, op: str, name: str, other: SymbolicValue,
                          reflected: bool) -> SymbolicValue | None:
        """The result of an operator in C, which reads the other side's items itself but where it
        iterates (`list += other`)."""
        assert self.contents is not None
        in_place = name.startswith("__i")
        if isinstance(self.contents, SetValue) or not in_place:
            other = other.underlying()
        operator = op if in_place else plain_operator(op)
        result: Any = self.contents.binary(tx, operator, other, reflected)
        return self if result is self.contents else result

    def copied(self, tx: Interpreter) -> Any:
        """An instance with the same number or text, or MISSING if C functions may run the
        program's code on it."""
        plain = plain_value(self)
        if plain is None or not _keeps_protocols(self.cls, plain.python_type()):
            return MISSING
        obj = python_object(tx, plain)
        return obj if obj is MISSING else plain.python_type().__new__(self.cls, obj)

    def proxy(self, tx: Interpreter) -> Any:
        if isinstance(self.contents, _ARGUMENTS):
            return self.contents.proxy(tx)
        return super().proxy(tx)

    def fake(self, tx: Interpreter) -> Any:
        if isinstance(self.contents, _ARGUMENTS):
            return self.contents.fake(tx)
        return super().fake(tx)

    # -- replay and rebuilding --------------------------------------------------------------------

    def replay(self, emit: Emitter) -> None:
        self._write_slots(emit, emit.value(self))

    def _write_slots(self, emit: Emitter, target: str) -> None:
        setter, deleter = emit.constant(object.__setattr__), emit.constant(object.__delattr__)
        for name in self.slots_written:
            value = self.slots[name]
            if value is not _DELETED:
                emit.line(f"{setter}({target}, {name!r}, {emit.value(value)})")
            elif has_slot(self.original, name):
                emit.line(f"{deleter}({target}, {name!r})")

    def rebuild(self, emit: Emitter) -> str:
        base: Any = container_base(self.cls)
        maker = emit.constant(self.cls.__new__ if base is object and _is_c_made(self.cls)
                              else base.__new__)
        contents = f", {emit.value(self.contents)}" if base in PLAIN else ""  # type: ignore[arg-type]
        if isinstance(self.contents, PartialValue):
            contents = f", {self.contents.arguments(emit)}"
        name = emit.bind(self, f"{maker}({emit.constant(self.cls)}{contents})")
        emit.later(lambda: self._fill_all(emit, name, base))
        return name

    def _fill_all(self, emit: Emitter, name: str, base: type) -> None:
        self._fill(emit, name, base)
        namespace = f"{name}.__dict__"
        if isinstance(type_lookup(self.cls, "__getattribute__"), types.FunctionType):
            namespace = f"{emit.constant(object.__getattribute__)}({name}, '__dict__')"
        if self.namespace is None:
            self.attributes.fill(emit, f"{namespace}[{{}}] = {{}}")
        else:
            emit.line(f"{emit.constant(object.__setattr__)}({name}, '__dict__', "
                      f"{emit.value(self.namespace)})")
        self._write_slots(emit, name)

    def _fill(self, emit: Emitter, name: str, base: type) -> None:
        if isinstance(self.contents, DictValue):
            setter = emit.constant(getattr(base, "__setitem__"))  # noqa: B009  of the class
            self.contents.fill(emit, f"{setter}({name}, {{}}, {{}})")
        elif isinstance(self.contents, (ListValue, SetValue)):
            adder = emit.constant(list.extend if base is list else set.update)
            items = (self.contents.items if isinstance(self.contents, ListValue)
                     else self.contents.entries.values())
            emit.line(f"{adder}({name}, [{', '.join(emit.value(i) for i in items)}])")
        elif isinstance(self.contents, DequeValue):
            values = ", ".join(emit.value(item) for item in self.contents.items)
            initialise = f"{emit.constant(deque)}.__init__"
            emit.line(f"{initialise}({name}, [{values}], {self.contents.maxlen})")


def attributes_of(value: SymbolicValue) -> DictValue | None:
    """The items of an object that is assigned to `__dict__`: a dictionary or an instance of a
    subclass."""
    contents = value.contents if isinstance(value, ObjectValue) else value
    return contents if isinstance(contents, DictValue) else None


_DEFAULT_COMPARISONS = tuple(vars(object)[method_name(op)] for op in COMPARISONS)


def _has_dict(cls: type) -> bool:
    return type_lookup(cls, "__dict__") is not MISSING or issubclass(cls, threading.local)


PLAIN_SETTERS: Final[list[Any]] = []
"""Descriptors in C that keep any object that is set."""

_C_DESCRIPTORS = (types.GetSetDescriptorType, types.MemberDescriptorType)
_CONTAINERS: Final[tuple[type, ...]] = (
    OrderedDict, defaultdict, dict, list, set, deque, functools.partial, *PLAIN)


_ARGUMENTS: Final = (DictValue, ListValue, TupleValue, ConstantValue, SymbolicNumberValue)
"""Contents that an operation takes for the object."""

_MAKING: Final = frozenset({"__new__", "__init__", "__init_subclass__", "__doc__", "__slots__",
                            "__module__", "__dict__", "__setattr__", "__delattr__"})
_OWN_NAMES: Final = frozenset({"__weakref__", "__orig_bases__", "__parameters__",
                               "__class_getitem__", "__set_name__", "__static_attributes__",
                               "__firstlineno__", "__truediv__", "__matmul__", "__rshift__"})
"""What may be defined between a subclass and its base with no effect on C functions."""


def _keeps_protocols(cls: type, base: object) -> bool:
    """Whether the class defines no special method that C functions may call on an instance."""
    derived = cls.__mro__[:cls.__mro__.index(base)]
    names = {name for base_class in derived for name in vars(base_class) if name.startswith("__")}
    return all(name not in dir(base) and name in _OWN_NAMES for name in names - _MAKING)


def _is_identity(cls: type, hasher: object) -> bool:
    """Whether a library class's hash and equality are those of `object`."""
    home = str(hasher.__module__).partition(".")[0]
    return home in _LIBRARY and type_lookup(cls, "__eq__") is object.__eq__


def _is_c_made(cls: type) -> bool:
    """Whether a C base other than the containers must create the instances."""
    return isinstance(type_lookup(cls, "__new__"), types.BuiltinFunctionType)


def container_base(cls: type) -> type:
    """The C type whose `__new__` creates instances of the class."""
    return next((base for base in _CONTAINERS if issubclass(cls, base)), object)


def checked_text(tx: Interpreter, name: str, value: SymbolicValue) -> SymbolicValue:
    """The string that the special method `name` returned; raises TypeError if it is none."""
    kind = tx.force(value).python_type()
    if not issubclass(kind, str):
        raise tx.error(TypeError, f"{name} returned non-string (type {kind.__name__})")
    return value


def new_object(cls: type, contents: SymbolicValue | None = None) -> ObjectValue:
    """`object.__new__(cls)`, or that of the class's container base, which is empty at first."""
    value = ObjectValue(cls)
    base = container_base(cls)
    if contents is not None:
        value.contents = contents
    elif base is list:
        value.contents = ListValue([])
    elif base is set:
        value.contents = SetValue()
    elif base is deque:
        value.contents = DequeValue([])
    elif base is not object:
        value.contents = DictValue(cls=base)
    return value


@tuple_subclass.define
@wraps(object, subclasses=True)
def wrap_object(tx: Interpreter, obj: Any, source: Source | None) -> SymbolicValue:
    """Any object without a family of its own."""
    cls = type(obj)
    base = container_base(cls)
    names = instance_dict(obj) or {}
    if base is set or any(map(is_compared_by_code, set(map(type, names)) - {str})):
        return unknown(tx, obj, source)
    if source is None:
        if base in PLAIN:  # made of a copy (`copied`)
            raise graph_break("unknown-value", f"a {cls.__name__} that C code returns")
        if isinstance(type_lookup(cls, "__next__"), types.WrapperDescriptorType):
            return list_iterator(tx, obj)
        source = tx.tree.object(obj, f"<{cls.__name__}>")
    if not source.is_fixed:
        tx.guards.add(source, "type_is", cls)
    value = ObjectValue(cls, source, obj)
    if base is list:
        from_list = tx.guards
        from_list.add(source, "len", len(obj))
        items = [tx.wrap(item, source.list_item(i)) for i, item in enumerate(list.__iter__(obj))]
        value.contents = ListValue(items, source, obj)
    elif base is deque:
        value.contents = outside_deque(tx, obj, source)
    elif base is functools.partial:
        value.contents = outside_partial(tx, obj, source)
    elif base in PLAIN:
        value.contents = _outside_plain_value(tx, obj, source, base)
    elif base is not object:
        contents = DictValue(source, obj, cls=base)
        contents.unbound = True
        value.contents = contents
    return value


def _outside_plain_value(tx: Interpreter, obj: Any, source: Source, base: Any) -> SymbolicValue:
    """The guarded number, text or tuple that an instance of a subclass is."""
    if base is tuple:
        return TupleValue(tuple_items(tx, obj, source))
    text = base.__repr__(obj)
    tx.guards.add(source, "py", lambda again: base.__repr__(again) == text)
    return constant(base.__getnewargs__(obj)[0])


@class_attribute.define
def _class_attribute(tx: Interpreter, owner: SymbolicValue, cls: type, name: str) -> SymbolicValue:
    attribute = type_lookup(cls, name)
    if attribute is MISSING:
        raise tx.error(AttributeError, f"'{cls.__name__}' object has no attribute '{name}'")
    return bind(tx, owner, cls, name, attribute)

