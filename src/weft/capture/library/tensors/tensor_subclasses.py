"""Objects with a `__torch_function__`, such as tensor subclasses.

Place in the pipeline: a value family above tensors. A `__torch_function__` is inlined like any
method; in the end it calls operations on plain tensors, so the graph has only those. The graph sees
inputs as plain tensors (`plain_source`), and the replacement gives results their class again::

    y = x + 1        # x: Scaled  ->  Scaled.__torch_function__(Tensor.add, (Scaled,), (x, 1))
"""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, final

import torch
from torch import fx
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.overrides import TorchFunctionMode, get_default_nowrap_functions

from weft._torch import (
    DisableTorchFunctionSubclass,
    disabled_torch_function,
    is_torch_function_all_disabled,
    is_torch_function_enabled,
)
from weft.capture.core.base import MISSING, Args, Kwargs, SymbolicValue
from weft.capture.core.breaks import SkipFrame, graph_break
from weft.capture.core.constant import boolean, constant
from weft.capture.core.source import Source
from weft.capture.guards.guard_set import tensor_guard
from weft.capture.library.classes.attributes import type_lookup
from weft.capture.library.classes.instances import ObjectValue
from weft.capture.library.classes.unknown import unknown
from weft.capture.library.containers.mapping import DictValue, dictionary_of
from weft.capture.library.containers.named_tuples import NamedTupleValue
from weft.capture.library.containers.sequences import ListValue, TupleValue
from weft.capture.library.functions.functions import rule
from weft.capture.library.tensors import context_polyfills
from weft.capture.library.tensors.tensor import (
    MAY_OVERRIDE,
    OTHER_TENSORS,
    TensorValue,
    overridden_function,
    overriding_result,
    own_attribute,
    tensor_method,
)

if TYPE_CHECKING:
    from weft.capture.core.protocols import Emitter, Interpreter

_UNSEEN: Final = frozenset({"as_subclass"})
"""Methods that `__torch_function__` does not see."""

_NO_DISPATCH: Final = torch.Tensor.__torch_dispatch__


def as_plain(value: torch.Tensor) -> torch.Tensor:
    """The tensor as a torch.Tensor that shares its memory."""
    with DisableTorchFunctionSubclass():
        return value.as_subclass(torch.Tensor)


def as_subclass(value: torch.Tensor, cls: type) -> torch.Tensor:
    """A graph's output as an instance of its class."""
    with DisableTorchFunctionSubclass():
        return value.as_subclass(cls)


@final
class SubclassValue(TensorValue):
    """A tensor whose class has a `__torch_function__` written in Python."""

    __slots__ = ("cls", "plain_source")

    def __init__(self, cls: type, example: torch.Tensor, node: fx.Node | None,
                 source: Source | None = None, original: Any = MISSING,
                 plain_source: Source | None = None) -> None:
        super().__init__(example, node, source, original)
        self.cls = cls
        self.plain_source = plain_source

    def python_type(self) -> type:
        return self.cls

    def proxy(self, tx: Interpreter) -> Any:
        if self._node is None:
            assert self.plain_source is not None
            self._node = tx.builder.placeholder(
                self.plain_source, self.example, as_plain(self.original))
        return self._node

    def rebuild(self, emit: Emitter) -> str:
        plain = TensorValue(self.example, self._node)
        text = f"{emit.constant(as_subclass)}({emit.value(plain)}, {emit.constant(self.cls)})"
        name = emit.bind(self, text)
        emit.later(lambda: self.replay(emit))
        return name

    def getattr(self, tx: Interpreter, name: str) -> SymbolicValue:
        written = self.written.get(name)
        if written is not None:
            return written
        attribute = own_attribute(self.cls, name)
        if attribute is MISSING and _is_on(tx) and _is_read(name):
            return dispatch(tx, AttributeReader(name), [self], {})
        return super().getattr(tx, name)

    def rows(self, tx: Interpreter) -> SymbolicValue:
        if own_attribute(self.cls, "__len__") is MISSING and _is_on(tx):
            return tx.force(self.method(tx, "__len__", [], {}))
        return super().rows(tx)

    def method(self, tx: Interpreter, name: str, args: Args, kwargs: Kwargs) -> SymbolicValue:
        function = getattr(torch.Tensor, name, None) if name not in _UNSEEN else None
        if own_attribute(self.cls, name) is MISSING and function is not None and _is_on(tx):
            value = tx.wrap_fixed(function, f"Tensor.{name}")
            return dispatch(tx, value, [self, *args], kwargs)
        return super().method(tx, name, args, kwargs)


def _is_on(tx: Interpreter) -> bool:
    return tx.modes.subclasses_off == 0


def _is_read(name: str) -> bool:
    """Whether reading the attribute is a call that `__torch_function__` sees."""
    kind = type_lookup(torch.Tensor, name)
    return isinstance(kind, (types.GetSetDescriptorType, property)) and not name.startswith("__")


@final
class AttributeReader(SymbolicValue):
    """`torch.Tensor.shape.__get__`: what `__torch_function__` receives when an attribute is
    read."""

    __slots__ = ("name",)
    kind = types.MethodWrapperType
    is_constant = True

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def constant(self) -> Any:
        return getattr(torch.Tensor, self.name).__get__

    def dict_key(self, tx: Interpreter) -> object:
        return self.constant()

    def binary(self, tx: Interpreter, op: str, other: SymbolicValue, reflected: bool) -> Any:
        if op not in ("eq", "ne") or other.python_type() is not self.kind:
            return None
        return constant((self.constant() == other.real()) is (op == "eq"))

    def real(self) -> Any:
        return self.constant()

    def call(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        return tx.force(args[0]).getattr(tx, self.name)

    def getattr(self, tx: Interpreter, name: str) -> SymbolicValue:
        return tx.wrap_new(getattr(self.constant(), name))


# -- who decides ----------------------------------------------------------------------------------


def _overrides(value: SymbolicValue) -> bool:
    if isinstance(value, SubclassValue):
        return True
    if not isinstance(value, ObjectValue):
        return False
    return type_lookup(value.cls, "__torch_function__") not in (MISSING, disabled_torch_function)


def _overloading_values(tx: Interpreter, values: Iterable[SymbolicValue]) -> list[SymbolicValue]:
    """The values whose classes are asked, in order: subclasses first, otherwise left to right."""
    overloading: list[SymbolicValue] = []
    for value in _flat(tx, values):
        cls = value.python_type() if _overrides(value) else None
        if cls is None or any(v.python_type() is cls for v in overloading):
            continue
        before = [i for i, v in enumerate(overloading) if issubclass(cls, v.python_type())]
        overloading.insert(before[0] if before else len(overloading), value)
    return overloading


def _flat(tx: Interpreter, values: Iterable[SymbolicValue]) -> Args:
    flat: Args = []
    for value in map(tx.force, values):
        inner = value.all(tx) if isinstance(value, (ListValue, TupleValue)) else [value]
        flat.extend(map(tx.force, inner))
    return flat


def dispatch(tx: Interpreter, function: SymbolicValue, args: Args, kwargs: Kwargs
             ) -> SymbolicValue:
    """Call `__torch_function__` of the arguments' classes until one does not return
    NotImplemented."""
    asked = _overloading_values(tx, [*args, *kwargs.values()])
    kinds = TupleValue([tx.wrap_fixed(v.python_type(), v.python_type().__name__) for v in asked])
    named = dictionary_of(tx, kwargs)
    for value, kind in zip(asked, kinds.items, strict=True):
        owner = value if isinstance(value, ObjectValue) else kind
        result = owner.getattr(tx, "__torch_function__").call(
            tx, [function, kinds, TupleValue(list(args)), named], {})
        if not (result.is_constant and result.constant() is NotImplemented):
            return result
    raise graph_break("operator-failed", f"no __torch_function__ takes {function!r}")


@overriding_result.define
def _override(tx: Interpreter, target: object, args: Args, kwargs: Kwargs) -> SymbolicValue | None:
    if not _is_on(tx) or not _overloading_values(tx, [*args, *kwargs.values()]):
        return None
    if target is getattr:
        return dispatch(tx, AttributeReader(args[1].constant()), args[:1], {})
    function, args = function_of(target, args)
    name = getattr(function, "__name__", "operator")
    return dispatch(tx, tx.wrap_fixed(function, name), args, kwargs)


MAY_OVERRIDE.update((ObjectValue, SubclassValue))


@rule(torch.overrides.has_torch_function, torch.overrides.has_torch_function_unary,
      torch.overrides.has_torch_function_variadic)
def _has_torch_function(tx: Interpreter, *values: SymbolicValue) -> SymbolicValue:
    return boolean(_is_on(tx) and _overloading_values(tx, values))


@rule(torch.overrides.handle_torch_function)
def _handle(tx: Interpreter, function: SymbolicValue, relevant: SymbolicValue, /,
            *args: SymbolicValue, **kwargs: SymbolicValue) -> SymbolicValue:
    return dispatch(tx, function, [*args], kwargs)


# -- which function -------------------------------------------------------------------------------


class _Found(Exception):
    """Carries the function out of the trial call."""


class _Asking(TorchFunctionMode):
    def __torch_function__(
        self, func: object, types: object, args: object = (), kwargs: object = None
    ) -> object:
        raise _Found(func)


@functools.cache
def _operator_function(target: Any, tensors: tuple[bool, ...]) -> object:
    """The function that eager passes to `__torch_function__` for a Python operator, found by
    trying."""
    tensor = torch.ones(1, 1, dtype=torch.int64, device="cpu")
    try:
        with _Asking():
            target(*(tensor if is_tensor else 0 for is_tensor in tensors))
    except _Found as seen:
        return seen.args[0]
    return target


@overridden_function.define
def function_of(target: object, args: Args) -> tuple[object, Args]:
    if isinstance(target, str):
        return getattr(torch.Tensor, target), args
    if vars(operator).get(getattr(target, "__name__", "")) is not target:
        return target, args
    tensors = tuple(isinstance(arg, TensorValue) for arg in args)
    reflected = tensors == (False, True)
    return _operator_function(target, tensors), args[::-1] if reflected else args


# -- the default ----------------------------------------------------------------------------------


@rule(torch.Tensor.__torch_function__.__func__)  # type: ignore[attr-defined]
def _default(tx: Interpreter, cls: SymbolicValue, func: SymbolicValue, types: SymbolicValue,
             args: SymbolicValue | None = None, kwargs: SymbolicValue | None = None
             ) -> SymbolicValue:
    """The operation on plain tensors; its results get the class."""
    function = tx.force(func)
    named = DictValue() if kwargs is None else tx.force(kwargs)
    pairs = named.pairs(tx) if isinstance(named, DictValue) else []
    positional = [] if args is None else tx.unpack(args)
    tx.direct_call = False
    tx.modes.subclasses_off += 1
    try:
        result = function.call(tx, positional, {key.constant(): value for key, value in pairs})
    finally:
        tx.modes.subclasses_off -= 1
    if function.is_constant and function.constant() in get_default_nowrap_functions():
        return result
    return _convert(tx, tx.force(result), cls.constant())


@rule(context_polyfills.switch_subclasses)
def _switch(tx: Interpreter, step: SymbolicValue) -> SymbolicValue:
    tx.modes.subclasses_off += step.constant()
    return constant(None)


@rule(context_polyfills.switch_functions)
def _switch_all(tx: Interpreter, off: SymbolicValue) -> SymbolicValue:
    modes = tx.modes
    if off.constant():
        modes.hidden.append(modes.functions)
        modes.functions = []
    else:
        modes.functions = modes.hidden.pop()
    return _switch(tx, constant(1 if off.constant() else -1))


@rule(is_torch_function_enabled)
def _classes_are_asked(tx: Interpreter) -> SymbolicValue:
    return constant(_is_on(tx) and is_torch_function_enabled())


@rule(is_torch_function_all_disabled)
def _nobody_is_asked(tx: Interpreter) -> SymbolicValue:
    return constant(bool(tx.modes.hidden) or is_torch_function_all_disabled())


def _convert(tx: Interpreter, value: SymbolicValue, cls: type) -> SymbolicValue:
    if cls is torch.Tensor:
        return value
    if isinstance(value, TensorValue):
        return value if issubclass(value.python_type(), cls) else in_class(tx, value, cls)
    if isinstance(value, NamedTupleValue):
        parts = [_convert(tx, tx.force(item), cls) for item in value.items]
        return NamedTupleValue(parts, None, value.cls)
    if value.__class__ is ListValue or value.__class__ is TupleValue:
        assert isinstance(value, (ListValue, TupleValue))
        items = [_convert(tx, tx.force(item), cls) for item in value.all(tx)]
        return ListValue(items) if isinstance(value, ListValue) else TupleValue(items)
    return value


def in_class(tx: Interpreter, value: TensorValue, cls: type) -> TensorValue:
    """The tensor as an instance of the class, sharing its memory."""
    node = value.proxy(tx)
    if cls is torch.Tensor:
        return TensorValue(value.example, node)
    tx.modes.overriding = True
    return SubclassValue(cls, value.example, node)


@tensor_method("as_subclass")
def _as_subclass(tx: Interpreter, value: TensorValue, wanted: SymbolicValue, /) -> SymbolicValue:
    cls = tx.force(wanted).constant()
    if cls is not torch.Tensor and not _is_written_in_python(cls):
        raise graph_break("unknown-operation", f"a tensor as {cls.__name__}")
    return in_class(tx, value, cls)


# -- from outside ---------------------------------------------------------------------------------


def _is_written_in_python(cls: type) -> bool:
    hidden = cls.__torch_dispatch__ is not _NO_DISPATCH  # type: ignore[attr-defined]
    return not hidden and cls.__torch_function__ is not disabled_torch_function  # type: ignore[attr-defined]


def _wrap_subclass(tx: Interpreter, obj: Any, source: Source | None) -> SymbolicValue:
    cls = type(obj)
    if issubclass(cls, (UninitializedParameter, UninitializedBuffer)):
        raise SkipFrame("parameters that the first call makes", counts=False)
    if source is None:
        source = tx.tree.object(obj, cls.__name__)
    plain = as_plain(obj)
    if plain.layout is not torch.strided or plain.is_nested:
        return unknown(tx, obj, source)
    tx.guards.add(source, "type_is", cls)
    plain_source = source.call(as_plain, source.name)
    tx.guards.add(plain_source, "tensor", *tensor_guard(plain))
    example = tx.fakes.fake(plain)
    value = SubclassValue(cls, example, None, source, obj, plain_source)
    tx.modes.overriding = True
    if plain.requires_grad:
        tx.autograd.leaves[id(example)] = value
    return value


OTHER_TENSORS.append((_is_written_in_python, _wrap_subclass))
