"""Exceptions that the interpreted program makes, raises and catches.

Place in the pipeline: a value family; `ObservedException` carries one through the interpreter.
"""

from __future__ import annotations

import functools
import sys
import types
from typing import TYPE_CHECKING, Any, Final, final

from weft.capture.core.base import MISSING, LazyValue, SymbolicValue
from weft.capture.core.breaks import ObservedException, graph_break
from weft.capture.core.constant import NONE, boolean, constant, evaluate, is_none, python_object
from weft.capture.core.frame import Frame, is_polyfill
from weft.capture.core.registry import wraps
from weft.capture.core.source import Source
from weft.capture.core.tracebacks import Place, traceback_entry
from weft.capture.library.classes.attributes import type_lookup
from weft.capture.library.classes.instances import ObjectValue
from weft.capture.library.containers.sequences import TupleValue
from weft.quoting import assignment

if TYPE_CHECKING:
    from weft.capture.core.protocols import Emitter, Interpreter


@final
class ExceptionValue(ObjectValue):
    """An exception object."""

    __slots__ = ("args", "fields", "group", "known", "raised_first", "traceback", "written")

    def __init__(self, cls: type[BaseException], args: list[SymbolicValue],
                 source: Source | None = None, original: Any = MISSING) -> None:
        super().__init__(cls, source, original)
        self.args = args
        self.fields: dict[str, SymbolicValue] = {}
        """Values that were set for attributes of its C type, such as `name` of an ImportError."""
        self.group: dict[str, SymbolicValue] = {}
        """`message` and `exceptions` of a group made inside."""
        self.known: dict[str, SymbolicValue] = {}
        """Attributes of `_LINKS` that were read or set."""
        self.written: dict[str, None] = {}
        """Names of attributes that were set, in order."""
        self.traceback: SymbolicValue | None = NONE if source is None else None
        """None: the traceback of an outside exception that was not read."""
        self.raised_first = False
        """Whether it was raised while the capture was handling no other exception."""

    def __repr__(self) -> str:
        return f"{self.cls.__name__}({', '.join(map(repr, self.args))})"

    def link(self, tx: Interpreter, name: str) -> SymbolicValue:
        """`__cause__`, `__context__` or `__suppress_context__`."""
        linked = self.known.get(name)
        if linked is None:
            linked = _LINKS[name]
            if name == "__context__" and self._has_outer_context():
                nothing_handled_outside(tx)
            if self.source is not None:
                linked = tx.wrap(getattr(self.original, name), self.source.attribute(name))
            self.known[name] = linked
        return linked

    def set_link(self, tx: Interpreter, name: str, value: SymbolicValue) -> None:
        """Set one of them; setting a cause suppresses the context."""
        self.known[name] = value
        self._note_written(tx, name)
        if name == "__cause__":
            self.set_link(tx, "__suppress_context__", boolean(True))

    def set_field(self, tx: Interpreter, name: str, value: SymbolicValue) -> None:
        """Set an attribute of the C type."""
        self.fields[name] = value
        self._note_written(tx, name)

    def set_traceback(self, tx: Interpreter, value: SymbolicValue) -> None:
        """Sets `__traceback__`."""
        if value is not self.traceback:
            self.traceback = value
            self._note_written(tx, "__traceback__")

    def now_traceback(self, tx: Interpreter) -> SymbolicValue:
        """`__traceback__`."""
        if self.traceback is None:
            assert self.source is not None
            place = self.source.attribute("__traceback__")
            self.traceback = tx.wrap(self.original.__traceback__, place)
        return self.traceback

    def passed(self, tx: Interpreter, frame: Frame) -> None:
        """Record that the exception was raised in the frame or passed through it."""
        rest = self.traceback
        if rest is None:
            assert self.source is not None
            rest = LazyValue(self.source.attribute("__traceback__"), self.original.__traceback__)
        self.traceback = TracebackValue(frame, rest)
        if self.source is not None:
            tx.effects.touch(self)

    def _note_written(self, tx: Interpreter, name: str) -> None:
        self.written.setdefault(name)
        if self.source is not None:
            tx.effects.touch(self)

    def initialise(self, tx: Interpreter, args: list[SymbolicValue],
                   kwargs: dict[str, SymbolicValue]) -> None:
        """`BaseException.__init__`, or the one of a builtin exception class."""
        if issubclass(self.cls, BaseExceptionGroup):
            self._take_group(tx, args, kwargs)
            return
        fields = next((names for kind, names in _KEYWORDS.items() if kind in self.cls.__mro__), ())
        if not kwargs.keys() <= {*fields}:
            raise graph_break("unknown-operation", f"making a {self.cls.__name__}")
        if issubclass(self.cls, _COMPLEX) and not (
                issubclass(self.cls, OSError) and len(args) == 1):
            self._take_constants(tx, args)
            return
        if self.source is not None or self.fields:
            for name in fields:
                self.set_field(tx, name, NONE)
        for name, value in kwargs.items():
            self.set_field(tx, name, value)
        self.args = args
        if self.source is not None:
            self._note_written(tx, "args")

    def _take_constants(self, tx: Interpreter, args: list[SymbolicValue]) -> None:
        """Become what the C constructor makes of constants, which may be of a subclass."""
        objects = [python_object(tx, arg) for arg in args]
        own = _has_own_init(self.cls) or isinstance(
            type_lookup(self.cls, "__new__"), (staticmethod, types.FunctionType))
        if MISSING in objects or own or self.source is not None:
            raise graph_break("unknown-operation", f"making a {self.cls.__name__}")
        exception = evaluate(tx, lambda: self.cls(*objects))
        kind: type = type(exception)
        self.cls = kind
        self.args = [tx.wrap_new(arg) for arg in exception.args]
        self.fields = {name: tx.wrap_new(getattr(exception, name)) for name in sorted(_fields(kind))
                       if getattr(exception, name, None) is not None}

    def _take_group(self, tx: Interpreter, args: list[SymbolicValue],
                    kwargs: dict[str, SymbolicValue]) -> None:
        """Set the fields that `BaseExceptionGroup.__new__` makes from its arguments."""
        own = _has_own_init(self.cls) or type_lookup(self.cls, "__new__") is not _GROUP_NEW
        plain = (len(args) == 2 and not (kwargs or own) and self.source is None
                 and args[0].python_type() is str and args[1].python_type() in (list, tuple))
        members = tx.unpack(args[1]) if plain else []
        kinds = [self.cls, *(member.python_type() for member in members)]
        if not members or not all(issubclass(kind, Exception) for kind in kinds):
            raise graph_break("unknown-operation", f"making a {self.cls.__name__}")
        self.args = args
        self.group = {"message": args[0], "exceptions": TupleValue(members)}

    def slot_attribute(self, tx: Interpreter, name: str) -> SymbolicValue:
        if name == "args":
            return TupleValue(self.args)
        if name in self.group:
            return self.group[name]
        if name in self.fields:
            return self.fields[name]
        if name == "value" and issubclass(self.cls, StopIteration):
            return self.args[0] if self.args else NONE
        if name in _LINKS:
            return self.link(tx, name)
        if name == "__traceback__":
            return self.now_traceback(tx)
        if self.original is MISSING and name in _fields(self.cls):
            return self._field(tx, name)
        return super().slot_attribute(tx, name)

    def _field(self, tx: Interpreter, name: str) -> SymbolicValue:
        """An attribute that the C constructor sets from the arguments:
        `ImportError("text").msg`."""
        return tx.wrap_new(getattr(self._again(tx, name), name))

    def _again(self, tx: Interpreter, what: str) -> object:
        """An equal exception; breaks the graph if its parts are no constants."""
        objects = [python_object(tx, arg) for arg in self.args]
        fields = {name: python_object(tx, field) for name, field in self.fields.items()}
        known = self.original is MISSING and MISSING not in (*objects, *fields.values())
        if not known or _has_own_init(self.cls):
            raise graph_break("unknown-operation", f"{what} of a {self.cls.__name__}")
        copy = self.cls(*objects)
        for name, field in fields.items():
            setattr(copy, name, field)
        return copy

    def text(self, tx: Interpreter) -> SymbolicValue | None:
        """`str` of an exception whose C type writes other attributes than `args`; else None."""
        if self.group:
            count = self.group["exceptions"].length(tx)
            plural = "s" if count > 1 else ""
            return constant(f"{self.group['message'].constant()} ({count} sub-exception{plural})")
        if not issubclass(self.cls, (*_COMPLEX, ImportError)) or (
                issubclass(self.cls, OSError) and len(self.args) == 1):
            return None
        return constant(str(self._again(tx, "str")))

    def _set_descriptor(self, tx: Interpreter, name: str, attribute: object, value: SymbolicValue
                        ) -> None:
        if not _may_be(name, value):
            raise graph_break("unknown-operation", f"setting {name} of {self!r} to {value!r}")
        if name == "args":
            self.args = tx.unpack(value)
            self._note_written(tx, name)
        elif name in _LINKS:
            self.set_link(tx, name, NONE if is_none(value) else value)
        elif name == "__traceback__":
            self.set_traceback(tx, value)
        elif _is_plain_field(self.cls, name, attribute):
            self.set_field(tx, name, value)
        else:
            super()._set_descriptor(tx, name, attribute, value)

    def generic_delattr(self, tx: Interpreter, name: str) -> None:
        if name in _COMMON or name in _fields(self.cls):
            raise graph_break("unknown-operation", f"deleting {name} of {self!r}")
        super().generic_delattr(tx, name)

    def replay(self, emit: Emitter) -> None:
        super().replay(emit)
        self._adopt(emit, emit.value(self))
        self._write_links(emit, emit.value(self))

    def _has_outer_context(self) -> bool:
        """Whether its context is the exception that the caller of the frame handles."""
        return self.raised_first if self.source is not None else self.traceback is not NONE

    def _adopt(self, emit: Emitter, target: str) -> None:
        if self._has_outer_context() and "__context__" not in self.written:
            emit.line(f"{emit.constant(adopt)}({target})")

    def _write_links(self, emit: Emitter, target: str) -> None:
        for name in self.written:
            if name == "args":
                emit.line(f"{target}.args = ({''.join(f'{emit.value(a)}, ' for a in self.args)})")
            elif name != "__traceback__":
                value = self.known.get(name) or self.fields[name]
                emit.line(assignment(target, name, emit.value(value)))
        if self.traceback is not None and self.traceback is not NONE:
            emit.line(f"{target}.__traceback__ = {emit.value(self.traceback)}")
        elif "__traceback__" in self.written:
            emit.line(f"{target}.__traceback__ = None")

    def rebuild(self, emit: Emitter) -> str:
        args = "".join(f", {emit.value(arg)}" for arg in self.args)
        cls = emit.constant(self.cls)
        whole = not _has_own_init(self.cls)
        if self.group:
            args = "".join(f", {emit.value(part)}" for part in self.group.values())
        text = f"{cls}({args[2:]})" if whole else f"{cls}.__new__({cls}{args})"
        name = emit.bind(self, text)
        emit.line(f"{name}.args = ({''.join(f'{emit.value(a)}, ' for a in self.args)})")
        emit.later(lambda: self._fill_links(emit, name))
        return name

    def _fill_links(self, emit: Emitter, name: str) -> None:
        self.attributes.fill(emit, f"{name}.__dict__[{{}}] = {{}}")
        for field in self.fields:
            self.written.setdefault(field)
        self._adopt(emit, name)
        self._write_links(emit, name)


_LINKS: Final[dict[str, SymbolicValue]] = {
    "__cause__": NONE, "__context__": NONE, "__suppress_context__": boolean(False),
}
"""Attributes of exceptions that refer to other objects, and their initial values."""


_KEYWORDS: Final[dict[type, tuple[str, ...]]] = {
    ImportError: ("name", "path"), AttributeError: ("name", "obj"), NameError: ("name",),
}
"""Attributes that the constructors of builtin exceptions take by name."""

_COMPLEX: Final = (OSError, UnicodeError, SyntaxError, BaseExceptionGroup)
"""Exceptions whose constructors do more than to keep their arguments."""

_GROUP_NEW: Final = vars(BaseExceptionGroup)["__new__"]
_COMMON: Final = frozenset(vars(BaseException))


def _has_own_init(cls: type) -> bool:
    return isinstance(type_lookup(cls, "__init__"), types.FunctionType)


@functools.cache
def _fields(cls: type) -> frozenset[str]:
    """The attributes of builtin exceptions that their arguments set."""
    kinds = (types.MemberDescriptorType, types.GetSetDescriptorType)
    return frozenset(
        name for base in cls.__mro__ if base.__module__ == "builtins"
        for name, attribute in vars(base).items()
        if isinstance(attribute, kinds) and name not in _COMMON and name[:2] != "__")


def _is_plain_field(cls: type, name: str, attribute: object) -> bool:
    """Whether setting the attribute just stores the value."""
    return (isinstance(attribute, types.MemberDescriptorType) and name in _fields(cls)
            and not issubclass(cls, _COMPLEX))


def _may_be(name: str, value: SymbolicValue) -> bool:
    """Whether the C type accepts the value for an attribute; if not, Python raises the error."""
    if name in ("__cause__", "__context__"):
        return is_none(value) or is_exception(value)
    if name == "__traceback__":
        return is_none(value) or value.python_type() is types.TracebackType
    return name != "__suppress_context__" or value.python_type() is bool


@final
class TracebackValue(SymbolicValue):
    """The traceback of an exception that passed frames of the captured code."""

    __slots__ = ("frame", "line", "offset", "rest")
    kind = types.TracebackType

    def __init__(self, frame: Frame, rest: SymbolicValue) -> None:
        super().__init__()
        self.frame = frame
        self.line = frame.current.line
        self.offset = frame.current.offset
        self.rest = rest
        """The traceback inside of what the frame called."""

    def getattr(self, tx: Interpreter, name: str) -> SymbolicValue:
        if name == "tb_next":
            return tx.force(self.rest)
        if name == "tb_lineno":
            return tx.wrap_new(self.line)
        if name == "tb_frame":
            raise graph_break("observed-interpreter", "the frame of a traceback")
        return super().getattr(tx, name)

    def rebuild(self, emit: Emitter) -> str:
        frame = self.frame
        place = Place(frame.code, frame.globals.original, self.offset, self.line,
                      frame.last_line)
        rest = emit.value(self.rest)
        entry = emit.constant(traceback_entry)
        return emit.bind(self, f"{entry}({rest}, {emit.constant(place)})")


def note_passed(tx: Interpreter, value: SymbolicValue, frame: Frame) -> None:
    """Add a frame to the traceback of a raised exception."""
    if isinstance(value, ExceptionValue) and not is_polyfill(frame.code):
        value.passed(tx, frame)


def traceback_of(tx: Interpreter, value: SymbolicValue) -> SymbolicValue:
    """The traceback that `__exit__` receives."""
    return value.now_traceback(tx) if isinstance(value, ExceptionValue) else NONE


def adopt(error: BaseException) -> None:
    """Set the context of an exception that a replacement raises: what the caller of the replacement
    handles."""
    handled = sys.exc_info()[1]
    if handled is None or handled is error:
        return
    seen: set[int] = set()
    link = handled
    while link.__context__ is not None and id(link) not in seen:
        seen.add(id(link))
        if link.__context__ is error:
            link.__context__ = None  # there are no cycles
            break
        link = link.__context__
    error.__context__ = handled


def _handled_outside(exc_info: Any) -> object:
    return exc_info()[1]


def nothing_handled_outside(tx: Interpreter) -> None:
    """Guard that the frame is not called while an exception is being handled."""
    if tx.called_in_handler:
        raise graph_break("unknown-operation", "the exception that is handled outside")
    source = tx.tree.object(sys.exc_info, "sys.exc_info")
    tx.guards.add(source.call(_handled_outside, "sys.exception()"), "is", None)


def read_attribute(tx: Interpreter, owner: SymbolicValue, name: str) -> SymbolicValue:
    """`owner.name`; an AttributeError gets its `name` and `obj` set."""
    try:
        return owner.getattr(tx, name)
    except ObservedException as error:
        name_attribute(tx, error.value, owner, name)
        raise


def name_attribute(tx: Interpreter, value: SymbolicValue, owner: SymbolicValue, name: str) -> None:
    """Set `name` and `obj` of an AttributeError, unless they are set."""
    if not isinstance(value, ExceptionValue) or AttributeError not in value.cls.__mro__:
        return
    if value.source is not None:
        known = any(not is_none(value.slot_attribute(tx, field)) for field in ("name", "obj"))
    else:
        known = any(not is_none(value.fields.get(field, NONE)) for field in ("name", "obj"))
    if not known:
        value.set_field(tx, "name", constant(name))
        value.set_field(tx, "obj", owner)


def new_exception(cls: type[BaseException], args: list[SymbolicValue]) -> ExceptionValue:
    """An exception that capture makes on the program's behalf."""
    return ExceptionValue(cls, args)


def stop_iteration_error(tx: Interpreter, error: SymbolicValue) -> SymbolicValue:
    """The RuntimeError that leaves a generator whose body raises StopIteration (PEP 479)."""
    if not issubclass(error.python_type(), StopIteration):
        return error
    runtime_error = new_exception(RuntimeError, [tx.wrap_new("generator raised StopIteration")])
    runtime_error.set_link(tx, "__cause__", error)
    runtime_error.set_link(tx, "__context__", error)
    return runtime_error


def link_context(tx: Interpreter, value: SymbolicValue, handled: SymbolicValue | None) -> None:
    """Set the context of an exception to the one that is being handled."""
    if not isinstance(value, ExceptionValue):
        return
    value.raised_first = handled is None
    if not isinstance(handled, ExceptionValue) or handled is value:
        return
    _forget_context(tx, handled, value)
    value.set_link(tx, "__context__", handled)


def _forget_context(tx: Interpreter, link: ExceptionValue, value: ExceptionValue) -> None:
    """Remove the link to `value` from a chain of contexts: chains have no cycles."""
    seen: set[int] = set()
    while id(link) not in seen:
        seen.add(id(link))
        if link.source is not None and value.source is None and "__context__" not in link.known:
            return  # an exception made inside is not in an outside chain
        context = link.link(tx, "__context__")
        if context is value:
            link.set_link(tx, "__context__", NONE)
            return
        if not isinstance(context, ExceptionValue):
            return
        link = context


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


