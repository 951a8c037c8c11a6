"""Mutable objects of C types that nothing outside notices: buffers, hashes, arrays, locks.

Place in the pipeline: a value family. The object is made while capturing and its methods are called
for real, as long as their arguments are constants; the calls are recorded (`tx.remade`). Where the
object escapes, the replacement makes the calls again::

    report = io.StringIO()                    t0 = c0_StringIO()
    print("step", 3, file=report)             t0.write('step')  …
    return x * 2, report                      return out0, t0

A call in `_LATER` is only recorded if its text contains a number that is not known yet, or if the
object comes from outside, so that its state is not known; nor is then what the call returns, but
capture can go on.
"""

from __future__ import annotations

import _thread
import array
import copy
import csv
import hashlib
import io
import itertools
import struct
import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, final

from weft.capture.core.base import MISSING, Args, Kwargs, OutsideObject, SymbolicValue
from weft.capture.core.breaks import graph_break
from weft.capture.core.constant import evaluate, is_none, python_object
from weft.capture.core.methods import BoundBuiltin
from weft.capture.core.operator_names import method_name
from weft.capture.core.registry import wraps
from weft.capture.core.source import Source
from weft.capture.library.classes.attributes import type_lookup
from weft.capture.library.classes.classes import constructor
from weft.capture.library.classes.unknown import unknown
from weft.capture.library.containers.iterators import LazyIterator
from weft.capture.library.containers.sequences import ListValue
from weft.capture.library.functions.functions import rule
from weft.capture.library.texts.symbolic_texts import TextValue
from weft.quoting import attribute, keyword

if TYPE_CHECKING:
    from weft.capture.core.protocols import Emitter, Interpreter


@final
class RecordedCall(SymbolicValue):
    """A call of a function, or of a method of the first argument, that the replacement makes
    again."""

    __slots__ = ("args", "function", "kwargs", "raises", "result")

    def __init__(self, function: Any, args: Args, kwargs: Kwargs) -> None:
        super().__init__()
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self.result: SymbolicValue | None = None
        """What it returns, if that is an object which later calls may change, or is not known."""
        self.raises = False

    def objects(self) -> Iterable[RemadeValue]:
        """The objects whose state the call depends on or changes."""
        values = (*self.args, *self.kwargs.values(), self.result)
        return (value for value in values if isinstance(value, RemadeValue))

    def text(self, emit: Emitter) -> str:
        """The call as an expression."""
        arguments = [emit.value(arg) for arg in self.args]
        function = self.function
        if isinstance(function, str):
            function = attribute(arguments.pop(0), function)
        else:
            function = emit.constant(function)
        arguments += [keyword(name, emit.value(arg)) for name, arg in self.kwargs.items()]
        return f"{function}({', '.join(arguments)})"

    def replay(self, emit: Emitter) -> None:
        """The call as a statement."""
        if self.raises:
            with emit.block("try:"):
                emit.line(self.text(emit))
            with emit.block("except Exception:"):
                emit.line("pass")
        elif self.result is None:
            emit.line(self.text(emit))
        else:
            emit.bind(self.result, self.text(emit))


@final
class RemadeValue(OutsideObject):
    """An object made inside, or one from outside, to which only `_LATER` applies."""

    __slots__ = ()

    def real(self) -> Any:
        return MISSING if self.source is None else self.object

    def dict_key(self, tx: Interpreter) -> object:
        inherited: Any = object.__hash__
        if type(self.object).__hash__ is not inherited:
            return super().dict_key(tx)
        return self if self.source is None else tx.identities.key(self, self.object)

    def copied(self, tx: Interpreter) -> Any:
        """A sequence of numbers, for functions that read it."""
        if self.source is not None:
            return MISSING
        if type(self.object) is memoryview:
            return self.object.toreadonly()
        return copy.copy(self.object) if type(self.object) in _SEQUENCES else MISSING

    def __repr__(self) -> str:
        return f"a {type(self.object).__name__}"

    # -- operations -------------------------------------------------------------------------------

    def getattr(self, tx: Interpreter, name: str) -> SymbolicValue:
        kind = type(self.object)
        if name == "__class__":
            return tx.wrap_fixed(kind, kind.__name__)
        if hasattr(type_lookup(kind, name), "__call__"):  # noqa: B004  no instance has its own
            return BoundBuiltin(self, name)
        return make_call(tx, getattr, [self, tx.wrap_new(name)], {})

    def setattr(self, tx: Interpreter, name: str, value: SymbolicValue) -> None:
        make_call(tx, setattr, [self, tx.wrap_new(name), value], {})

    def method(self, tx: Interpreter, name: str, args: Args, kwargs: Kwargs) -> SymbolicValue:
        if not hasattr(self.object, name):
            return self.getattr(tx, name)
        return make_call(tx, name, [self, *args], kwargs)

    def truth(self, tx: Interpreter) -> bool:
        return not hasattr(self.object, "__len__") or self.length(tx) > 0

    def length(self, tx: Interpreter) -> int:
        length: int = make_call(tx, "__len__", [self], {}).constant()
        return length

    def getitem(self, tx: Interpreter, key: SymbolicValue) -> SymbolicValue:
        return self.method(tx, "__getitem__", [key], {})

    def setitem(self, tx: Interpreter, key: SymbolicValue, value: SymbolicValue) -> None:
        self.method(tx, "__setitem__", [key, value], {})

    def delitem(self, tx: Interpreter, key: SymbolicValue) -> None:
        self.method(tx, "__delitem__", [key], {})

    def contains(self, tx: Interpreter, item: SymbolicValue) -> bool:
        if not hasattr(self.object, "__contains__"):
            return super().contains(tx, item)
        return self.method(tx, "__contains__", [item], {}).truth(tx)

    def iter(self, tx: Interpreter) -> SymbolicValue:
        if hasattr(self.object, "__getitem__"):
            return LazyIterator(type(iter(self.object)), lambda: self._items(tx))
        return self.method(tx, "__iter__", [], {})

    def _items(self, tx: Interpreter) -> Iterator[SymbolicValue]:
        for index in itertools.count():
            if index >= self.length(tx):
                return
            yield self.getitem(tx, tx.wrap_new(index))

    def next(self, tx: Interpreter) -> SymbolicValue | None:
        item = make_call(tx, next, [self, tx.wrap_new(None)], {})
        return None if is_none(item) else item

    def binary(self, tx: Interpreter, op: str, other: SymbolicValue, reflected: bool) -> Any:
        if reflected:
            op = _MIRRORED.get(op, "")
        name = method_name(op)
        method = type_lookup(type(self.object), name)
        if method is MISSING or method is vars(object).get(name):
            return None
        result = make_call(tx, name, [self, other], {})
        refused = result.is_constant and result.constant() is NotImplemented
        return None if refused else result

    # -- what becomes of it -----------------------------------------------------------------------

    def rebuild(self, emit: Emitter) -> str:
        self.replay(emit)
        return emit.value(self)

    def replay(self, emit: Emitter) -> None:
        """Make all calls again on which the state of the object depends."""
        for call in _connected(emit.tx.remade.calls, self):
            if id(call) not in emit.settled:
                emit.settled.add(id(call))
                call.replay(emit)


_MIRRORED: Final = {"eq": "eq", "ne": "ne", "lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}


def _connected(calls: list[RecordedCall], value: RemadeValue) -> list[RecordedCall]:
    """The calls on the object and on all that were ever arguments or results beside it."""
    connected: set[RemadeValue] = {value}
    while True:
        more = [call for call in calls if not connected.isdisjoint(call.objects())]
        before = len(connected)
        connected.update(obj for call in more for obj in call.objects())
        if len(connected) == before:
            return more


@final
class LateResult(SymbolicValue):
    """What a call returns that is left to the replacement."""

    __slots__ = ("origin", "outcome", "owner")

    def __init__(self, owner: RemadeValue, call: RecordedCall) -> None:
        super().__init__()
        self.owner = owner
        self.origin = call
        self.outcome: Any = MISSING

    def text(self, tx: Interpreter) -> str:
        """The text that it is in this call."""
        _catch_up(tx, self.owner)
        assert isinstance(self.outcome, str)
        return self.outcome

    def rebuild(self, emit: Emitter) -> str:
        if self.owner.source is None:
            self.owner.replay(emit)
        else:
            emit.tx.effects.replay(emit, last=self.origin)
        return emit.value(self)


# -- calls ----------------------------------------------------------------------------------------


def make_call(tx: Interpreter, function: Any, args: Sequence[SymbolicValue], kwargs: Kwargs
              ) -> SymbolicValue:
    """Call a function, or a method of the first argument, and record it."""
    operands = [tx.force(arg) for arg in args]
    owner = operands[0] if operands else None
    if isinstance(owner, RemadeValue) and _is_late(tx, owner, function, operands[1:], kwargs):
        return _record_only(tx, owner, function, operands)
    for operand in (*operands, *kwargs.values()):
        if isinstance(operand, RemadeValue):
            _catch_up(tx, operand)
    if function == "writerow":  # a `csv.DictWriter` passes a generator
        operands[1:] = [ListValue(tx.unpack(row)) for row in operands[1:]]
    fixed = [_fixed(tx, arg) for arg in operands]
    named = {name: _fixed(tx, tx.force(arg)) for name, arg in kwargs.items()}
    call = RecordedCall(function, fixed, named)
    tx.remade.calls.append(call)
    return _perform(tx, call)


def _fixed(tx: Interpreter, value: SymbolicValue) -> SymbolicValue:
    """The value of an argument as it is now."""
    if isinstance(value, RemadeValue | _Snapshot):
        return value
    obj = python_object(tx, value)
    if obj is MISSING:
        raise graph_break("unknown-value", f"{value!r} as an argument of a C function")
    return _Snapshot(obj)


@final
class _Snapshot(OutsideObject):
    """A copy of an argument, which no call keeps or changes."""

    __slots__ = ()


def _perform(tx: Interpreter, call: RecordedCall) -> SymbolicValue:
    """Make a recorded call now."""
    args = [_real(arg) for arg in call.args]
    named = {name: _real(arg) for name, arg in call.kwargs.items()}
    function = call.function
    if isinstance(function, str):
        function, args = getattr(args[0], function), args[1:]
    call.raises = True
    result = evaluate(tx, lambda: function(*args, **named))
    call.raises = False
    if isinstance(call.result, LateResult):
        call.result.outcome = result
        return call.result
    known = next((o for o in call.objects() if o.object is result), None)
    if known is not None:
        return known
    if type(result) in _KINDS:
        call.result = RemadeValue(result)
        return call.result
    if call.function in _READS:
        tx.remade.calls.pop()
    return tx.wrap_new(result)


def _real(value: SymbolicValue) -> object:
    assert isinstance(value, RemadeValue | _Snapshot)
    return value.object


def _is_late(tx: Interpreter, owner: RemadeValue, function: object, args: Args, kwargs: Kwargs
             ) -> bool:
    """Whether the call can and must be left to the replacement."""
    kind = _LATER.get(type(owner.object), {}).get(function)
    if kind is None or kwargs or [arg.python_type() for arg in args] != list(kind):
        return False
    if owner.source is not None and isinstance(owner.object, io.IOBase):
        return not tx.wrap(owner.object.closed, owner.source.attribute("closed")).truth(tx)
    return (owner.source is not None or any(map(_is_open, args))
            or not {*tx.remade.late}.isdisjoint(_connected(tx.remade.calls, owner)))


def _is_open(value: SymbolicValue) -> bool:
    return isinstance(value, TextValue) and value.known is None


def _record_only(tx: Interpreter, owner: RemadeValue, function: str, args: Args) -> SymbolicValue:
    """Leave a call to the replacement, which cannot fail there: a buffer is open."""
    call = RecordedCall(function, args, {})
    if owner.source is not None:  # in order with other output
        tx.effects.touch(call)
    tx.remade.calls.append(call)
    tx.remade.late.append(call)
    call.result = result = LateResult(owner, call)
    is_text = function == "hexdigest" or (
        function == "getvalue" and isinstance(owner.object, io.StringIO))
    return TextValue(tx, (result,)) if is_text else result


def _catch_up(tx: Interpreter, value: RemadeValue) -> None:
    """Make the calls that were left to the replacement; breaks the graph if their arguments are
    not known."""
    if value.source is not None and type(value.object) not in _IMMUTABLE:
        raise graph_break("unknown-operation", f"reading {value!r} from outside")
    for call in _connected(tx.remade.calls, value) if tx.remade.late else ():
        if call not in tx.remade.late:
            continue
        tx.remade.late.remove(call)
        call.args = [_fixed(tx, arg) for arg in call.args]
        _perform(tx, call)


# -- which objects --------------------------------------------------------------------------------


_READS: Final = frozenset({
    "__len__", "__getitem__", "__contains__", "__eq__", "getvalue", "tell", "digest", "hexdigest",
    "tolist", "tobytes", "pack", "unpack", "unpack_from", "decode", "index", "count", getattr})
"""Calls that leave an object as it is."""

_SEQUENCES: Final[tuple[type, ...]] = (bytearray, array.array)
_IMMUTABLE: Final = (struct.Struct,)
_LOCKS: Final[tuple[type, ...]] = (type(threading.Lock()), type(threading.RLock()))
_READERS: Final = (csv.reader, csv.writer)
_MAKERS: Final[tuple[type, ...]] = (
    *_SEQUENCES, *_IMMUTABLE, *_LOCKS, memoryview, io.StringIO, io.BytesIO, hashlib.blake2b,
    hashlib.blake2s)
_HASHES: Final = [getattr(hashlib, name) for name in hashlib.algorithms_guaranteed]
_OPENSSL: Final = vars(hashlib).get("_hashlib")
_FUNCTIONS: Final[set[Any]] = {
    *_READERS, *_HASHES, _thread.allocate_lock, struct.pack_into, zlib.compressobj,
    zlib.decompressobj, getattr(_OPENSSL, "new", None),
    getattr(_OPENSSL, "hmac_new", None)} - {None, *_MAKERS}
_KINDS: Final = frozenset({
    *_MAKERS, *(type(make()) for make in _HASHES), getattr(_OPENSSL, "HMAC", None),
    *map(type, (zlib.compressobj(), zlib.decompressobj(), csv.reader(()), csv.writer(io.StringIO()),
                struct.Struct("i").iter_unpack(b"")))})


_LATER: Final[dict[type, dict[Any, tuple[type, ...]]]] = {
    io.StringIO: {"write": (str,), "getvalue": ()},
    io.BytesIO: {"write": (bytes,), "getvalue": ()},
    **{kind: {"update": (bytes,), "digest": (), "hexdigest": ()} for kind in map(
        type, (hashlib.md5(), hashlib.blake2b(), hashlib.blake2s()))},
}
"""Methods that cannot fail for arguments of these types, and can be called later."""


@constructor(*_MAKERS)
def _make(tx: Interpreter, cls: type, /, *args: SymbolicValue, **kwargs: SymbolicValue
          ) -> SymbolicValue:
    return make_call(tx, cls, args, kwargs)


def _register(function: object) -> None:
    @rule(function)
    def call(tx: Interpreter, /, *args: SymbolicValue, **kwargs: SymbolicValue) -> SymbolicValue:
        if function in _READERS and not isinstance(tx.force(args[0]), RemadeValue):
            raise graph_break("unknown-c-function", f"{function.__name__} of {args[0]!r}")
        return make_call(tx, function, args, kwargs)


for _function in _FUNCTIONS:
    _register(_function)


@wraps(*_SEQUENCES)
def _wrap_sequence(tx: Interpreter, obj: object, source: Source | None) -> SymbolicValue:
    if source is not None:
        return unknown(tx, obj, source)
    return make_call(tx, copy.copy, [_Snapshot(obj)], {})


@wraps(*_IMMUTABLE)
def _wrap_immutable(tx: Interpreter, obj: object, source: Source | None) -> SymbolicValue:
    source = source or tx.tree.object(obj, f"<{type(obj).__name__}>")
    tx.guards.identity(source, obj)
    return RemadeValue(obj, source)


@wraps(*_LATER)
def _wrap_outside(tx: Interpreter, obj: object, source: Source | None) -> SymbolicValue:
    source = source or tx.tree.object(obj, f"<{type(obj).__name__}>")
    tx.guards.add(source, "type_is", type(obj))
    return RemadeValue(obj, source)
