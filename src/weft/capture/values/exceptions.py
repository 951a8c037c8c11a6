"""Exceptions: instances of exception classes that the interpreted program makes, raises, catches.

Place in the pipeline: a value family; `ObservedException` carries one through the interpreter.
"""

from __future__ import annotations

import functools
import types
from typing import TYPE_CHECKING, Any, Final, final

from weft.capture.breaks import graph_break
from weft.capture.source import Source
from weft.capture.values.attributes import type_lookup
from weft.capture.values.base import MISSING, SymbolicValue
from weft.capture.values.constant import NONE, boolean, python_object
from weft.capture.values.objects import ObjectValue
from weft.capture.values.registry import wraps
from weft.capture.values.sequences import TupleValue

if TYPE_CHECKING:
    from weft.capture.interpreter import Interpreter
    from weft.capture.replacement import Emitter


@final
class ExceptionValue(ObjectValue):
    """An exception object."""

    __slots__ = ("args", "known", "traceback", "written")

    def __init__(self, cls: type[BaseException], args: list[SymbolicValue],
                 source: Source | None = None, original: Any = MISSING) -> None:
        super().__init__(cls, source, original)
        self.args = args
        self.known: dict[str, SymbolicValue] = {}
        """What was read or set of `_LINKS`."""
        self.written: dict[str, None] = {}
        """Names of what was set, in that order."""
        self.traceback: SymbolicValue = NONE

    def __repr__(self) -> str:
        return f"{self.cls.__name__}({', '.join(map(repr, self.args))})"

    def link(self, tx: Interpreter, name: str) -> SymbolicValue:
        """`__cause__`, `__context__` or `__suppress_context__`."""
        found = self.known.get(name)
        if found is None:
            found = _LINKS[name]
            if self.source is not None:
                found = tx.wrap(getattr(self.original, name), self.source.attribute(name))
            self.known[name] = found
        return found

    def set_link(self, tx: Interpreter, name: str, value: SymbolicValue) -> None:
        """Sets one of them; an exception with a cause shows no context."""
        self.known[name] = value
        self._note_written(tx, name)
        if name == "__cause__":
            self.set_link(tx, "__suppress_context__", boolean(True))

    def _note_written(self, tx: Interpreter, name: str) -> None:
        self.written.setdefault(name)
        if self.source is not None:
            tx.effects.touch(self)

    def initialise(self, tx: Interpreter, args: list[SymbolicValue],
                   kwargs: dict[str, SymbolicValue]) -> None:
        """`BaseException.__init__`, or what a builtin exception has of its own."""
        if kwargs or issubclass(self.cls, _COMPLEX):
            raise graph_break("unknown-operation", f"making a {self.cls.__name__}")
        self.args = args

    def slot_attribute(self, tx: Interpreter, name: str) -> SymbolicValue:
        if name == "args":
            return TupleValue(self.args)
        if name == "value" and issubclass(self.cls, StopIteration):
            return self.args[0] if self.args else NONE
        if name in _LINKS:
            return self.link(tx, name)
        if self.original is MISSING and name in _fields(self.cls):
            return self._field(tx, name)
        if name == "__traceback__" and (self.source is None or self.traceback is not NONE):
            return self.traceback
        return super().slot_attribute(tx, name)

    def _field(self, tx: Interpreter, name: str) -> SymbolicValue:
        """What the C constructor makes of the arguments: `ImportError("text").msg`."""
        objects = [python_object(tx, arg) for arg in self.args]
        if MISSING in objects or _has_own_init(self.cls):
            raise graph_break("unknown-operation", f"{name} of a {self.cls.__name__}")
        return tx.wrap_new(getattr(self.cls(*objects), name))

    def _set_descriptor(self, tx: Interpreter, name: str, attribute: Any, value: SymbolicValue
                        ) -> None:
        if name == "args":
            self.args = tx.unpack(value)
            self._note_written(tx, name)
        elif name in _LINKS:
            self.set_link(tx, name, value)
        elif name == "__traceback__":
            self.traceback = value
        else:
            super()._set_descriptor(tx, name, attribute, value)

    def replay(self, emit: Emitter) -> None:
        super().replay(emit)
        self._write_links(emit, emit.value(self))

    def _write_links(self, emit: Emitter, target: str) -> None:
        for name in self.written:
            if name == "args":
                emit.line(f"{target}.args = ({''.join(f'{emit.value(a)}, ' for a in self.args)})")
            else:
                emit.line(f"{target}.{name} = {emit.value(self.known[name])}")

    def rebuild(self, emit: Emitter) -> str:
        args = "".join(f", {emit.value(arg)}" for arg in self.args)
        cls = emit.constant(self.cls)
        whole = not _has_own_init(self.cls)
        text = f"{cls}({args[2:]})" if whole else f"{cls}.__new__({cls}{args})"
        name = emit.bind(self, text)
        emit.line(f"{name}.args = ({''.join(f'{emit.value(a)}, ' for a in self.args)})")
        emit.later(lambda: self._fill_links(emit, name))
        return name

    def _fill_links(self, emit: Emitter, name: str) -> None:
        self.attributes.fill(emit, f"{name}.__dict__[{{}}] = {{}}")
        self._write_links(emit, name)


_LINKS: Final[dict[str, SymbolicValue]] = {
    "__cause__": NONE, "__context__": NONE, "__suppress_context__": boolean(False),
}
"""Attributes of exceptions that refer to others, and what they are at first."""


_COMPLEX: Final = (OSError, UnicodeError, SyntaxError, BaseExceptionGroup)
"""Exceptions whose constructors do more than to keep their arguments."""

_COMMON: Final = frozenset(vars(BaseException))


def _has_own_init(cls: type) -> bool:
    return isinstance(type_lookup(cls, "__init__"), types.FunctionType)


@functools.cache
def _fields(cls: type) -> frozenset[str]:
    """Attributes of builtin exceptions that their arguments set."""
    kinds = (types.MemberDescriptorType, types.GetSetDescriptorType)
    return frozenset(
        name for base in cls.__mro__ if base.__module__ == "builtins"
        for name, attribute in vars(base).items()
        if isinstance(attribute, kinds) and name not in _COMMON)


@final
class TracebackValue(SymbolicValue):
    """The traceback of an exception that was raised and caught inside of the captured code."""

    __slots__ = ("exception",)

    def __init__(self, exception: SymbolicValue) -> None:
        super().__init__()
        self.exception = exception

    def python_type(self) -> type:
        return types.TracebackType

    def rebuild(self, emit: Emitter) -> str:
        error = emit.value(self.exception)
        name = emit.bind(self, f"{error}.__traceback__")
        with emit.block(f"if {name} is None:"):
            with emit.block("try:"):
                emit.line(f"raise {error}")
            with emit.block("except BaseException as error:"):
                emit.line(f"{name} = error.__traceback__")
        return name


def note_raised(value: SymbolicValue) -> None:
    """A raised exception has a traceback."""
    if isinstance(value, ExceptionValue) and value.traceback is NONE:
        value.traceback = TracebackValue(value)


def traceback_of(value: SymbolicValue) -> SymbolicValue:
    """What `__exit__` is given."""
    return value.traceback if isinstance(value, ExceptionValue) else NONE


def new_exception(cls: type[BaseException], args: list[SymbolicValue]) -> ExceptionValue:
    """An exception made by the capture on the program's behalf."""
    return ExceptionValue(cls, args)


def link_context(tx: Interpreter, value: SymbolicValue, handled: SymbolicValue | None) -> None:
    """An exception raised while another one is handled has that one as its context."""
    if not isinstance(value, ExceptionValue) or handled is None:
        return
    if value.link(tx, "__context__") is not NONE:
        return
    link: SymbolicValue = handled
    seen: set[int] = set()
    while isinstance(link, ExceptionValue) and id(link) not in seen:
        if link is value:
            return
        seen.add(id(link))
        link = link.known.get("__context__", NONE)
    value.set_link(tx, "__context__", handled)


def is_exception(value: SymbolicValue) -> bool:
    """Whether the value is an exception object."""
    return isinstance(value, ExceptionValue)


@wraps(BaseException, subclasses=True)
def _wrap_exception(tx: Interpreter, obj: Any, source: Source | None) -> SymbolicValue:
    if source is None:
        return ExceptionValue(type(obj), [tx.wrap_new(arg) for arg in obj.args])
    tx.guards.add(source, "type_is", type(obj))
    args = tx.unpack(tx.wrap(obj.args, source.attribute("args")))
    return ExceptionValue(type(obj), args, source, obj)


