"""Logging: records of constants and numbers wait for the end of the graph, others break it.

Place in the pipeline: see `weft.capture.library`. A record of constants and numbers is a side
effect, replayed in order with the others (`core/side_effects.py`)::

    logger.warning_once("no cache")   # the same call in the replacement, after the graph
    logger.debug("below the level")   # nothing, under guards on the levels
    logger.info("loss %s", loss)      # a graph break: a tensor may be written to meanwhile

The graph also breaks if a handler may write the line that logged or does something unknown, or if
the frame has changed a handler, a filter or `sys.stderr`.
"""

from __future__ import annotations

import logging
import sys
import types
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, final

from weft.capture.core.base import MISSING, Args, Kwargs, OutsideObject, SymbolicValue
from weft.capture.core.breaks import graph_break
from weft.capture.core.constant import NONE, constant, python_object
from weft.capture.core.registry import wraps
from weft.capture.library.classes.attributes import type_lookup
from weft.capture.library.functions.functions import rule
from weft.capture.library.numbers.symbolic_numbers import SymbolicNumberValue
from weft.capture.library.texts.symbolic_texts import TextValue

if TYPE_CHECKING:
    from weft.capture.core.protocols import Emitter, Interpreter
    from weft.capture.core.source import Source


@final
class LogRecord(SymbolicValue):
    """A call that logs constants, as a side effect."""

    __slots__ = ("args", "logger", "name")
    kind = logging.LogRecord

    def __init__(self, logger: logging.Logger, name: str, args: Args) -> None:
        super().__init__()
        self.logger, self.name, self.args = logger, name, args

    def replay(self, emit: Emitter) -> None:
        """Emit the call."""
        arguments = ", ".join(map(emit.value, self.args))
        emit.line(f"{emit.constant(self.logger)}.{self.name}({arguments})")


@rule(logging.getLogger)
def _get_logger(tx: Interpreter, name: SymbolicValue = NONE) -> SymbolicValue:
    known = python_object(tx, name)
    default = tx.globals_of(vars(logging)).lookup(tx, "_loggerClass")  # the frame may set it
    if default is None or default.real() is not logging.Logger or (
            type(known) not in (str, type(None))):
        raise graph_break("unknown-operation", f"the logger of {name!r}")
    return tx.wrap_fixed(logging.getLogger(known), "logger")


@final
class LoggerValue(OutsideObject):
    """A logging.Logger."""

    __slots__ = ()

    def getattr(self, tx: Interpreter, name: str) -> SymbolicValue:
        value = vars(self.object).get(name, MISSING)
        if value is not MISSING:
            return tx.wrap(value, _attributes(tx, self.object).dict_item(name))
        kind = type(self.object)
        defined = type_lookup(kind, name)
        if defined is MISSING:
            raise tx.error(AttributeError, f"'{kind.__name__}' object has no attribute '{name}'")
        if not callable(defined) or not _is_usual(kind, (name, *_STEPS)):
            raise graph_break("unknown-operation", f"attribute {name!r} of a logger")
        return LogMethod(self.object, name)


@final
class LogMethod(SymbolicValue):
    """`logger.info` and so on; a call below the logger's level does nothing."""

    __slots__ = ("logger", "name")
    kind = types.MethodType

    def __init__(self, logger: logging.Logger, name: str) -> None:
        super().__init__()
        self.logger = logger
        self.name = name

    def call(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        if self.name == "isEnabledFor":
            return constant(_is_enabled(tx, self.logger, args[0].constant()))
        level = args[0].constant() if self.name == "log" else _LEVELS.get(self.name)
        if level is not None and not _is_enabled(tx, self.logger, level):
            return NONE
        known = all(_is_written_alike(tx, arg) for arg in args)
        if (kwargs or level is None or not known or not _is_plain(self.logger)
                or _is_changed(tx, self.logger)):
            raise graph_break("print", f"a call of logger.{self.name}")
        tx.guards.add(tx.tree.object(self.logger, "logger"), "py", _is_plain)
        tx.effects.touch(LogRecord(self.logger, self.name, args))
        return NONE

    def rebuild(self, emit: Emitter) -> str:
        return f"{emit.constant(self.logger)}.{self.name}"


_STEPS: Final = (
    "isEnabledFor", "getEffectiveLevel", "_log", "makeRecord", "handle", "callHandlers")


def _is_usual(kind: type, names: Iterable[str]) -> bool:
    """Whether a class of loggers has not overridden these methods."""
    return all(type_lookup(kind, name) is type_lookup(logging.Logger, name) for name in names)


_LEVELS: Final = {
    "debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50,
    "warning_once": 30, "info_once": 20, "warning_advice": 30,
}
_WRITTEN: Final = (str, int, float, bool, type(None))


def _is_written_alike(tx: Interpreter, value: SymbolicValue) -> bool:
    """Whether the value cannot change between the call and the end of the graph."""
    return isinstance(value, SymbolicNumberValue | TextValue) or (
        type(python_object(tx, value)) in _WRITTEN)


def _attributes(tx: Interpreter, obj: object) -> Source:
    return tx.tree.object(obj, "logger").instance_dict()


def _is_enabled(tx: Interpreter, logger: logging.Logger, level: int) -> bool:
    """`logger.isEnabledFor(level)`, with guards on all that it depends on."""
    switches = ((logger, "disabled"), (logger.manager, "_disable"))
    for owner, name in (*switches, *_level_attributes(logger)):
        obj = vars(owner)[name]
        kind = "is" if isinstance(obj, logging.Logger) else "eq"
        tx.guards.add(_attributes(tx, owner).dict_item(name), kind, obj)
    return logger.isEnabledFor(level)


def _level_attributes(logger: logging.Logger) -> Iterator[tuple[object, str]]:
    """The attributes that determine the effective level."""
    current: logging.Logger | None = logger
    while current is not None:
        yield current, "level"
        if current.level:
            return
        yield current, "parent"
        current = current.parent


_PLAIN_HANDLERS: Final = frozenset(
    (logging.StreamHandler, logging.FileHandler, logging.NullHandler, type(logging.lastResort))
)
_CALLER: Final = ("(pathname)", "(filename)", "(module)", "(lineno)", "(funcName)")


def _is_plain(logger: logging.Logger) -> bool:
    """Whether all handlers are known and none writes the line that logs."""
    return not logger.filters and all(
        type(handler) in _PLAIN_HANDLERS and not handler.filters and _is_simple(handler.formatter)
        for handler in _handlers(logger)
    )


def _is_changed(tx: Interpreter, logger: logging.Logger) -> bool:
    """Whether the frame has changed something that decides what becomes of a record."""
    modules = any(tx.effects.changed(tx.globals_of(vars(module))) for module in (sys, logging))
    return modules or tx.effects.changed_any(*_state(logger))


def _state(logger: logging.Logger) -> Iterator[Any]:
    """The objects that decide what becomes of a record."""
    current: logging.Logger | None = logger
    while current is not None:
        yield from (current, vars(current), current.handlers, current.filters)
        current = current.parent
    for handler in _handlers(logger):
        yield from (handler, vars(handler), handler.filters, handler.formatter)


def _is_simple(formatter: logging.Formatter | None) -> bool:
    if formatter is None:
        return True
    text = formatter._fmt or ""
    return type(formatter) is logging.Formatter and not any(field in text for field in _CALLER)


def _handlers(logger: logging.Logger) -> Iterator[Any]:
    """The handlers that receive the logger's records."""
    current: logging.Logger | None = logger
    has_handlers = False
    while current is not None:
        has_handlers = has_handlers or bool(current.handlers)
        yield from current.handlers
        current = current.parent if current.propagate else None
    if not has_handlers:
        yield logging.lastResort


@wraps(logging.Logger, subclasses=True)
def _wrap_logger(tx: Interpreter, obj: object, source: Source | None) -> SymbolicValue:
    tx.guards.identity(source, obj)
    return LoggerValue(obj, source)
