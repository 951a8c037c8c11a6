"""Python functions and methods: calls are inlined by interpreting their byte code.

Place in the pipeline: a value family. Functions from outside and functions made inside are of one
class; functions with a rule of their own are in `RULES` (see `weft.capture.library`)::

    @rule(torch.is_grad_enabled)
    def _(tx): ...
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, final

from weft.capture.bytecode.liveness import (
    asks_for_frames,
    cannot_be_inlined,
    stops_in_debugger,
)
from weft.capture.core.base import MISSING, Args, Kwargs, SymbolicValue
from weft.capture.core.breaks import GraphBreak, graph_break
from weft.capture.core.cell import CellValue
from weft.capture.core.constant import NONE, ConstantValue, constant, evaluate, is_none
from weft.capture.core.declared import Declared
from weft.capture.core.frame import Frame
from weft.capture.core.methods import BoundBuiltin, RuledCallable
from weft.capture.core.registry import wraps
from weft.capture.core.rules import F, Rule, RuleFunction
from weft.capture.core.skips import is_library_code
from weft.capture.core.source import Source
from weft.capture.library.containers.mapping import DictValue, dictionary_of
from weft.capture.library.containers.sequences import TupleValue
from weft.quoting import assignment, keyword, literal

if TYPE_CHECKING:
    from weft.capture.core.protocols import Emitter, Interpreter

RULES: dict[int, tuple[Any, Rule]] = {}
"""Callables with a rule of their own, by id (the object is kept alive beside it)."""

CLASS_METHOD_RULES: dict[tuple[type, str], Rule] = {}
"""The same for methods of classes (`chain.from_iterable`), a new object each time one is read."""

_EMPTY: Final = (lambda: None).__code__
_SIGNATURE_FLAGS: Final = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_OPTIMIZED | (
    inspect.CO_NEWLOCALS)
_IMMUTABLE: Final = (int, float, str, bool, bytes, type(None))
_GENERATOR: Final = inspect.CO_GENERATOR
_ASYNC: Final = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR

_DESCRIPTION: Final = frozenset({"__annotations__", "__doc__", "__module__", "__name__",
                                 "__qualname__", "__type_params__"}) & {*dir(types.FunctionType)}
"""Attributes of functions that are not in their dictionaries."""

_OWN: Final = frozenset(name for name, attribute in vars(types.FunctionType).items()
                        if hasattr(attribute, "__set__"))
"""Attributes that a function has whatever its dictionary holds."""

_TYPE_OF: Final = {"__name__": str, "__qualname__": str, "__type_params__": tuple}

MARKED: list[Callable[[Any], RuleFunction | None]] = []
"""Functions that return the rule of a marked function: not to be captured, one operation, ..."""

MARKED_METHODS: list[Callable[[types.MethodType, Source], SymbolicValue | None]] = []
"""Functions that return the value of a bound method that is itself marked, not its function."""

MARKED_INSIDE: dict[str, Callable[[FunctionValue], RuleFunction]] = {}
"""By attribute: the rule of a function on which the interpreted program has set it to True."""


def rule(*functions: Any) -> Callable[[F], F]:
    """Register what a call of these functions does."""

    def register(handler: F) -> F:
        for function in functions:
            name = getattr(function, "__qualname__", None) or repr(function)
            own = Rule(handler, name, of=function)
            if isinstance(getattr(function, "__self__", None), type):
                CLASS_METHOD_RULES[(function.__self__, function.__name__)] = own
            else:
                RULES[id(function)] = (function, own)
        return handler

    return register


def python_rule(function: object) -> RuleFunction:
    """The rule that calls this Python function instead, which is interpreted like a program's."""

    def interpret(tx: Interpreter, /, *args: SymbolicValue, **kwargs: SymbolicValue
                  ) -> SymbolicValue:
        return tx.call_python(function, [*args], kwargs)

    return interpret


def polyfill(original: object, function: object) -> None:
    """Register the Python function that is interpreted in place of `original`."""
    rule(original)(python_rule(function))


def inline(tx: Interpreter, function: Any, args: Args, kwargs: Kwargs) -> SymbolicValue:
    """Interpret the code of a function of Python, even if it has a rule."""
    value = tx.wrap_fixed(function, function.__qualname__)
    assert isinstance(value, FunctionValue)
    return value.inline(tx, args, kwargs)


def rule_of(function: Any) -> Rule | None:
    """The rule of a C function."""
    own = RULES.get(id(function))
    if own is not None:
        return own[1]
    owner = getattr(function, "__self__", None)
    if isinstance(owner, type):
        return CLASS_METHOD_RULES.get((owner, function.__name__))
    return None


@final
class FunctionValue(SymbolicValue):
    """A Python function."""

    __slots__ = ("attributes", "closure", "code", "defaults", "described", "globals", "kwdefaults",
                 "name", "original", "weakly_held")
    kind = types.FunctionType

    def __init__(
        self, code: types.CodeType, globals: dict[str, Any], name: str, *,
        closure: list[CellValue], defaults: list[SymbolicValue],
        kwdefaults: dict[str, SymbolicValue], source: Source | None = None,
        original: Any = MISSING,
    ) -> None:
        super().__init__(source)
        self.code = code
        self.globals = globals
        self.name = name
        self.closure = closure
        self.defaults = defaults
        self.kwdefaults = kwdefaults
        self.original = original
        self.attributes: DictValue | None = None
        self.described: dict[str, SymbolicValue] = {}
        """Attributes of `_DESCRIPTION` that were set."""
        self.weakly_held = False

    def own_attributes(self) -> DictValue | None:
        return self.attributes

    def dict_key(self, tx: Interpreter) -> object:
        return self if self.original is MISSING else tx.identities.key(self, self.original)

    def __repr__(self) -> str:
        return f"function {self.name}"

    # -- calls ------------------------------------------------------------------------------------

    def call(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        if self.original is not MISSING:
            own = RULES.get(id(self.original))
            if own is not None:
                tx.direct_call = False
                return own[1].call((tx,), args, kwargs)
            for rule_of_mark in MARKED:
                marked = rule_of_mark(self.original)
                if marked is not None:
                    tx.direct_call = False
                    return marked(tx, *args, **kwargs)
        if self.attributes is not None:
            for name, rule_of_attribute in MARKED_INSIDE.items():
                if self._is_marked(tx, name):
                    tx.direct_call = False
                    return rule_of_attribute(self)(tx, *args, **kwargs)
        return self.inline(tx, args, kwargs)

    def _is_marked(self, tx: Interpreter, name: str) -> bool:
        """Whether the attribute is True by now."""
        assert self.attributes is not None
        mark = self.attributes.lookup(tx, name)
        return isinstance(mark, ConstantValue) and mark.value is True

    def inline(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        """Interpret the function's code, even if it has a rule."""
        direct, tx.direct_call = tx.direct_call, False
        called_here, tx.frames_left_out = direct and not tx.frames_left_out, False
        if self.code.co_flags & _ASYNC:
            raise graph_break("unknown-operation", f"the asynchronous function {self.name}")
        if stops_in_debugger(self.code):
            raise graph_break("debugger", f"{self.name} stops in a debugger")
        if cannot_be_inlined(self.code):
            raise graph_break("skipped-function", f"{self.name} looks into its own frame")
        frame = self.frame(tx, args, kwargs)
        if self.code.co_flags & _GENERATOR:
            generator = make_generator(frame, self)
            tx.early_ends.note_generator(tx, generator)
            return generator
        frame.called_here = called_here
        frame.resumable = direct and not asks_for_frames(self.code)
        return tx.run_inlined(frame, self, args, kwargs)

    def frame(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> Frame:
        """A frame with the arguments bound."""
        locals = self.bind(tx, args, kwargs)
        code = self.code
        cells = dict(zip(code.co_freevars, self.closure, strict=True))
        tx.guards.interpret(code, self.globals)
        return Frame(code, tx.globals_of(self.globals), locals, cells, tx.frame)

    def bind(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> dict[str, SymbolicValue]:
        """The variables that the arguments are bound to, as CPython binds them."""
        code = self.code
        names = code.co_varnames
        n_args, n_kwonly = code.co_argcount, code.co_kwonlyargcount
        bound = dict(zip(names[:n_args], args, strict=False))
        extra = args[n_args:]
        after = n_args + n_kwonly
        if code.co_flags & inspect.CO_VARARGS:
            bound[names[after]] = TupleValue(extra)
            after += 1
        elif extra:
            raise self._refusal(tx, args, kwargs)
        rest: DictValue | None = None
        if code.co_flags & inspect.CO_VARKEYWORDS:
            rest = DictValue()
            bound[names[after]] = rest
        if not (self._bind_keywords(tx, bound, kwargs, rest) and self._bind_defaults(bound)):
            raise self._refusal(tx, args, kwargs)
        return bound

    def _refusal(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> GraphBreak:
        """Raise Python's own TypeError for these arguments."""
        code = self.code
        empty = code.replace(co_code=_EMPTY.co_code, co_consts=_EMPTY.co_consts,
                             co_exceptiontable=b"", co_flags=code.co_flags & _SIGNATURE_FLAGS)
        model = types.FunctionType(empty, {}, self.name, (None,) * len(self.defaults),
                                   tuple(types.CellType() for _ in code.co_freevars))
        model.__qualname__ = self.name
        model.__kwdefaults__ = dict.fromkeys(self.kwdefaults)
        evaluate(tx, lambda: model(*[None] * len(args), **dict.fromkeys(kwargs)))
        return graph_break("unknown-operation", f"the arguments of {self.name}")

    def _bind_keywords(self, tx: Interpreter, bound: dict[str, SymbolicValue], kwargs: Kwargs,
                       rest: DictValue | None) -> bool:
        code = self.code
        first = code.co_posonlyargcount
        allowed = code.co_varnames[first: code.co_argcount + code.co_kwonlyargcount]
        for name, value in kwargs.items():
            if name in allowed:
                if name in bound:
                    return False
                bound[name] = value
            elif rest is not None:
                rest.store(tx, name, constant(name), value)
            else:
                return False
        return True

    def _bind_defaults(self, bound: dict[str, SymbolicValue]) -> bool:
        code = self.code
        names = code.co_varnames
        first = code.co_argcount - len(self.defaults)
        for index in range(code.co_argcount):
            name = names[index]
            if name not in bound:
                if index < first:
                    return False
                bound[name] = self.defaults[index - first]
        for name in names[code.co_argcount: code.co_argcount + code.co_kwonlyargcount]:
            if name not in bound:
                if name not in self.kwdefaults:
                    return False
                bound[name] = self.kwdefaults[name]
        return True

    # -- attributes -------------------------------------------------------------------------------

    def _dict(self, tx: Interpreter) -> DictValue:
        if self.attributes is None:
            if self.original is MISSING:
                self.attributes = DictValue()
            else:
                assert self.source is not None
                self.attributes = DictValue(self.source.instance_dict(), self.original.__dict__)
        return self.attributes

    def getattr(self, tx: Interpreter, name: str) -> SymbolicValue:
        value = self.described.get(name)
        if value is None and name not in _OWN:
            value = self._dict(tx).lookup(tx, name)
        if value is not None:
            return value
        read = _ATTRIBUTES.get(name)
        if read is not None:
            return read(self, tx)
        if name in ("__code__", "__name__", "__qualname__", "__module__", "__doc__"):
            return self._description(tx, name)
        if self.original is MISSING:
            return self._attribute_made_inside(tx, name)
        if hasattr(self.original, name):
            assert self.source is not None
            own = _method_in_c(tx, self, name)
            if own is not None:
                return own
            return tx.wrap(getattr(self.original, name), self.source.attribute(name))
        raise _no_attribute(tx, name)

    def _attribute_made_inside(self, tx: Interpreter, name: str) -> SymbolicValue:
        """An attribute of a function made inside that was not set."""
        if name == "__annotations__":
            return self.described.setdefault(name, DictValue())
        if name == "__type_params__" and name in _DESCRIPTION:
            return TupleValue([])
        if name == "__kwdefaults__" and tx.frame is not None and is_library_code(tx.frame.code):
            return self._keyword_defaults(tx)  # `inspect` only reads them
        if any(name in vars(cls) for cls in types.FunctionType.__mro__):
            raise graph_break("unknown-operation", f"{name} of a function made inside")
        raise _no_attribute(tx, name)

    def _keyword_defaults(self, tx: Interpreter) -> SymbolicValue:
        return dictionary_of(tx, self.kwdefaults) if self.kwdefaults else constant(None)

    def _description(self, tx: Interpreter, name: str) -> SymbolicValue:
        if self.original is not MISSING:
            return tx.wrap_new(getattr(self.original, name))
        texts = {"__name__": self.name.rpartition(".")[2], "__qualname__": self.name,
                 "__module__": self.globals.get("__name__"), "__doc__": _docstring(self.code)}
        return ConstantValue(self.code) if name == "__code__" else constant(texts[name])

    def setattr(self, tx: Interpreter, name: str, value: SymbolicValue) -> None:
        if name in ("__closure__", "__globals__", "__builtins__"):
            raise tx.error(AttributeError, "readonly attribute")
        if name in ("__code__", "__defaults__", "__kwdefaults__", "__dict__"):
            raise graph_break("unknown-operation", f"changing {name} of a function")
        if value.python_type() is not _TYPE_OF.get(name, value.python_type()):
            raise graph_break("unknown-operation", f"{name} of another type than it has to be of")
        if name in _DESCRIPTION:
            self.described[name] = value
            if self.original is not MISSING:
                tx.effects.touch(self)
            return
        self._dict(tx).setitem(tx, constant(name), value)

    def replay(self, emit: Emitter) -> None:
        """Write back the attributes that were set on an outside function."""
        target = emit.value(self)
        for name, value in self.described.items():
            emit.line(assignment(target, name, emit.value(value)))

    def rebuild(self, emit: Emitter) -> str:
        closure = "".join(f"{emit.value(cell)}, " for cell in self.closure)
        defaults = "".join(f"{emit.value(value)}, " for value in self.defaults)
        default_tuple = f"({defaults})" if defaults else "None"
        make = emit.constant(types.FunctionType)
        text = (f"{make}({emit.constant(self.code)}, {emit.constant(self.globals)}, "
                f"{literal(self.name.rpartition('.')[2])}, {default_tuple}, ({closure}))")
        name = emit.bind(self, text)
        emit.line(f"{name}.__qualname__ = {literal(self.name)}")
        if self.kwdefaults:
            items = ", ".join(f"{literal(k)}: {emit.value(v)}" for k, v in self.kwdefaults.items())
            emit.line(f"{name}.__kwdefaults__ = {{{items}}}")
        for attribute, value in self.described.items():
            emit.line(assignment(name, attribute, emit.value(value)))
        attributes = self.attributes
        if attributes is not None and attributes.truth(emit.tx):
            emit.later(lambda: attributes.fill(emit, f"{name}.__dict__[{{}}] = {{}}"))
        return name


_ATTRIBUTES: Final[dict[str, Callable[[FunctionValue, Interpreter], SymbolicValue]]] = {
    "__dict__": lambda function, tx: function._dict(tx),
    "__get__": lambda function, tx: MethodGetter(function),
    "__class__": lambda function, tx: tx.wrap_fixed(types.FunctionType, "function"),
    "__defaults__": lambda function, tx: _tuple_or_none(function.defaults),
    "__globals__": lambda function, tx: tx.globals_of(function.globals),
    "__closure__": lambda function, tx: _tuple_or_none(function.closure),
}
"""Attributes that functions made outside and inside have in the same way."""


def _tuple_or_none(items: Sequence[SymbolicValue]) -> SymbolicValue:
    return TupleValue(list(items)) if items else constant(None)


def _no_attribute(tx: Interpreter, name: str) -> Exception:
    return tx.error(AttributeError, f"'function' object has no attribute '{name}'")


def _docstring(code: types.CodeType) -> str | None:
    """The docstring of a function with this code."""
    first = code.co_consts[0] if code.co_consts else None  # None there if there is no docstring
    return first if isinstance(first, str) else None


make_generator: Declared[[Frame, FunctionValue], SymbolicValue] = Declared()
"""The generator of a frame that has not begun, of a generator function."""


def _method_in_c(tx: Interpreter, value: SymbolicValue, name: str) -> SymbolicValue | None:
    """`value.__call__`, `value.__eq__`, ... of a function or method: a new object each time."""
    method = getattr(value.python_type(), name, None)
    if not isinstance(method, types.WrapperDescriptorType):
        return None
    return BoundMethodValue(value, tx.wrap_fixed(method, name))


_METHOD: Final[Any] = types.MethodType(lambda owner: owner, 1)
_IS_REBOUND: Final = _METHOD.__get__(2)() == 2
"""Whether `__get__` of a method gives a method of another object (before CPython 3.13)."""


@final
class MethodGetter(RuledCallable):
    """`__get__` of a function or a method."""

    __slots__ = ("function",)

    def __init__(self, function: SymbolicValue) -> None:
        super().__init__()
        self.function = function

    def m___call__(self, tx: Interpreter, instance: SymbolicValue, owner: SymbolicValue = NONE, /
                   ) -> SymbolicValue:
        if isinstance(self.function, BoundMethodValue):
            return self.function
        if is_none(instance):
            if is_none(owner):
                raise graph_break("unknown-operation", "__get__ of no object and no class")
            return self.function
        return BoundMethodValue(instance, self.function)


@final
class BoundMethodValue(SymbolicValue):
    """`owner.function`."""

    __slots__ = ("function", "owner")

    def __init__(self, owner: SymbolicValue, function: SymbolicValue,
                 source: Source | None = None) -> None:
        super().__init__(source)
        self.owner = owner
        self.function = function

    def python_type(self) -> type:
        return _BOUND.get(type(self.function.real()), types.MethodType)

    def call(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        return self.function.call(tx, [self.owner, *args], kwargs)

    def dict_key(self, tx: Interpreter) -> object:
        return ("method", self.owner.dict_key(tx), self.function.dict_key(tx))

    def getattr(self, tx: Interpreter, name: str) -> SymbolicValue:
        if name == "__self__":
            return self.owner
        if name == "__func__":
            return self.function
        if name == "__class__":
            return tx.wrap_fixed(self.python_type(), "method")
        if name == "__get__" and not _IS_REBOUND:
            return MethodGetter(self)
        own = _method_in_c(tx, self, name) if name != "__get__" else None
        return self.function.getattr(tx, name) if own is None else own

    def binary(self, tx: Interpreter, op: str, other: SymbolicValue, reflected: bool) -> Any:
        if op in ("eq", "ne") and isinstance(other, BoundMethodValue):
            same = tx.same(self.owner, other.owner) and tx.same(self.function, other.function)
            return constant(same is (op == "eq"))
        return None

    def rebuild(self, emit: Emitter) -> str:
        if self.python_type() is not types.MethodType:
            owner, kind = emit.value(self.owner), emit.constant(type)
            return emit.bind(self, f"{emit.value(self.function)}.__get__({owner}, {kind}({owner}))")
        function, owner = emit.value(self.function), emit.value(self.owner)
        if not any("__call__" in base.__dict__ for base in self.function.python_type().__mro__):
            bound = f"{emit.constant(classmethod)}({function}).__get__(None, {owner})"
            return emit.bind(self, bound)  # what MethodType refuses
        return emit.bind(self, f"{emit.constant(types.MethodType)}({function}, {owner})")

    def __repr__(self) -> str:
        return f"method {self.function!r} of {self.owner!r}"


_BOUND: Final[dict[type, type]] = {
    types.WrapperDescriptorType: types.MethodWrapperType,
    types.MethodDescriptorType: types.BuiltinMethodType,
}
"""Makes bound methods of C types."""


@final
class PartialValue(SymbolicValue):
    """A functools.partial."""

    __slots__ = ("args", "attributes", "function", "keywords", "original")
    kind = functools.partial

    def __init__(self, function: SymbolicValue, args: Args, keywords: Kwargs,
                 source: Source | None = None, original: Any = MISSING) -> None:
        super().__init__(source)
        self.function = function
        self.args = args
        self.keywords = keywords
        self.original = original
        self.attributes = DictValue()

    def own_attributes(self) -> DictValue:
        return self.attributes

    def setattr(self, tx: Interpreter, name: str, value: SymbolicValue) -> None:
        if self.original is not MISSING or name in ("func", "args", "keywords"):
            raise graph_break("unknown-operation", f"setting {name!r} of a partial")
        self.attributes.setitem(tx, constant(name), value)

    def call(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        return self.function.call(tx, [*self.args, *args], {**self.keywords, **kwargs})

    def getattr(self, tx: Interpreter, name: str) -> SymbolicValue:
        if name == "func":
            return self.function
        if name == "args":
            return TupleValue(self.args)
        if name == "keywords":
            return dictionary_of(tx, self.keywords)
        value = self.attributes.lookup(tx, name)
        if value is not None:
            return value
        raise tx.error(AttributeError, f"'functools.partial' object has no attribute '{name}'")

    def method(self, tx: Interpreter, name: str, args: Args, kwargs: Kwargs) -> SymbolicValue:
        return self.call(tx, args, kwargs) if name == "__call__" else super().method(
            tx, name, args, kwargs)

    def has_member(self, attribute: Any) -> bool:
        """Whether what a class defines is `func`, `args` or `keywords` of partials, not an
        attribute of a subclass."""
        return attribute in _MEMBERS

    def arguments(self, emit: Emitter) -> str:
        """The arguments of the call that makes it, as Python text."""
        return ", ".join([emit.value(self.function), *(emit.value(a) for a in self.args),
                          *(keyword(k, emit.value(v)) for k, v in self.keywords.items())])

    def rebuild(self, emit: Emitter) -> str:
        name = emit.bind(self, f"{emit.constant(functools.partial)}({self.arguments(emit)})")
        emit.later(lambda: self.attributes.fill(emit, f"{name}.__dict__[{{}}] = {{}}"))
        return name


_MEMBERS: Final = tuple(vars(functools.partial)[name] for name in ("func", "args", "keywords"))


# -- objects from outside -------------------------------------------------------------------------


@wraps(types.FunctionType)
def wrap_function(tx: Interpreter, obj: Any, source: Source | None) -> SymbolicValue:
    """A function from outside, guarded by identity or at least by its code."""
    if source is None:
        source = tx.tree.object(obj, obj.__qualname__)
    fixed = source.is_fixed or _guard_function(tx, obj, source)
    if fixed:
        tx.guards.function(obj)
    closure = [
        CellValue.outside(tx, cell, source.attribute("__closure__").tuple_item(i), name)
        for i, (cell, name) in enumerate(
            zip(obj.__closure__ or (), obj.__code__.co_freevars, strict=True))
    ]
    if not fixed:
        tx.guards.add(source.attribute("__defaults__"), *_length(obj.__defaults__))
        tx.guards.add(source.attribute("__kwdefaults__"), *_length(obj.__kwdefaults__))
    defaults = [_default(tx, value, source.attribute("__defaults__").tuple_item(i), fixed)
                for i, value in enumerate(obj.__defaults__ or ())]
    kwdefaults = {
        name: _default(tx, value, source.attribute("__kwdefaults__").dict_item(name), fixed)
        for name, value in (obj.__kwdefaults__ or {}).items()
    }
    return FunctionValue(obj.__code__, obj.__globals__, obj.__qualname__, closure=closure,
                         defaults=defaults, kwdefaults=kwdefaults, source=source, original=obj)


def _guard_function(tx: Interpreter, obj: Any, source: Source) -> bool:
    """Guard the function itself or, if each call makes a new one, its code."""
    replaced = tx.policy.is_replaced(source.name, obj)
    if not replaced and not _is_made_anew(obj, source):
        tx.guards.add(source, "is", obj)
        return True
    tx.guards.add(source, "type_is", types.FunctionType)
    tx.guards.add(source.attribute("__code__"), "is", obj.__code__)
    return False


def _is_made_anew(obj: types.FunctionType, source: Source) -> bool:
    """Whether the function was made by the function that holds it in a variable."""
    kept = source.accessor[0] in ("dict_item", "attr") and source.accessor[1] != "cell_contents"
    nested = obj.__code__.co_flags & inspect.CO_NESTED
    return not kept and bool(nested or obj.__closure__ or obj.__defaults__ or obj.__kwdefaults__)


def _length(defaults: Any) -> tuple[str, object]:
    return ("is", None) if defaults is None else ("len", len(defaults))


def _default(tx: Interpreter, value: object, source: Source, fixed: bool) -> SymbolicValue:
    if fixed and type(value) in _IMMUTABLE:
        return constant(value)
    return tx.wrap(value, source)


@wraps(types.MethodType)
def _wrap_method(tx: Interpreter, obj: Any, source: Source | None) -> SymbolicValue:
    if source is None:
        source = tx.tree.object(obj, obj.__qualname__)
    tx.guards.add(source, "type_is", types.MethodType)
    for rule_of_mark in MARKED_METHODS:
        marked = rule_of_mark(obj, source)
        if marked is not None:
            tx.guards.identity(source, obj)
            return marked
    function = tx.wrap(obj.__func__, source.attribute("__func__"))
    owner = tx.wrap(obj.__self__, source.attribute("__self__"))
    if owner.has_rules:
        return BoundBuiltin(owner, obj.__name__)
    return BoundMethodValue(owner, function, source)


@wraps(functools.partial)
def _wrap_partial(tx: Interpreter, obj: Any, source: Source | None) -> SymbolicValue:
    if source is None:
        source = tx.tree.object(obj, "partial")
    tx.guards.add(source, "type_is", functools.partial)
    return outside_partial(tx, obj, source)


def outside_partial(tx: Interpreter, obj: functools.partial[Any], source: Source) -> PartialValue:
    """The partial that an object from outside is, perhaps of a subclass, which may have attributes
    of the same names."""
    function, args, keywords = (
        source.attribute(member.__name__) if type(obj) is functools.partial
        else source.call(member.__get__, f"partial.{member.__name__} of {source.name}")
        for member in _MEMBERS)
    known = tuple(member.__get__(obj) for member in _MEMBERS)
    tx.guards.add(args, "len", len(known[1]))
    tx.guards.add(keywords, "dict_keys", tuple(known[2]))
    return PartialValue(
        tx.wrap(known[0], function),
        [tx.wrap(a, args.tuple_item(i)) for i, a in enumerate(known[1])],
        {k: tx.wrap(v, keywords.dict_item(k)) for k, v in known[2].items()}, source, obj)
