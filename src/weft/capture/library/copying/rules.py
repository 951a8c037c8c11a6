"""Rules for `copy.copy` and `copy.deepcopy`.

Place in the pipeline: see `weft.capture.library`. What the copy module does through `__reduce_ex__`
is done on values directly: a new instance of the same class with the same (or copied) attributes.
If the program's class overrides a step, `copy._reconstruct` is interpreted.
"""

from __future__ import annotations

import copy
import copyreg
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch

from weft.capture.core.base import MISSING, SymbolicValue, is_heap_type
from weft.capture.core.breaks import ObservedException, graph_break
from weft.capture.core.constant import NONE, boolean, constant
from weft.capture.library.classes.attributes import type_lookup
from weft.capture.library.classes.classes import ClassValue, make_instance
from weft.capture.library.classes.instances import ObjectValue
from weft.capture.library.containers.deques import DequeValue
from weft.capture.library.containers.mapping import DictValue
from weft.capture.library.containers.named_tuples import NamedTupleValue
from weft.capture.library.containers.sequences import ListValue, TupleValue
from weft.capture.library.containers.sets import SetValue
from weft.capture.library.copying.copy_memo import Memo
from weft.capture.library.functions.builtins import BuiltinValue
from weft.capture.library.functions.functions import BoundMethodValue, FunctionValue, rule
from weft.capture.library.modules.modules import ModuleValue
from weft.capture.library.numbers.symbolic_numbers import SymbolicNumberValue
from weft.capture.library.numpy.arrays import ArrayValue
from weft.capture.library.standard.remade import RemadeValue, make_call
from weft.capture.library.tensors.tensor import TensorValue, record

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter

CopyPart = Callable[[SymbolicValue], SymbolicValue]

_ATOMIC: Final = (FunctionValue, ClassValue, BuiltinValue)
_CUSTOM: Final = ("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__",
                  "__getnewargs__", "__getnewargs_ex__")

_RECONSTRUCT: Final[Any] = vars(copy)["_reconstruct"]
_NEW_OBJECT: Final[Any] = vars(copyreg)["__newobj__"]

_LOOKED_UP: Final = ("__deepcopy__", "__reduce_ex__", "__reduce__", "__getstate__")


@rule(copy.copy)
def _copy(tx: Interpreter, x: SymbolicValue) -> SymbolicValue:
    value = x
    if value.is_constant or isinstance(value, (*_ATOMIC, TupleValue, SymbolicNumberValue)):
        return value
    if isinstance(value, ObjectValue):
        method = type_lookup(value.cls, "__copy__")
        if method is not MISSING:
            return value.method(tx, "__copy__", [], {})
        return _copy_object(tx, value, lambda part: part)
    if isinstance(value, TensorValue):
        return _copy_tensor(tx, value)
    if isinstance(value, ArrayValue):
        return _copy_array(tx, value)
    if isinstance(value, RemadeValue):
        return make_call(tx, copy.copy, [value], {})
    if hasattr(value, "m_copy"):
        return value.method(tx, "copy", [], {})
    raise graph_break("unknown-operation", f"copy of {value!r}")


def _copy_tensor(tx: Interpreter, value: TensorValue) -> SymbolicValue:
    """A new tensor object that shares the memory."""
    plain = value.python_type() is torch.Tensor and not value.written
    if not plain or value.example.requires_grad or getattr(value.original, "__dict__", None):
        raise graph_break("unknown-operation", f"copy of {value!r}")
    return record(tx, "detach", [value])


def _copy_array(tx: Interpreter, value: ArrayValue, memo: Memo | None = None) -> SymbolicValue:
    return value if value.scalar else value.method(tx, "copy", [constant("K")], {})


@rule(copy.deepcopy)
def _deepcopy(tx: Interpreter, x: SymbolicValue, memo: SymbolicValue = NONE) -> SymbolicValue:
    known = Memo() if memo is NONE else memo
    if not isinstance(known, Memo):
        raise graph_break("unknown-operation", "deepcopy with a memo of the program's")
    return _deep(tx, x, known)


def _deep(tx: Interpreter, value: SymbolicValue, memo: Memo) -> SymbolicValue:
    value = tx.force(value)
    if value.is_constant or isinstance(value, (*_ATOMIC, SymbolicNumberValue)):
        return value
    known = memo.copy_of(tx, value)
    if known is not None:
        return known
    copier = next((c for kind, c in _COPIERS if isinstance(value, kind)), None)
    if copier is None:
        raise graph_break("unknown-operation", f"deepcopy of {value!r}")
    duplicate = copier(tx, value, memo)
    if duplicate is not value or isinstance(value, TupleValue):
        memo.add(tx, value, duplicate)
    return duplicate


def _deep_list(tx: Interpreter, value: Any, memo: Memo) -> SymbolicValue:
    duplicate = ListValue([])
    memo.add(tx, value, duplicate)
    duplicate.items.extend(_deep(tx, item, memo) for item in value.all(tx))
    return duplicate


def _deep_deque(tx: Interpreter, value: Any, memo: Memo) -> SymbolicValue:
    duplicate = DequeValue([], value.maxlen)
    memo.add(tx, value, duplicate)
    duplicate.append(_deep(tx, item, memo) for item in value.all(tx))
    return duplicate


def _deep_tuple(tx: Interpreter, value: Any, memo: Memo) -> SymbolicValue:
    if isinstance(value, NamedTupleValue) and value.hidden:
        raise graph_break("unknown-operation", f"deepcopy of {value!r} with more attributes")
    memo.begin(value)
    items = [_deep(tx, item, memo) for item in value.all(tx)]
    if all(a is b for a, b in zip(items, value.items, strict=True)):
        return value  # type: ignore[no-any-return]
    named = isinstance(value, NamedTupleValue)
    return NamedTupleValue(items, None, value.cls) if named else value.like(items)


def _deep_dict(tx: Interpreter, value: Any, memo: Memo) -> SymbolicValue:
    duplicate = DictValue(cls=value.cls, factory=value.factory)
    memo.add(tx, value, duplicate)
    for key, item in value.pairs(tx):
        duplicate.setitem(tx, _deep(tx, key, memo), _deep(tx, item, memo))
    return duplicate


def _deep_set(tx: Interpreter, value: Any, memo: Memo) -> SymbolicValue:
    return SetValue.of(tx, [_deep(tx, item, memo) for item in value.iterate(tx)], value.cls)


def _deep_object(tx: Interpreter, value: Any, memo: Memo) -> SymbolicValue:
    if type_lookup(value.cls, "__deepcopy__") is not MISSING:
        result: SymbolicValue = value.method(tx, "__deepcopy__", [memo], {})
        return result
    return _copy_object(tx, value, lambda part: _deep(tx, part, memo), memo)


def _deep_tensor(tx: Interpreter, value: Any, memo: Memo) -> SymbolicValue:
    """A tensor's deep copy is a clone; leaves and parameters are new ones with the clone as
    data."""
    kind = value.python_type()
    plain = value.example.is_contiguous() and not value.written and not getattr(
        value.original, "__dict__", None)
    if not plain or kind not in (torch.Tensor, torch.nn.Parameter) or not value.getattr(
            tx, "is_leaf").truth(tx):
        raise graph_break("unknown-operation", f"deepcopy of {value!r}")
    wanted = value.example.requires_grad
    if wanted and kind is torch.Tensor and value.getattr(tx, "grad") is not NONE:
        raise graph_break("unknown-operation", f"deepcopy of {value!r} and its gradient")
    duplicate = record(tx, "clone", [record(tx, "detach", [value])])
    if kind is torch.nn.Parameter:
        duplicate = tx.call_python(kind, [duplicate, boolean(wanted)])
    elif wanted:
        duplicate = duplicate.method(tx, "requires_grad_", [], {})
    return duplicate


_COPIERS: Final[tuple[tuple[type, Callable[[Any, Any, Memo], SymbolicValue]], ...]] = (
    (ListValue, _deep_list), (TupleValue, _deep_tuple), (DictValue, _deep_dict),
    (SetValue, _deep_set), (ObjectValue, _deep_object), (TensorValue, _deep_tensor),
    (ArrayValue, _copy_array), (DequeValue, _deep_deque),
    (RemadeValue, lambda tx, value, memo: make_call(tx, copy.deepcopy, [value], {})),
)


def _copy_object(tx: Interpreter, value: ObjectValue, part: CopyPart, memo: Memo | None = None
                 ) -> SymbolicValue:
    """A new instance with the parts of the old one, as `object.__reduce_ex__` describes it."""
    if _is_copied_elsewhere(value.cls):
        raise graph_break("unknown-operation", f"copying a {value.cls.__name__}")
    if any(_overrides(value.cls, name) for name in _CUSTOM):
        return _reconstructed(tx, value, NONE if memo is None else memo)
    _check_lookups(tx, value, _LOOKED_UP[memo is None:])
    duplicate = make_instance(tx, value.cls, [])
    if not isinstance(duplicate, ObjectValue) or type(duplicate) is not type(value):
        raise graph_break("unknown-operation", f"copying a {value.cls.__name__}")
    if memo is not None:
        memo.add(tx, value, duplicate)
    pairs = value.attributes.pairs(tx)
    _check_lookups(tx, duplicate, ("__setstate__", "__dict__") if pairs else ())
    for key, item in pairs:
        if not (isinstance(value, ModuleValue) and key.constant() == "_compiled_call_impl"):
            duplicate.attributes.setitem(tx, key, part(item))
    for name in _slots(value.cls):
        slot = _slot(tx, value, name)
        if slot is not None:
            duplicate.setattr(tx, name, part(slot))
    _copy_contents(tx, value, duplicate, part)
    return duplicate


def _is_copied_elsewhere(cls: type) -> bool:
    """Whether C code, a registered function or a `__new__` of the class takes part in copying."""
    if not is_heap_type(cls) or cls in copyreg.dispatch_table:
        return True
    return isinstance(type_lookup(cls, "__new__"), (staticmethod, types.FunctionType))


def _overrides(cls: type, name: str) -> bool:
    """Whether the class has a method in Python; those of nn.Module copy all, as the default."""
    method = type_lookup(cls, name)
    return isinstance(method, types.FunctionType) and method is not vars(torch.nn.Module).get(name)


def _reconstructed(tx: Interpreter, value: ObjectValue, memo: SymbolicValue) -> SymbolicValue:
    """A copy made from what the class's own methods return."""
    own = {name for name in _CUSTOM if isinstance(type_lookup(value.cls, name), types.FunctionType)}
    if isinstance(value, ModuleValue) or own & {"__getnewargs__", "__getnewargs_ex__"}:
        raise graph_break("unknown-operation", f"copying a {value.cls.__name__}")
    if "__reduce_ex__" in own:
        parts = value.method(tx, "__reduce_ex__", [constant(4)], {})
    elif "__reduce__" in own:
        parts = value.method(tx, "__reduce__", [], {})
    else:
        parts = _reduce(tx, value, "__getstate__" in own)
    parts = tx.force(parts)
    if not isinstance(parts, TupleValue):  # a string: the object is its own copy
        return value
    return tx.call_python(_RECONSTRUCT, [value, memo, *parts.all(tx)])


def _reduce(tx: Interpreter, value: ObjectValue, has_state: bool) -> SymbolicValue:
    """The result of `object.__reduce_ex__` for a class whose `__new__` takes no arguments."""
    if not has_state and _slots(value.cls):
        raise graph_break("unknown-operation", f"copying a {value.cls.__name__} with slots")
    state = value.method(tx, "__getstate__", [], {}) if has_state else value.getattr(tx, "__dict__")
    cls = tx.wrap_fixed(value.cls, value.cls.__name__)
    maker = tx.wrap_fixed(_NEW_OBJECT, "__newobj__")
    items: SymbolicValue = NONE
    pairs: SymbolicValue = NONE
    if isinstance(value.contents, ListValue):
        items = value.iter(tx)
    elif isinstance(value.contents, DictValue):
        pairs = value.method(tx, "items", [], {}).iter(tx)
    elif value.contents is not None:
        raise graph_break("unknown-operation", f"copying a {value.cls.__name__}")
    return TupleValue([maker, TupleValue([cls]), state, items, pairs])


def _check_lookups(tx: Interpreter, value: ObjectValue, names: tuple[str, ...]) -> None:
    """Look up the methods that the copy module looks up, in case the program's class redirects
    that.

    Breaks the graph unless they are the usual ones.
    """
    if not isinstance(type_lookup(value.cls, "__getattribute__"), types.FunctionType):
        return
    for name in names:
        expected: Any = value.attributes if name == "__dict__" else getattr(object, name, MISSING)
        try:
            attribute = value.getattr(tx, name)
        except ObservedException as error:
            if not issubclass(error.value.python_type(), AttributeError):
                raise
            if expected is MISSING:
                continue
            raise graph_break("unknown-operation", f"{value!r} without {name}") from None
        what = attribute.function.real() if isinstance(attribute, BoundMethodValue) else attribute
        if what is not expected:
            raise graph_break("unknown-operation", f"{name} of {value!r}")


def _slots(cls: type) -> list[str]:
    """The names of the `__slots__` members."""
    return [name for base in cls.__mro__ for name, attribute in vars(base).items()
            if isinstance(attribute, types.MemberDescriptorType)]


def _slot(tx: Interpreter, value: ObjectValue, name: str) -> SymbolicValue | None:
    try:
        return value.slot_attribute(tx, name)
    except ObservedException:
        return None


def _copy_contents(
    tx: Interpreter, value: ObjectValue, duplicate: ObjectValue, part: CopyPart
) -> None:
    """Copy the items by the methods that the copy module calls, which the program may override."""
    if isinstance(value.contents, ListValue):
        for item in tx.unpack(value):
            duplicate.method(tx, "append", [part(item)], {})
    elif isinstance(value.contents, DictValue):
        for pair in tx.unpack(value.method(tx, "items", [], {})):
            key, item = tx.unpack(pair)
            duplicate.setitem(tx, part(key), part(item))
    elif value.contents is not None:
        raise graph_break("unknown-operation", f"copying a {value.cls.__name__}")
