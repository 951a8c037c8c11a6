"""Classes: calls make instances, attributes are looked up along the MRO.

Place in the pipeline: a value family. Constructors of C types are in `CONSTRUCTORS` (see
`weft.capture.library`); classes written in Python are instantiated by interpreting `__new__` and
`__init__`.
"""

from __future__ import annotations

import enum
import types
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, final

import torch

from weft.capture.core.base import MISSING, Args, Kwargs, SymbolicValue
from weft.capture.core.breaks import ObservedException, graph_break
from weft.capture.core.constant import NONE, constant, evaluate, is_none, python_object
from weft.capture.core.registry import wraps
from weft.capture.core.rules import Rule, rules
from weft.capture.core.source import Source
from weft.capture.library.classes.attributes import (
    C_METHODS,
    bind,
    bound_class_method,
    class_value,
    guard_inherited,
    is_data_descriptor,
    is_read_first,
    type_lookup,
    write_class_attribute,
    written_attribute,
)
from weft.capture.library.classes.instances import ObjectValue, new_object
from weft.capture.library.containers.named_tuples import make_struct
from weft.capture.library.containers.sequences import ListValue, TupleValue
from weft.capture.library.exceptions.exceptions import ExceptionValue
from weft.capture.library.functions.builtins import (
    is_ruled_class_method,
    method_of_subclass,
    method_rule,
)
from weft.capture.library.functions.functions import BoundMethodValue, python_rule, rule_of
from weft.capture.library.tensors.tensor import record
from weft.shapes.fakes.wrappers import is_wrapper

if TYPE_CHECKING:
    from weft.capture.core.protocols import Emitter, Interpreter

CONSTRUCTORS: dict[type, Rule] = {}
"""The rules of calls of C types."""

FRESH: list[Callable[[Any, type], ObjectValue | None]] = []
"""Families with their own kind of new instance (nn.Module)."""

constructor = rules(CONSTRUCTORS, first=2)

CONSTRUCTORS_BY_NAME: dict[str, Rule] = {}
"""Those of types whose modules are not imported before the program does, by qualified name."""

constructor_named = rules(CONSTRUCTORS_BY_NAME, first=2)
"""Register the rule of calls of these types."""


def python_constructor(cls: type, function: object) -> None:
    """Register the Python function that is called instead of the type."""
    call = python_rule(function)
    constructor(cls)(lambda tx, cls, /, *args, **kwargs: call(tx, *args, **kwargs))


_DTYPES: Final[dict[type, torch.dtype]] = {
    bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}
"""Stand-ins for classes in arguments of tensor operations, since a graph's text cannot name them:
`x.to(int)`."""


@final
class ClassValue(SymbolicValue):
    """A class from outside."""

    __slots__ = ("cls",)
    is_constant = True

    def __init__(self, cls: type, source: Source | None = None) -> None:
        super().__init__(source)
        self.cls = cls

    def python_type(self) -> type:
        return type(self.cls)

    def constant(self) -> Any:
        return self.cls

    def real(self) -> Any:
        return self.cls

    def dict_key(self, tx: Interpreter) -> object:
        return self.cls

    def proxy(self, tx: Interpreter) -> Any:
        return self.fake(tx)

    def fake(self, tx: Interpreter) -> Any:
        return _DTYPES.get(self.cls, self.cls)

    def __repr__(self) -> str:
        return f"class {self.cls.__name__}"

    def rebuild(self, emit: Emitter) -> str:
        return emit.constant(self.cls)

    # -- calls ------------------------------------------------------------------------------------

    def call(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        own = CONSTRUCTORS.get(self.cls) or CONSTRUCTORS_BY_NAME.get(
            f"{self.cls.__module__}.{self.cls.__qualname__}")
        if own is not None:
            try:
                return own.call((tx, self.cls), args, kwargs)
            except (IndexError, KeyError, TypeError, ValueError) as error:
                raise graph_break("unknown-operation",
                                  f"arguments of {self.cls.__name__}: {error}") from error
        caller = type_lookup(type(self.cls), "__call__")
        if isinstance(caller, type):  # a TypedDict makes plain dictionaries
            return tx.call_python(caller, args, kwargs)
        if isinstance(caller, types.FunctionType) and not issubclass(self.cls, enum.Enum):
            return tx.call_python(caller, [self, *args], kwargs)
        return self.instantiate(tx, args, kwargs)

    def instantiate(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        """`type.__call__`: `__new__`, then `__init__` if that returned an instance."""
        if issubclass(self.cls, enum.Enum):
            return self._enum_member(tx, args, kwargs)
        if is_wrapper(self.cls):
            return record(tx, self.cls, args, kwargs)
        instance = self._new(tx, args, kwargs)
        if self.cls in instance.python_type().__mro__:  # `issubclass` may be code of a metaclass
            self._init(tx, instance, args, kwargs)
        return instance

    def _enum_member(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        objects = [python_object(tx, arg) for arg in args]
        if any(o is MISSING for o in objects) or kwargs or not vars(self.cls)["_member_names_"]:
            raise graph_break("unknown-operation", f"a member of {self.cls.__name__} of {args!r}")
        finder = getattr(type_lookup(self.cls, "_missing_"), "__func__", None)
        if getattr(finder, "__module__", None) != "enum" and not _is_member(self.cls, *objects):
            return self._found_member(tx, args)
        return tx.wrap_new(evaluate(tx, lambda: self.cls(*objects)))

    def _found_member(self, tx: Interpreter, args: Args) -> SymbolicValue:
        """The enum member that the program's `_missing_` returns for a value without one.

        If it returns None there is no such member. That is also the context of errors of other
        types that `_missing_` raises, which breaks the graph.
        """
        try:
            member = tx.force(self.getattr(tx, "_missing_").call(tx, args, {}))
        except ObservedException as error:
            if issubclass(error.value.python_type(), ValueError):
                raise
        else:
            if member.is_constant and isinstance(member.constant(), self.cls):
                return member
            if is_none(member) and not issubclass(self.cls, enum.Flag):
                value = args[0].constant()
                raise tx.error(ValueError, f"{value!r} is not a valid {self.cls.__qualname__}")
        raise graph_break("unknown-operation", f"{self.cls.__name__}, which looks for members")

    def _new(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        maker = type_lookup(self.cls, "__new__")
        guard_inherited(tx, self.cls, "__new__")
        if isinstance(maker, staticmethod):
            function = tx.wrap_fixed(maker.__func__, f"{self.cls.__name__}.__new__")
            return function.call(tx, [self, *args], kwargs)
        if isinstance(maker, types.FunctionType):
            return tx.call_python(maker, [self, *args], kwargs)
        own = rule_of(maker)
        if own is not None:
            return own.call((tx,), [self, *args], kwargs)
        if maker is object.__new__ and (args or kwargs):
            no_arguments_for_new(tx, self.cls)
        return make_instance(tx, self.cls, args)

    def _init(self, tx: Interpreter, obj: SymbolicValue, args: Args, kwargs: Kwargs) -> None:
        cls = obj.python_type()  # `__new__` may have made an instance of a subclass
        initialiser = type_lookup(cls, "__init__")
        guard_inherited(tx, cls, "__init__")
        if not isinstance(initialiser, types.WrapperDescriptorType):
            result = tx.force(bind(tx, obj, cls, "__init__", initialiser).call(tx, args, kwargs))
            if not is_none(result):
                kind = result.python_type().__name__
                raise tx.error(TypeError, f"__init__() should return None, not '{kind}'")
        elif isinstance(obj, ExceptionValue):
            obj.initialise(tx, args, kwargs)
        elif (isinstance(obj, ObjectValue) and obj.contents is not None
              and initialiser is not vars(object)["__init__"]):
            owner = getattr(initialiser, "__objclass__", object)
            python = method_of_subclass(tx, owner, "__init__", cls)
            if python is None:
                obj.contents.method(tx, "__init__", args, kwargs)
            else:
                python.call(tx, [obj, *args], kwargs)

    # -- attributes -------------------------------------------------------------------------------

    def getattr(self, tx: Interpreter, name: str) -> SymbolicValue:
        special = _DESCRIPTIONS.get(name)
        if special is not None:
            return special(tx, self)
        if isinstance(type_lookup(type(self.cls), "__getattribute__"), types.FunctionType):
            raise graph_break("unknown-operation", f"attribute {name!r} by a metaclass's own code")
        meta = type_lookup(type(self.cls), name)
        if meta is not MISSING and is_read_first(meta) and not (
                isinstance(meta, types.GetSetDescriptorType) and name in self.cls.__dict__):
            return bind(tx, self, type(self.cls), name, meta)
        guard_inherited(tx, type(self.cls), name)
        written = written_attribute(tx, self.cls, name)
        if written is not None:
            return written
        attribute = type_lookup(self.cls, name)
        if attribute is not MISSING:
            try:
                return self._bind_own(tx, name, attribute)
            except ObservedException as error:
                if not issubclass(error.value.python_type(), AttributeError):
                    raise
                return self._missing_attribute(tx, name, error)
        guard_inherited(tx, self.cls, name)
        if meta is not MISSING:
            return bind(tx, self, type(self.cls), name, meta)
        return self._missing_attribute(tx, name, None)

    def _missing_attribute(self, tx: Interpreter, name: str, error: ObservedException | None
                           ) -> SymbolicValue:
        """What the metaclass's `__getattr__` gives; or the error that there already was."""
        hook = type_lookup(type(self.cls), "__getattr__")
        if isinstance(hook, types.FunctionType) and not issubclass(self.cls, enum.Enum):
            return tx.wrap_fixed(hook, name).call(tx, [self, constant(name)], {})
        raise error or tx.error(
            AttributeError, f"type object '{self.cls.__name__}' has no attribute '{name}'")

    def _bind_own(self, tx: Interpreter, name: str, attribute: object) -> SymbolicValue:
        guard_inherited(tx, self.cls, name)
        if isinstance(attribute, classmethod):
            return bound_class_method(tx, self, attribute, f"{self.cls.__name__}.{name}")
        if isinstance(attribute, staticmethod):
            return tx.wrap_fixed(attribute.__func__, f"{self.cls.__name__}.{name}")
        if is_ruled_class_method(attribute):
            return BoundMethodValue(self, tx.wrap_fixed(attribute, f"{self.cls.__name__}.{name}"))
        if isinstance(attribute, types.ClassMethodDescriptorType) and self.cls in tx.classes.made:
            raise graph_break("unknown-operation", f"{name} of a class made inside")
        if isinstance(attribute, (*C_METHODS, property)):
            bound = evaluate(tx, lambda: getattr(self.cls, name))
            return tx.wrap_fixed(bound, f"{self.cls.__name__}.{name}")
        getter = type_lookup(type(attribute), "__get__")
        if isinstance(getter, types.FunctionType) and not issubclass(self.cls, enum.Enum):
            descriptor = class_value(tx, self.cls, name, attribute)
            return tx.wrap_fixed(getter, name).call(tx, [descriptor, NONE, self], {})
        if getter is not MISSING and not isinstance(attribute, types.FunctionType):
            bound = evaluate(tx, lambda: getattr(self.cls, name))
            return tx.wrap_fixed(bound, f"{self.cls.__name__}.{name}")
        return class_value(tx, self.cls, name, attribute)

    def setattr(self, tx: Interpreter, name: str, value: SymbolicValue) -> None:
        hook = type_lookup(type(self.cls), "__setattr__")
        if isinstance(hook, types.FunctionType):
            tx.wrap_fixed(hook, name).call(tx, [self, constant(name), value], {})
            return
        meta = type_lookup(type(self.cls), name)
        if is_data_descriptor(meta) and not isinstance(meta, types.GetSetDescriptorType):
            raise graph_break("unknown-operation", f"setting {name!r} by a metaclass's descriptor")
        write_class_attribute(tx, self.cls, name, value)

    def binary(self, tx: Interpreter, op: str, other: SymbolicValue, reflected: bool) -> Any:
        if op in ("eq", "ne"):
            return constant((self is other) is (op == "eq"))
        return None

    def _by_metaclass(self, tx: Interpreter, name: str, *args: SymbolicValue
                      ) -> SymbolicValue | None:
        """The result of the metaclass's special method, if a metaclass of the program defines it,
        or None."""
        hook = type_lookup(type(self.cls), name)
        if not isinstance(hook, types.FunctionType) or issubclass(self.cls, enum.Enum):
            return None
        guard_inherited(tx, type(self.cls), name)
        return tx.force(tx.call_python(hook, [self, *args]))

    def getitem(self, tx: Interpreter, key: SymbolicValue) -> SymbolicValue:
        item = self._by_metaclass(tx, "__getitem__", key)
        if item is not None:
            return item
        if issubclass(self.cls, enum.Enum) and key.is_constant:
            members: Any = self.cls
            return tx.wrap_new(evaluate(tx, lambda: members[key.constant()]))
        if key.is_constant and hasattr(self.cls, "__class_getitem__"):
            if self.cls in tx.classes.made or holds_made_class(tx, key):
                raise graph_break("unknown-operation", "parameters of a class made inside")
            getter = type_lookup(self.cls, "__class_getitem__")
            if _is_written_by_user(getter):
                return self.getattr(tx, "__class_getitem__").call(tx, [key], {})
            return tx.wrap_new(evaluate(tx, lambda: getattr(self.cls, "__class_getitem__")(  # noqa: B009
                key.constant())))
        return super().getitem(tx, key)

    def iter(self, tx: Interpreter) -> SymbolicValue:
        if issubclass(self.cls, enum.Enum):
            return tx.wrap_new(tuple(self.cls)).iter(tx)
        iterator = self._by_metaclass(tx, "__iter__")
        return super().iter(tx) if iterator is None else iterator

    def truth(self, tx: Interpreter) -> bool:
        answer = self._by_metaclass(tx, "__bool__")
        if answer is None:
            answer = self._by_metaclass(tx, "__len__")
        return answer is None or answer.truth(tx)

    def length(self, tx: Interpreter) -> int:
        count = self._by_metaclass(tx, "__len__")
        if count is not None and type(python_object(tx, count)) is int:
            return int(count.constant())
        return len(self.cls) if issubclass(self.cls, enum.Enum) else super().length(tx)

    def contains(self, tx: Interpreter, item: SymbolicValue) -> bool:
        if issubclass(self.cls, enum.Enum):
            members: Any = self.cls
            if item.is_constant:
                return bool(evaluate(tx, lambda: item.constant() in members))
            test = type(members).__contains__
            return tx.wrap_fixed(test, "__contains__").call(tx, [self, item], {}).truth(tx)
        answer = self._by_metaclass(tx, "__contains__", item)
        if answer is not None:
            return answer.truth(tx)
        return super().contains(tx, item)


def _is_member(cls: type[enum.Enum], value: object, *others: object) -> bool:
    try:
        return not others and (isinstance(value, cls) or value in cls._value2member_map_)
    except TypeError:
        return False


def decides_on_subclasses(cls: type) -> bool:
    """Whether an abstract class has a `__subclasshook__` (or the like) written by the program."""
    return (type_lookup(cls, "__subclasses__") is not MISSING
            or _is_written_by_user(type_lookup(cls, "__subclasshook__")))


def _is_written_by_user(method: object) -> bool:
    """Whether a class method is Python code outside the standard library."""
    function = getattr(method, "__func__", None)
    return isinstance(function, types.FunctionType) and function.__module__ not in (
        "typing", "typing_extensions", "collections.abc", "_collections_abc", "ctypes")


def holds_made_class(tx: Interpreter, value: SymbolicValue) -> bool:
    """Whether the value is a class made inside, or a tuple that holds one."""
    if isinstance(value, TupleValue):
        return any(holds_made_class(tx, item) for item in value.all(tx))
    return isinstance(value, ClassValue) and any(value.cls is model for model in tx.classes.made)


def no_arguments_for_new(tx: Interpreter, cls: type) -> None:
    """Raise the TypeError that `object.__new__` raises for arguments, if it does."""
    if type_lookup(cls, "__new__") is not object.__new__:
        raise tx.error(TypeError, "object.__new__() takes exactly one argument (the type to "
                                  "instantiate)")
    if type_lookup(cls, "__init__") is vars(object)["__init__"]:
        raise tx.error(TypeError, f"{cls.__name__}() takes no arguments")


def no_arguments_for_init(tx: Interpreter, cls: type) -> None:
    """Raise the TypeError that `object.__init__` raises for arguments, if it does."""
    if type_lookup(cls, "__init__") is not vars(object)["__init__"]:
        raise tx.error(TypeError, "object.__init__() takes exactly one argument (the instance to "
                                  "initialize)")
    if type_lookup(cls, "__new__") is object.__new__:
        raise tx.error(TypeError, f"{cls.__name__}.__init__() takes exactly one argument (the "
                                  "instance to initialize)")


_ABSTRACT: Final = 1 << 20
"""The type flag of classes with abstract methods."""

_NOT_INSTANTIATED: Final = 1 << 7
"""The type flag of C types that a program cannot make instances of."""


@method_rule((type, "__call__"))
def _call_class(tx: Interpreter, cls: SymbolicValue, /, *args: SymbolicValue,
                **kwargs: SymbolicValue) -> SymbolicValue:
    """`type.__call__`, called through `super()` in a metaclass."""
    if not isinstance(cls, ClassValue):
        raise graph_break("unknown-operation", f"type.__call__ of {cls!r}")
    return cls.instantiate(tx, [*args], kwargs)


@method_rule((type, "mro"))
def _mro(tx: Interpreter, cls: SymbolicValue, /) -> SymbolicValue:
    bases = cls.constant().__mro__
    if bases is None:
        raise graph_break("unknown-value", "a class that is being made")
    return ListValue([tx.wrap_fixed(base, base.__name__) for base in bases])


@method_rule((type, "__subclasses__"))
def _subclasses(tx: Interpreter, owner: SymbolicValue, /) -> SymbolicValue:
    """`cls.__subclasses__()`, guarded: registries use it."""
    cls = owner.constant()
    if any(cls in model.__mro__ for model in tx.classes.made):
        raise graph_break("unknown-operation", "subclasses of which some are made inside")
    known = type.__subclasses__(cls)
    tx.guards.add(tx.tree.object(cls, cls.__name__), "py",
                  lambda again: type.__subclasses__(again) == known)
    return ListValue([tx.wrap_fixed(subclass, subclass.__name__) for subclass in known])


def make_instance(tx: Interpreter, cls: type, args: Args) -> SymbolicValue:
    """What the C-level `__new__` of the class returns."""
    if issubclass(cls, BaseException):
        return ExceptionValue(cls, args)
    if issubclass(cls, tuple) and hasattr(cls, "n_sequence_fields"):
        return make_struct(tx, cls, args)
    for family in FRESH:
        fresh = family(tx, cls)
        if fresh is not None:
            return fresh
    if cls.__flags__ & _ABSTRACT:
        evaluate(tx, lambda: object.__new__(cls))  # raises the error that names the methods
    if cls.__flags__ & _NOT_INSTANTIATED:
        evaluate(tx, cls)
    if type_lookup(cls, "__del__") is not MISSING:
        raise graph_break("unknown-operation", f"making a {cls.__name__}, which has a __del__")
    maker = type_lookup(cls, "__new__")
    if maker not in _EMPTY_MAKERS and \
            not isinstance(maker, (types.FunctionType, staticmethod)) and \
            not _container_new(maker):
        raise graph_break("unknown-operation", f"making a {cls.__name__}")
    return new_object(cls)


_EMPTY_MAKERS: Final = (object.__new__, dict.__new__, list.__new__, set.__new__,
                        torch.autograd.Function.__new__)  # old programs: `Square().apply(x)`


def _container_new(maker: object) -> bool:
    owner = getattr(maker, "__self__", None)
    return isinstance(owner, type) and owner.__module__ in ("builtins", "collections") and \
        issubclass(owner, (dict, list, set, deque))


def _describe(name: str) -> Callable[[Any, ClassValue], SymbolicValue]:
    def describe(tx: Interpreter, value: ClassValue) -> SymbolicValue:
        description = getattr(value.cls, name)
        if description is None or isinstance(description, str):
            tx.class_guards.text(value.cls, name, description)
            return constant(description)
        return tx.wrap_fixed(description, f"{value!r}.{name}")

    return describe


def _bases(name: str) -> Callable[[Any, ClassValue], SymbolicValue]:
    def describe(tx: Interpreter, value: ClassValue) -> SymbolicValue:
        classes = getattr(value.cls, name)
        if classes is None:
            raise graph_break("unknown-value", "a class that is being made")
        return TupleValue([tx.wrap_fixed(base, base.__name__) for base in classes])

    return describe


def _abstract_methods(tx: Interpreter, value: ClassValue) -> SymbolicValue:
    cls: Any = value.cls
    return tx.wrap_new(evaluate(tx, lambda: cls.__abstractmethods__))


_DESCRIPTIONS: dict[str, Callable[[Any, ClassValue], SymbolicValue]] = {
    "__name__": _describe("__name__"), "__qualname__": _describe("__qualname__"),
    "__module__": _describe("__module__"), "__doc__": _describe("__doc__"),
    "__mro__": _bases("__mro__"), "__bases__": _bases("__bases__"),
    "__abstractmethods__": _abstract_methods,
    "__dict__": lambda tx, value: tx.wrap_fixed(value.cls.__dict__, f"{value!r}.__dict__"),
    "__class__": lambda tx, value: tx.wrap_fixed(type(value.cls), type(value.cls).__name__),
}


@final
class SuperValue(SymbolicValue):
    """`super(cls, owner)`."""

    __slots__ = ("after", "owner")
    kind = super

    def __init__(self, after: type, owner: SymbolicValue) -> None:
        super().__init__()
        self.after = after
        self.owner = owner

    def getattr(self, tx: Interpreter, name: str) -> SymbolicValue:
        owner = self.owner
        cls = owner.python_type()
        if isinstance(owner, ClassValue) and issubclass(owner.cls, self.after):
            cls = owner.cls
        mro = cls.__mro__
        if mro is None or self.after not in mro:
            raise graph_break("unknown-operation", f"super({self.after.__name__}, {owner!r})")
        tx.class_guards.bases(cls)
        for base in mro[mro.index(self.after) + 1:]:
            tx.class_guards.own(base, name)
            if name in base.__dict__:
                attribute = base.__dict__[name]
                if isinstance(owner, ClassValue) and cls is owner.cls:
                    return self._of_class(tx, owner, base, name, attribute)
                if isinstance(attribute, classmethod):
                    return bind(tx, owner, cls, name, attribute)
                return bind(tx, owner, base, name, attribute)
        raise tx.error(AttributeError, f"'super' object has no attribute '{name}'")

    def _of_class(self, tx: Interpreter, owner: ClassValue, base: type, name: str, attribute: object
                  ) -> SymbolicValue:
        if name == "__new__" or isinstance(attribute, staticmethod):
            function = attribute.__func__ if isinstance(attribute, staticmethod) else attribute
            return tx.wrap_fixed(function, f"{base.__name__}.{name}")
        if isinstance(attribute, classmethod):
            return bound_class_method(tx, owner, attribute, name)
        if isinstance(attribute, types.ClassMethodDescriptorType):
            return BoundMethodValue(owner, tx.wrap_fixed(attribute, f"{base.__name__}.{name}"))
        return class_value(tx, base, name, attribute)

    def rebuild(self, emit: Emitter) -> str:
        return f"{emit.constant(super)}({emit.constant(self.after)}, {emit.value(self.owner)})"


@wraps(type, subclasses=True)
def _wrap_class(tx: Interpreter, obj: Any, source: Source | None) -> SymbolicValue:
    tx.guards.identity(source, obj)
    tx.class_guards.bases(obj)
    return ClassValue(obj, source)
