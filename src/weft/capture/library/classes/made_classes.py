"""Classes made inside the captured code: `class` statements, `type(...)`, `namedtuple(...)`.

Place in the pipeline: above `classes`. The class body is interpreted; then a real class, the
*model*, is made of stand-ins for what the body defined: functions with empty cells, objects without
contents. Attribute lookup works on the model as on any class, and the interpreter knows each
stand-in (`tx.outside`) as the value that it stands for. If the class escapes, the replacement makes
it again::

    class Local:                          # model: type("Local", (), {"f": <stand-in>})
        def f(self): return x             # replacement: t0 = type("Local", (), {"f": t1})
"""

from __future__ import annotations

import abc
import builtins
import collections
import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, final

import torch

from weft.capture.core.base import MISSING, Args, Kwargs, SymbolicValue
from weft.capture.core.breaks import ObservedException, graph_break
from weft.capture.core.cell import CellValue
from weft.capture.core.constant import (
    NONE,
    constant,
    evaluate,
    evaluate_call,
    known_arguments,
    python_object,
)
from weft.capture.library.classes.attributes import set_made_attribute, type_lookup
from weft.capture.library.classes.classes import ClassValue, SuperValue
from weft.capture.library.classes.descriptors import DescriptorValue
from weft.capture.library.classes.instances import ObjectValue
from weft.capture.library.containers.mapping import DictValue, dictionary_of
from weft.capture.library.containers.sequences import ListValue, TupleValue
from weft.capture.library.containers.sets import SetValue
from weft.capture.library.functions.builtins import (
    method_rule,
    object_method,
)
from weft.capture.library.functions.functions import FunctionValue, rule
from weft.capture.library.numbers.symbolic_numbers import SymbolicNumberValue
from weft.capture.library.tensors.tensor import TensorValue
from weft.quoting import keyword

if TYPE_CHECKING:
    from weft.capture.core.frame import Program
    from weft.capture.core.protocols import Emitter, Interpreter

Namespace = dict[str, SymbolicValue]

_NAMED_TUPLE: Final[Any] = vars(typing)["NamedTupleMeta"]
_METACLASSES: Final = (
    type, abc.ABCMeta, enum.EnumMeta, _NAMED_TUPLE, type(torch.autograd.Function))


@final
class MadeClass(SymbolicValue):
    """The recipe that makes the class of a model again."""

    __slots__ = ("bases", "late", "metaclass", "model", "name", "namespace", "tells")

    def __init__(self, metaclass: type, name: str, bases: list[SymbolicValue],
                 namespace: Namespace, tells: bool) -> None:
        super().__init__()
        self.metaclass = metaclass
        self.name = name
        self.bases = bases
        self.namespace = namespace
        self.late: list[str] = []
        """Attributes that are set after the class is made: objects that are filled later, or whose
        `__set_name__` is interpreted."""
        self.model: Any = None
        self.tells = tells
        """Whether an `__init_subclass__` was interpreted, which must not run again."""

    def rebuild(self, emit: Emitter) -> str:
        bases = "".join(f"{emit.value(base)}, " for base in self.bases)
        items = "".join(f"({name!r}, {self._early(emit, name, value)}), "
                        for name, value in self.namespace.items() if name not in self.late)
        for value in self.namespace.values():
            _write_marks(emit, value)
        text = (f"{emit.constant(new_class)}({emit.constant(self.metaclass)}, {self.name!r}, "
                f"({bases}), ({items}), {self.tells})")
        name = emit.bind(self, text)
        for late in self.late:
            emit.line(f"setattr({name}, {late!r}, {emit.value(self.namespace[late])})")
        return name

    def _early(self, emit: Emitter, name: str, value: SymbolicValue) -> str:
        """The expression of a class attribute; `__slots__` and the fields of a named tuple must be
        complete when the class is made."""
        if name == "__annotations__" and self.metaclass is _NAMED_TUPLE:
            return emit.hashed(value)
        slots = python_object(emit.tx, value) if name == "__slots__" else MISSING
        return emit.value(value) if slots is MISSING else emit.constant(slots)

    def python_type(self) -> type:
        return self.metaclass


def _write_marks(emit: Emitter, value: SymbolicValue) -> None:
    """Emit constant attributes of functions that metaclasses read, such as
    `__isabstractmethod__`."""
    for part in value.parts if isinstance(value, DescriptorValue) else [value]:
        if not isinstance(part, FunctionValue) or part.attributes is None:
            continue
        for key, item in part.attributes.pairs(emit.tx):
            if item.is_constant:
                emit.line(f"{emit.value(part)}.__dict__[{emit.value(key)}] = {emit.value(item)}")


@final
class ProcessedClass(SymbolicValue):
    """A class that `function` (such as `dataclass`) made from constants or from another made
    class."""

    __slots__ = ("arguments", "function", "in_place", "named")

    def __init__(self, function: Callable[..., Any], arguments: list[SymbolicValue],
                 named: Kwargs, *, in_place: bool = False) -> None:
        super().__init__()
        self.in_place = in_place
        """Whether the function changes and returns its first argument."""
        self.function = function
        self.arguments = arguments
        self.named = named

    def rebuild(self, emit: Emitter) -> str:
        parts = [emit.value(argument) for argument in self.arguments]
        parts += [keyword(name, emit.value(value)) for name, value in self.named.items()]
        text = f"{emit.constant(self.function)}({', '.join(parts)})"
        if not self.in_place:
            emit.fill()
            return emit.bind(self, text)
        name = emit.bind(self, parts[0])
        emit.fill()
        emit.line(text)
        return name


def new_class(metaclass: type, name: str, bases: tuple[type, ...],
              items: tuple[tuple[str, object], ...], tells: bool) -> object:
    """Make a class as a `class` statement does, but run no code of the program: that of metaclasses
    and `__init_subclass__` is interpreted."""
    if metaclass not in _METACLASSES or tells:
        untold = _Untold if any(base.__dictoffset__ for base in bases) else _UntoldWithoutDict
        cls: Any = type.__new__(metaclass, name, (untold,) if tells else bases, dict(items))
        if tells:
            _SET_BASES(cls, bases)
        return cls
    namespace: Any = metaclass.__prepare__(name, bases)
    for key, value in items:
        namespace[key] = value
    return metaclass(name, bases, namespace)


class _Untold:
    """A base that a class is made with whose own bases would be told of it."""


class _UntoldWithoutDict:
    """The same for bases such as `Generic`, whose instances have no dictionary."""

    __slots__ = ()


_SET_BASES: Final = type.__dict__["__bases__"].__set__


# -- making -------------------------------------------------------------------------------------


@rule(builtins.__build_class__)
def _build_class(tx: Interpreter, body: SymbolicValue, name: SymbolicValue, /,
                 *written: SymbolicValue, **kwargs: SymbolicValue) -> SymbolicValue:
    if not isinstance(body, FunctionValue):
        raise graph_break("unknown-operation", "a class whose body is no function")
    bases = _replaced_bases(tx, written)
    metaclass = _metaclass(bases, kwargs)
    frame = body.frame(tx, [], {})
    if metaclass is enum.EnumMeta and _has_duplicates(frame.program):
        raise graph_break("unknown-operation", "an enumeration that defines a name twice")
    tx.run(frame)
    namespace = {key: tx.force(value) for key, value in frame.locals.items()}
    if bases is not written:
        namespace["__orig_bases__"] = TupleValue(written)
    keywords = {key: value for key, value in kwargs.items() if key != "metaclass"}
    if metaclass in _METACLASSES:
        return make_class(tx, metaclass, name.constant(), [*bases], namespace, keywords)
    attributes = dictionary_of(tx, namespace)
    maker = tx.wrap_fixed(metaclass, metaclass.__name__)
    cls = maker.call(tx, [name, TupleValue(bases), attributes], keywords)
    cell = namespace.get("__classcell__")
    if isinstance(cell, CellValue) and cell.contents is not cls:
        raise graph_break("unknown-operation", "a metaclass that does not pass __classcell__ on")
    return cls


def _replaced_bases(tx: Interpreter, bases: Sequence[SymbolicValue]) -> Sequence[SymbolicValue]:
    """The classes that bases such as `Generic[T]` stand for; the bases themselves if all are
    classes."""
    if all(isinstance(base, ClassValue) for base in bases):
        return bases
    objects = tuple(base.real() for base in map(tx.force, bases))
    entries: list[Any] = []
    for original in objects:
        replace = None if isinstance(original, type) else getattr(original, "__mro_entries__", None)
        if replace is not None and "typing" not in (original.__module__, type(original).__module__):
            return bases  # code of the program
        entries += replace(objects) if replace is not None else [original]
    return [tx.wrap_fixed(base, getattr(base, "__name__", "base")) for base in entries]


@rule(type.__new__)
def _type_new(
    tx: Interpreter, metaclass: SymbolicValue, name: SymbolicValue, bases: SymbolicValue,
    namespace: SymbolicValue, /, **kwargs: SymbolicValue,
) -> SymbolicValue:
    """`type.__new__`, as metaclasses call it."""
    if metaclass.constant() in _METACLASSES:
        raise graph_break("unknown-operation", "making a class")
    _check_metaclass(metaclass.constant())
    return make_class(tx, metaclass.constant(), name.constant(), tx.unpack(bases),
                      _named(tx, namespace), kwargs)


def _named(tx: Interpreter, namespace: SymbolicValue) -> Namespace:
    if not isinstance(namespace, DictValue):
        raise graph_break("unknown-operation", f"a class whose namespace is {namespace!r}")
    return {key.constant(): tx.force(value) for key, value in namespace.pairs(tx)}


def _has_duplicates(body: Program) -> bool:
    """Whether the class body assigns one of its names more than once."""
    stored = [ins.argval for ins in body.instructions if ins.name == "STORE_NAME"]
    return len(stored) != len(set(stored))


def _metaclass(bases: Sequence[SymbolicValue], kwargs: Kwargs) -> type:
    """The most derived metaclass; breaks the graph if that runs code of the program."""
    if not all(isinstance(base, ClassValue) for base in bases):
        raise graph_break("unknown-operation", "a class with these bases or arguments")
    kinds = [type(base.constant()) for base in bases]
    if "metaclass" in kwargs:
        kinds.append(kwargs["metaclass"].constant())
    if not all(isinstance(kind, type) and issubclass(kind, type) for kind in kinds):
        raise graph_break("unknown-operation", "a class made by a function")
    best: type = type
    for kind in kinds:
        best = kind if issubclass(kind, best) else best
    _check_metaclass(best)
    return best


def _check_metaclass(kind: type) -> None:
    """Break the graph if making a class would run code that is not interpreted."""
    own = kind.__mro__[:-2]
    if kind not in _METACLASSES and (
            kind.__mro__[-2:] != (type, object) or any(cls in own for cls in _METACLASSES)
            or any({"__prepare__", "mro"} & vars(cls).keys() for cls in own)):
        raise graph_break("unknown-operation", f"a class of metaclass {kind.__name__}")


_ENUM_CODE: Final = frozenset({"__new__", "__init__", "_generate_next_value_", "_missing_"})


def make_class(tx: Interpreter, metaclass: type, name: str, bases: Args, namespace: Namespace,
               keywords: Kwargs) -> ClassValue:
    """`metaclass(name, bases, namespace)`: a model of the class now, the class in the replacement.

    Some attributes are set on the model afterwards: objects that are filled later, and objects
    with a `__set_name__`, which is interpreted.
    """
    classes = tuple(base.constant() for base in bases)
    cell = namespace.pop("__classcell__", None)
    if cell is not None and not (isinstance(cell, CellValue) and cell.contents is None):
        raise graph_break("unknown-operation", "a class with the __classcell__ of another")
    tells = bool(keywords) or any(
        type_lookup(base, "__init_subclass__") is not _NOT_TOLD for base in classes)
    if tells and metaclass in _METACLASSES[1:]:
        raise graph_break("unknown-operation", f"the class {name}, whose bases are told of it")
    if metaclass is enum.EnumMeta:
        _check_enumeration(classes, namespace)
    recipe = MadeClass(metaclass, name, bases, namespace, tells)
    tx.classes.stand_ins = {}
    stand_ins = {key: stand_in(tx, value) for key, value in namespace.items()}
    named = [key for key, obj in stand_ins.items() if _has_set_name(obj)]
    recipe.late = [*named, *(key for key, value in namespace.items()
                            if isinstance(value, ObjectValue) and key not in named)]
    _check_attributes(recipe, classes, stand_ins)
    items = tuple((key, obj) for key, obj in stand_ins.items() if key not in recipe.late)
    model = _model(tx, recipe, classes, items)
    cls = register(tx, model, recipe)
    if isinstance(cell, CellValue):
        cell.write(tx, cls)
    for key in recipe.late:
        type.__setattr__(model, key, stand_ins[key])
    for key in named:
        _call_set_name(tx, cls, key, stand_ins[key], namespace[key])
    if tells:
        SuperValue(model, cls).getattr(tx, "__init_subclass__").call(tx, [], keywords)
    return cls


_NOT_TOLD: Final = vars(object)["__init_subclass__"]


def _model(tx: Interpreter, recipe: MadeClass, classes: tuple[type, ...],
           items: tuple[tuple[str, object], ...]) -> Any:
    """The real class that stands for the recipe's."""
    arguments = recipe.metaclass, recipe.name, classes, items, recipe.tells
    if not recipe.tells:
        return evaluate(tx, lambda: new_class(*arguments))
    try:
        return new_class(*arguments)
    except TypeError as error:  # another layout than that of plain objects
        raise graph_break("unknown-operation", f"the class {recipe.name}: {error}") from error


@object_method("__init_subclass__")
def _init_subclass(tx: Interpreter, cls: SymbolicValue, /, **kwargs: SymbolicValue
                   ) -> SymbolicValue:
    """`object.__init_subclass__`"""
    if kwargs:
        name = cls.constant().__qualname__
        raise tx.error(TypeError, f"{name}.__init_subclass__() takes no keyword arguments")
    return NONE


method_rule((type, "__init__"))(lambda tx, /, *args, **kwargs: NONE)


def _check_enumeration(classes: tuple[type, ...], namespace: Namespace) -> None:
    """Break the graph if making the enumeration would run code of the program."""
    inherited = (
        vars(base).get(name) for cls in classes for base in cls.__mro__
        if base.__module__ != "enum" for name in _ENUM_CODE)
    if _ENUM_CODE & namespace.keys() or any(isinstance(f, types.FunctionType) for f in inherited):
        raise graph_break("unknown-operation", "an enumeration with code of its own")
    if not all(value.is_constant or isinstance(value, (FunctionValue, DescriptorValue))
               for value in namespace.values()):
        raise graph_break("unknown-operation", "an enumeration of values that are no constants")


def _check_attributes(
    recipe: MadeClass, classes: tuple[type, ...], stand_ins: Mapping[str, object]
) -> None:
    """Break the graph if setting attributes late would make another class."""
    name, late = recipe.name, recipe.late
    if issubclass(recipe.metaclass, abc.ABCMeta) and any(
            type_lookup(type(stand_ins[key]), "__isabstractmethod__") is not MISSING
            for key in late):
        raise graph_break("unknown-operation", f"the class {name}, parts of which may be abstract")
    if any(isinstance(obj, dataclasses.Field) and _has_set_name(obj.default)
           for obj in stand_ins.values()):
        raise graph_break("unknown-operation", f"the class {name}, a field of which tells its name")
    abstract = {n for base in classes for n in getattr(base, "__abstractmethods__", ())}
    if not abstract.isdisjoint(late):
        raise graph_break("unknown-operation", f"the class {name}, which has been abstract")


def _call_set_name(
    tx: Interpreter, cls: ClassValue, key: str, obj: object, value: SymbolicValue
) -> None:
    """Interpret the `__set_name__` of an attribute."""
    function = tx.wrap_fixed(type_lookup(type(obj), "__set_name__"), "__set_name__")
    try:
        function.call(tx, [value, cls, constant(key)], {})
    except ObservedException as error:  # the error names the class
        name = cls.cls.__name__
        raise graph_break("unknown-operation", f"the class {name}: {error}") from error


def register(tx: Interpreter, model: Any, recipe: SymbolicValue) -> ClassValue:
    """Let the model stand for what the recipe makes."""
    tx.classes.made[model] = recipe
    return ClassValue(model)


def _has_set_name(obj: object) -> bool:
    teller = type_lookup(type(obj), "__set_name__")
    return teller is not MISSING and not isinstance(teller, types.MethodDescriptorType) and (
        not isinstance(obj, _TOLD_AS_IT_IS))


_TOLD_AS_IT_IS: Final = (functools.cached_property, types.DynamicClassAttribute, dataclasses.Field)
"""Types of objects whose `__set_name__` only stores the name."""


_STRUCTURE: Final = frozenset({"__slots__", "__bases__", "__class__", "__name__", "__qualname__",
                               "__dict__", "__abstractmethods__"})


@set_made_attribute.define
def _set_attribute(tx: Interpreter, model: Any, name: str, value: SymbolicValue) -> None:
    recipe = tx.classes.made[model]
    if not isinstance(recipe, MadeClass) or name in _STRUCTURE:
        raise graph_break("unknown-operation", f"setting {name!r} of a class made by a function")
    if issubclass(model, type) and hasattr(value.python_type(), "__set__"):
        raise graph_break("unknown-operation", f"a descriptor {name!r} for a metaclass made inside")
    tx.classes.stand_ins = {}
    obj = stand_in(tx, value)
    evaluate(tx, lambda: type.__setattr__(model, name, obj))
    recipe.namespace[name] = value
    if name not in recipe.late:
        recipe.late.append(name)


# -- stand-ins ------------------------------------------------------------------------------------


def stand_in(tx: Interpreter, value: SymbolicValue) -> object:
    """A real object for use in a model, which the interpreter knows as the value."""
    value = tx.force(value)
    if value.is_constant:
        return value.constant()
    real = value.real()
    if real is not MISSING:
        return real
    if value in tx.classes.stand_ins:  # of the same class
        return tx.classes.stand_ins[value]
    make = next((make for kind, make in _STAND_INS if isinstance(value, kind)), None)
    if make is None:
        raise graph_break("unknown-operation", f"{value!r} as an attribute of a class")
    substitute = tx.classes.stand_ins[value] = make(tx, value)
    if isinstance(value, SymbolicNumberValue):  # as what the class keeps
        value = SymbolicNumberValue(tx, value.example, kind=value.numpy_type)
    tx.outside.remember(substitute, value)
    return substitute


def _function(tx: Interpreter, value: Any) -> Any:
    cells = tuple(types.CellType() for _ in value.code.co_freevars)
    name = value.name.rpartition(".")[2]
    function = types.FunctionType(value.code, value.globals, name, None, cells)
    function.__qualname__ = value.name
    if value.attributes is not None:
        for key, item in value.attributes.pairs(tx):
            if item.is_constant:
                function.__dict__[key.constant()] = item.constant()
            elif key.constant() == "__isabstractmethod__":  # the metaclass asks for its truth
                raise graph_break("unknown-operation", f"{value!r}, which may be abstract")
    return function


def _descriptor(tx: Interpreter, value: Any) -> object:
    parts = [stand_in(tx, part) for part in value.parts]
    return value.kind(*parts)


def _object(tx: Interpreter, value: Any) -> object:
    if value.contents is not None or type_lookup(value.cls, "__new__") is not object.__new__:
        raise graph_break("unknown-operation", f"{value!r} as an attribute of a class")
    instance = object.__new__(value.cls)
    for key, item in value.attributes.pairs(tx):
        object.__setattr__(instance, key.constant(), stand_in(tx, item))
    for name, item in value.slots.items():
        object.__setattr__(instance, name, stand_in(tx, item))
    return instance


class _StandIn:
    """What stands for a number or tensor that is not known while capturing."""


_STAND_INS: Final[tuple[tuple[Any, Callable[[Any, Any], Any]], ...]] = (
    (FunctionValue, _function),
    (DescriptorValue, _descriptor),
    (ObjectValue, _object),
    (SymbolicNumberValue | TensorValue, lambda tx, value: _StandIn()),
    (ListValue, lambda tx, value: [stand_in(tx, item) for item in value.all(tx)]),
    (TupleValue, lambda tx, value: tuple(stand_in(tx, item) for item in value.all(tx))),
    (SetValue, lambda tx, value: {stand_in(tx, item) for item in value.entries.values()}),
    (DictValue, lambda tx, value: {stand_in(tx, key): stand_in(tx, item)
                                   for key, item in value.pairs(tx)}),
)


# -- functions that make classes ------------------------------------------------------------------


def type_of_three(tx: Interpreter, args: Args) -> SymbolicValue:
    """`type(name, bases, namespace)`"""
    name, bases, namespace = args
    if not issubclass(bases.python_type(), tuple):
        raise graph_break("unknown-operation", "making a class")
    items = _named(tx, namespace)
    if tx.frame is not None:
        module = tx.frame.globals.lookup(tx, "__name__")
        items.setdefault("__module__", module or constant(None))
    parents = tx.unpack(bases)
    metaclass = _metaclass(parents, {})
    if metaclass not in _METACLASSES:
        raise graph_break("unknown-operation", f"a class of metaclass {metaclass.__name__}")
    return make_class(tx, metaclass, name.constant(), parents, items, {})


_process: Any = vars(dataclasses)["_process_class"]


@rule(_process)
def _dataclass(tx: Interpreter, target: SymbolicValue, /, *options: SymbolicValue,
               **kwargs: SymbolicValue) -> SymbolicValue:
    """`@dataclass` on a class made inside: the real decorator is applied to the model."""
    recipe = tx.classes.made.get(target.constant()) if target.is_constant else None
    known = known_arguments(tx, options, kwargs)
    if recipe is None or known is None:
        raise graph_break("unknown-operation", f"making {target!r} a dataclass")
    processed = evaluate(tx, lambda: _process(target.constant(), *known[0], **known[1]))
    for field in vars(processed)["__dataclass_fields__"].values():
        tx.outside.forget(field)  # the decorator has completed it: it does not change any more
    in_place = processed is target.constant()
    return register(tx, processed, ProcessedClass(_process, [recipe, *options], kwargs,
                                                  in_place=in_place))


@rule(collections.namedtuple)
def _namedtuple(tx: Interpreter, /, *args: SymbolicValue, **kwargs: SymbolicValue
                ) -> SymbolicValue:
    """A new named tuple class, whose module is that of the current frame."""
    assert tx.frame is not None
    module = constant(tx.frame.globals.original.get("__name__"))
    named = {"module": module, **kwargs}
    cls = evaluate_call(tx, collections.namedtuple, args, named)
    if cls is MISSING:
        raise graph_break("unknown-operation", "a namedtuple of values that are no constants")
    return register(tx, cls, ProcessedClass(collections.namedtuple, [*args], named))
