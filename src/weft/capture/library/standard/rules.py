"""Rules for the standard library: lru_cache, copy, weakref, contextvars, inspect, ...

Place in the pipeline: see `weft.capture.library`.
"""

from __future__ import annotations

import contextvars
import functools
import gc
import inspect
import sys
import threading
import types
import typing
import weakref
from typing import TYPE_CHECKING, Any, Final, final

from weft.capture.core.base import MISSING, Args, Kwargs, OutsideObject, SymbolicValue
from weft.capture.core.breaks import ObservedException, SkipFrame, graph_break
from weft.capture.core.constant import FALSE, NONE, ONE, constant, evaluate, is_none, python_object
from weft.capture.core.lifetimes import holds_itself, is_held
from weft.capture.core.methods import MethodTable
from weft.capture.core.registry import wraps
from weft.capture.core.rules import RuleFunction, breaking, passed
from weft.capture.core.source import Source, is_library
from weft.capture.guards.identity_guards import WEAK
from weft.capture.library.classes.attributes import type_lookup
from weft.capture.library.classes.classes import (
    ClassValue,
    constructor,
    python_constructor,
)
from weft.capture.library.classes.instances import ObjectValue
from weft.capture.library.containers.mapping import DictValue
from weft.capture.library.containers.sequences import TupleValue
from weft.capture.library.exceptions.exceptions import (
    new_exception,
    nothing_handled_outside,
    traceback_of,
)
from weft.capture.library.functions.functions import (
    MARKED,
    BoundMethodValue,
    FunctionValue,
    inline,
    rule,
)
from weft.capture.library.numbers.identities import RunTimeNumber
from weft.capture.library.numbers.symbolic_numbers import SymbolicNumberValue
from weft.capture.library.standard.twin_polyfills import twin
from weft.storable import storable

if TYPE_CHECKING:
    from weft.capture.core.protocols import Emitter, Interpreter


@final
class CachedFunctionValue(OutsideObject):
    """A functools.lru_cache wrapper from outside."""

    __slots__ = ("results",)

    def __init__(self, object: Any, source: Source | None) -> None:
        super().__init__(object, source)
        self.results: dict[Any, tuple[SymbolicValue, Args]] = {}
        """What it has returned, by the arguments' keys, which live as long as the arguments."""

    def __repr__(self) -> str:
        return f"cached function {self._name()}"

    def _name(self) -> str:
        return getattr(self.object, "__qualname__", "function")

    def _function(self, tx: Interpreter) -> SymbolicValue:
        inner = getattr(self.object, "__wrapped__", None)
        if inner is None:
            raise graph_break("unknown-c-function", "a cached function without __wrapped__")
        return tx.wrap_fixed(inner, self._name())

    def call(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        """On constants the real function answers, from its cache; otherwise the function is
        inlined, once for each key."""
        args = [tx.force(arg) for arg in args]
        key = (*map(_key, args), *((name, _key(tx.force(value))) for name, value in kwargs.items()))
        if key not in self.results:
            answer = self._on_constants if all(
                _immutable(value) for value in (*args, *kwargs.values())) else self._inlined
            self.results[key] = (answer(tx, args, kwargs), args)
        return self.results[key][0]

    @storable
    def _on_constants(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        """What the real function returns; later calls ask it again, since the program may clear
        the cache."""
        objects = [arg.constant() for arg in args]
        named = {name: value.constant() for name, value in kwargs.items()}
        result = evaluate(tx, lambda: self.object(*objects, **named))
        if is_library(self.object.__module__):
            plain = isinstance(result, (int, float, str, bool, bytes, tuple, type(None)))
            return tx.wrap_new(result) if plain else tx.wrap_fixed(result, f"{self._name()}()")
        place = self.source or tx.tree.object(self.object, self._name())
        return tx.wrap(result, place.call(
            lambda function: function(*objects, **named), f"{self._name()}()"))

    def _inlined(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        """Inline the body; breaks the graph at side effects, which should happen once for each
        key."""
        tx.direct_call = False  # a break inside becomes one at the call
        touches = tx.effects.n_touches
        result = self._function(tx).call(tx, args, kwargs)
        if tx.effects.n_touches != touches:
            raise graph_break("cached-function", f"the body of {self._name()} has side effects")
        return result

    def getattr(self, tx: Interpreter, name: str) -> SymbolicValue:
        if name == "__wrapped__":
            return self._function(tx)
        raise graph_break("unknown-operation", f"{name} of a cached function")


def _key(value: SymbolicValue) -> object:
    """What tells a value from others: the constant, the expression of a number, or which it is."""
    if isinstance(value, SymbolicNumberValue):
        return value.python_type(), value.example.node.value
    if _immutable(value):
        return value.python_type(), value.constant()
    return id(value)


def _immutable(value: SymbolicValue) -> bool:
    return value.is_constant and value.python_type().__hash__ is not None


python_constructor(functools._lru_cache_wrapper, twin(functools, "_lru_cache_wrapper"))


@wraps(functools._lru_cache_wrapper)
def _wrap_cached(tx: Interpreter, obj: object, source: Source | None) -> SymbolicValue:
    tx.guards.identity(source, obj)
    return CachedFunctionValue(obj, source)


@final
class WeakReferenceValue(SymbolicValue):
    """A weakref.ref; calling it returns the object. One made inside has `target` and `callback`."""

    __slots__ = ("callback", "reference", "target")

    def __init__(self, reference: Any, source: Source | None,
                 target: SymbolicValue = NONE, callback: SymbolicValue = NONE) -> None:
        super().__init__(source)
        self.reference = reference
        self.target = target
        self.callback = callback

    def dict_key(self, tx: Interpreter) -> object:
        if self.source is not None:
            return self.reference
        obj = self.target.real()
        if obj is MISSING or isinstance(type(obj).__eq__, types.FunctionType):
            return (WEAK, self.target.dict_key(tx))
        return weakref.ref(tx.identities.key(self.target, obj))

    def binary(self, tx: Interpreter, op: str, other: SymbolicValue, reflected: bool) -> Any:
        if op not in ("eq", "ne") or not isinstance(other, WeakReferenceValue):
            return None
        objects = self.call(tx, [], {}), other.call(tx, [], {})
        dead = any(map(is_none, objects))  # such references are compared by identity
        same = tx.same(self, other) if dead else tx.equal(*objects)
        return constant(same is (op == "eq"))

    def rebuild(self, emit: Emitter) -> str:
        parts = [emit.value(self.target)]
        if self.callback is not NONE:
            parts.append(emit.value(self.callback))
        return emit.bind(self, f"{emit.constant(weakref.ref)}({', '.join(parts)})")

    def python_type(self) -> type:
        return weakref.ref if self.reference is MISSING else type(self.reference)

    def real(self) -> Any:
        return self.reference

    def call(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        if args or kwargs:
            raise graph_break("unknown-operation", "arguments of a weak reference")
        if self.source is None:
            if self.target.real() is MISSING and not is_held(tx, self.target):
                if holds_itself(tx, self.target):
                    raise graph_break("unknown-operation", "a weak reference into a cycle")
                return NONE
            _still_held(tx, self.target.real())
            return self.target
        place = self.source.call(_dereference, f"{self.source.name}()")
        return tx.wrap(_still_held(tx, self.reference()), place)


def _still_held(tx: Interpreter, obj: object) -> object:
    """The object of a weak reference; a graph break if the frame has just deleted its variable."""
    if any(obj is deleted for deleted in tx.lifetimes.deleted):
        raise graph_break("watched-object", f"a weak reference to a deleted {type(obj).__name__}")
    return obj


@constructor(weakref.ref, weakref.KeyedRef)
def _make_reference(tx: Interpreter, cls: type, target: SymbolicValue,
                    callback: SymbolicValue = NONE, key: SymbolicValue = NONE, /
                    ) -> SymbolicValue:
    watched = target.source is None and not is_none(callback)
    if cls is not weakref.ref:
        raise graph_break("watched-object" if watched else "unknown-operation",
                          f"a {cls.__name__} to {target!r}")
    if watched:
        tx.watch(target)
    if (target.is_constant and target.real() is MISSING) or (
            not target.python_type().__weakrefoffset__):
        raise graph_break("unknown-operation", f"a weak reference to {target!r}")
    if isinstance(target, ObjectValue | FunctionValue):
        target.weakly_held = True
    return WeakReferenceValue(MISSING, None, target, callback)


def _dereference(reference: Any) -> object:
    return reference()


@wraps(weakref.ref, weakref.KeyedRef)
def _wrap_reference(tx: Interpreter, obj: object, source: Source | None) -> SymbolicValue:
    if source is None:
        raise graph_break("unknown-value", "a weak reference made inside")
    tx.guards.add(source, "type_is", type(obj))
    return WeakReferenceValue(obj, source)


@final
class ContextVariableValue(MethodTable):
    """A contextvars.ContextVar: reads are guarded, writes are side effects."""

    __slots__ = ("current", "variable", "written")
    kind = contextvars.ContextVar

    def __init__(self, variable: contextvars.ContextVar[Any], source: Source) -> None:
        super().__init__(source)
        self.variable = variable
        self.current: SymbolicValue | None = None
        self.written = False

    def real(self) -> Any:
        return self.variable

    def _read(self, tx: Interpreter) -> SymbolicValue | None:
        if self.current is None and not self.written:
            assert self.source is not None
            source = self.source.call(_context_value, f"{self.variable.name}.get()")
            value = self.variable.get(_UNSET)
            self.current = tx.wrap(value, source) if value is not _UNSET else None
            if value is _UNSET:
                tx.guards.add(source, "is", _UNSET)
        return self.current

    def m_get(self, tx: Interpreter, default: SymbolicValue | None = None, /) -> SymbolicValue:
        value = self._read(tx)
        if value is not None:
            return value
        if default is not None:
            return default
        own = _context_default(self.variable)
        if own is _UNSET:
            raise ObservedException(new_exception(LookupError, [self]))
        return tx.wrap_fixed(own, f"the default of {self.variable.name}")

    def m_set(self, tx: Interpreter, value: SymbolicValue, /) -> SymbolicValue:
        token = TokenValue(self, self._read(tx), self.written)
        self._write(tx, value, True)
        return token

    def m_reset(self, tx: Interpreter, token: SymbolicValue, /) -> SymbolicValue:
        if not isinstance(token, TokenValue):
            raise graph_break("unknown-operation", "a ContextVar token from outside")
        if token.variable is not self or token.used:
            raise graph_break("unknown-operation", "a ContextVar token of another, or used twice")
        token.used = True
        self._write(tx, token.old, token.was_written)
        return NONE

    def _write(self, tx: Interpreter, value: SymbolicValue | None, written: bool) -> None:
        self.current = value
        self.written = written
        tx.effects.touch(self)

    def replay(self, emit: Emitter) -> None:
        if self.written and self.current is not None:
            emit.line(f"{emit.value(self)}.set({emit.value(self.current)})")


class _Unset:
    pass


_UNSET = _Unset()


def _context_value(variable: contextvars.ContextVar[Any]) -> object:
    return variable.get(_UNSET)


def _context_default(variable: contextvars.ContextVar[Any]) -> object:
    """The variable's value if nobody has set it."""
    try:
        return contextvars.Context().run(variable.get)
    except LookupError:
        return _UNSET


@final
class TokenValue(SymbolicValue):
    """The result of ContextVar.set."""

    __slots__ = ("old", "used", "variable", "was_written")
    kind = contextvars.Token

    def __init__(self, variable: SymbolicValue, old: SymbolicValue | None, was_written: bool
                 ) -> None:
        super().__init__()
        self.variable = variable
        self.used = False
        self.old = old
        self.was_written = was_written


@wraps(contextvars.ContextVar)
def _wrap_context_variable(tx: Interpreter, obj: Any, source: Source | None) -> SymbolicValue:
    tx.guards.identity(source, obj)
    return ContextVariableValue(obj, source or tx.tree.object(obj, obj.name))


@final
class OpaqueValue(OutsideObject):
    """An object that is only passed on or compared by identity (typing objects, ...)."""

    __slots__ = ()
    is_constant = True

    def constant(self) -> Any:
        return self.object

    def dict_key(self, tx: Interpreter) -> object:
        return self.object

    def getattr(self, tx: Interpreter, name: str) -> SymbolicValue:
        attribute = getattr(self.object, name, MISSING)
        if attribute is MISSING:
            raise tx.error(AttributeError, name)
        return tx.wrap_fixed(attribute, name)

    def getitem(self, tx: Interpreter, key: SymbolicValue) -> SymbolicValue:
        """`typing.List[int]`, evaluated now; typing reads the frames of its callers."""
        parameters, form = python_object(tx, key), self.object
        if parameters is MISSING or not isinstance(self.object, _TYPING):
            return super().getitem(tx, key)
        return tx.wrap_fixed(evaluate(tx, lambda: form[parameters]), "generic")

    def call(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        """`Node[int](3)`: an instance that refers to the generic alias."""
        kind = type(self.object)
        caller = type_lookup(kind, "__call__")
        if isinstance(caller, types.FunctionType):
            return tx.call_python(caller, [self, *args], kwargs)
        if kind is not types.GenericAlias:
            return super().call(tx, args, kwargs)
        origin = typing.get_origin(self.object)
        instance = tx.force(tx.wrap_fixed(origin, "origin").call(tx, args, kwargs))
        if isinstance(instance, ObjectValue):
            try:
                instance.setattr(tx, "__orig_class__", self)
            except ObservedException as error:
                if not issubclass(error.value.python_type(), (AttributeError, TypeError)):
                    raise
        return instance


def _with_subclasses(cls: type) -> set[type]:
    return {cls}.union(*map(_with_subclasses, cls.__subclasses__()))


_FORMS = sorted(_with_subclasses(typing._Final), key=lambda cls: cls.__name__)
_TYPING = (types.GenericAlias, types.UnionType, *_FORMS)
"""Classes of objects in annotations: `Union`, `List`, `List[int]`."""
_OPAQUE = (*_TYPING, type(typing.Any), typing.TypeVar, typing.TypeVarTuple, typing.ParamSpec,
           types.CodeType, type(sys.flags))


@wraps(*_OPAQUE)
def _wrap_opaque(tx: Interpreter, obj: object, source: Source | None) -> SymbolicValue:
    tx.guards.identity(source, obj)
    return OpaqueValue(obj, source)


_DISPATCH: Final = functools.singledispatch(lambda obj: obj).dispatch.__code__


def _dispatch_rule(function: Any) -> RuleFunction | None:
    """The rule of a `dispatch` function of functools.singledispatch, whose table is guarded."""
    if function.__code__ is not _DISPATCH:
        return None

    def dispatch(tx: Interpreter, /, *args: SymbolicValue, **kwargs: SymbolicValue
                 ) -> SymbolicValue:
        cells = dict(zip(function.__code__.co_freevars, function.__closure__, strict=True))
        registry = cells["registry"].cell_contents
        cache = cells["dispatch_cache"].cell_contents
        if type(cache) is not weakref.WeakKeyDictionary or any(  # a cache that the program watches
                isinstance(changed, DictValue) and changed.real() is registry
                for changed in tx.effects.touched()):
            return inline(tx, function, [*args], kwargs)
        chosen = evaluate(tx, lambda: function(args[0].constant()))
        source = tx.tree.object(registry, "singledispatch.registry")
        tx.guards.add(source, "dict_keys", tuple(registry))
        for kind, implementation in registry.items():
            if implementation is chosen:
                tx.guards.add(source.dict_item(kind), "is", chosen)
        return tx.wrap_fixed(chosen, getattr(chosen, "__qualname__", "implementation"))

    return dispatch


MARKED.append(_dispatch_rule)


@rule(sys.exception)
def _exception(tx: Interpreter) -> SymbolicValue:
    return _exc_info(tx).getitem(tx, constant(1))


_shadowed_dict: Any = vars(inspect)["_shadowed_dict"]  # of protocols' instance checks


@rule(_shadowed_dict)
def _find_shadowed_dict(tx: Interpreter, cls: SymbolicValue, /) -> SymbolicValue:
    """A `__dict__` that the class defines, which 3.13 finds through weak references."""
    return tx.wrap_fixed(_shadowed_dict(cls.constant()), "__dict__")


@rule(inspect.signature)
def _signature(tx: Interpreter, obj: SymbolicValue, **options: SymbolicValue) -> SymbolicValue:
    """The signature of an outside function: a fixed object."""
    function = _real_callable(tx, obj)
    if function is MISSING or options:
        return inline(tx, inspect.signature, [obj], options)
    signature = evaluate(tx, lambda: inspect.signature(function))
    tx.guards.signatures[id(signature)] = signature, function
    return tx.wrap_fixed(signature, "signature")


@rule(inspect.get_annotations)
def _annotations(tx: Interpreter, obj: SymbolicValue, *, globals: SymbolicValue | None = None,
                 locals: SymbolicValue | None = None, eval_str: SymbolicValue = FALSE
                 ) -> SymbolicValue:
    """The annotations of a function as they stand: the code that would evaluate texts in them asks
    for its own frame."""
    if not isinstance(obj, FunctionValue) or eval_str.truth(tx):
        return inline(tx, inspect.get_annotations, [obj], passed(
            globals=globals, locals=locals, eval_str=eval_str))
    return obj.getattr(tx, "__annotations__").method(tx, "copy", [], {})


def _real_callable(tx: Interpreter, value: SymbolicValue) -> Any:
    """The callable as it is outside; breaks the graph if the program changed it."""
    if isinstance(value, BoundMethodValue):
        owner, function = value.owner.real(), _real_callable(tx, value.function)
        return MISSING if MISSING in (owner, function) else types.MethodType(function, owner)
    if isinstance(value, ClassValue) and not tx.classes.made.keys().isdisjoint(value.cls.__mro__):
        return MISSING
    if tx.effects.changed(value.own_attributes()):
        return MISSING
    return value.real()


rule(threading.current_thread)(breaking("unknown-c-function", "the identity of the thread"))


@rule(threading.get_ident)
def _get_ident(tx: Interpreter) -> SymbolicValue:
    return RunTimeNumber(threading.get_ident, [])


@rule(sys.exc_info)
def _exc_info(tx: Interpreter) -> SymbolicValue:
    handled = tx.frame.handled_exception() if tx.frame is not None else None
    if handled is None:
        nothing_handled_outside(tx)
        return TupleValue([NONE, NONE, NONE])
    kind = handled.python_type()
    return TupleValue([tx.wrap_fixed(kind, kind.__name__), handled, traceback_of(tx, handled)])


@rule(typing._caller)  # type: ignore[attr-defined]
def _module_of_caller(tx: Interpreter, depth: SymbolicValue = ONE, default: SymbolicValue = NONE
                      ) -> SymbolicValue:
    """The module of the frame `depth` levels above the calling one."""
    frame = tx.frame
    for _ in range(depth.constant()):
        frame = None if frame is None else frame.caller
    if frame is None:
        raise SkipFrame("asks which module calls it", always=True)
    return constant(frame.globals.original.get("__name__", "__main__"))


@rule(typing.cast)
def _cast(tx: Interpreter, typ: SymbolicValue, val: SymbolicValue) -> SymbolicValue:
    return val


rule(sys.getrefcount, sys.getsizeof, gc.get_objects, gc.get_referents, gc.get_referrers,
     gc.is_tracked)(breaking(
         "observed-interpreter", "what the interpreter knows of its objects"))
