"""print breaks the graph, so that its line comes when the program is there; logging may wait.

Place in the pipeline: see `handlers/__init__`. A record of constants is a side effect like another,
in the journal of `side_effects.py` at its place among them:

    logger.warning_once("no cache")   # the same call in the replacement, after the graph
    logger.info("loss %s", loss)      # a graph break: the value is unknown here
    print("layer", 3)                 # a graph break: who prints while debugging wants it now

Where a handler may write the line that logged, or does what is unknown, the graph breaks too.
"""

from __future__ import annotations

import logging
import types
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, final

from weft.capture.breaks import graph_break
from weft.capture.values.base import Args, Kwargs, OutsideObject, SymbolicValue
from weft.capture.values.constant import NONE, constant, python_object
from weft.capture.values.functions import rule
from weft.capture.values.registry import wraps

if TYPE_CHECKING:
    from weft.capture.interpreter import Interpreter
    from weft.capture.replacement import Emitter
    from weft.capture.source import Source


@final
class LogRecord(SymbolicValue):
    """A call that logs constants, in the journal of side effects."""

    __slots__ = ("args", "logger", "name")
    kind = logging.LogRecord

    def __init__(self, logger: logging.Logger, name: str, args: list[Any]) -> None:
        super().__init__()
        self.logger, self.name, self.args = logger, name, args

    def replay(self, emit: Emitter) -> None:
        """The call as a statement of the replacement."""
        given = ", ".join([repr(a) for a in self.args])
        emit.line(f"{emit.constant(self.logger)}.{self.name}({given})")


@rule(print, input, open, exec, eval, compile, breakpoint)
def _print(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    raise graph_break("print", "a call of print")


@final
class LoggerValue(OutsideObject):
    """A logging.Logger."""

    __slots__ = ()

    def rebuild(self, emit: Emitter) -> str:
        return emit.constant(self.object)

    def getattr(self, tx: Interpreter, name: str) -> SymbolicValue:
        return LogMethod(self.object, name)


@final
class LogMethod(SymbolicValue):
    """`logger.info`, ...: a call below the logger's level is nothing."""

    __slots__ = ("logger", "name")
    kind = types.MethodType

    def __init__(self, logger: logging.Logger, name: str) -> None:
        super().__init__()
        self.logger = logger
        self.name = name

    def call(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        if self.name == "isEnabledFor":
            return constant(self.logger.isEnabledFor(args[0].constant()))
        level = _LEVELS.get(self.name)
        if level is not None and not self.logger.isEnabledFor(level):
            return NONE
        texts = [python_object(tx, arg) for arg in args]
        known = all(type(text) in _WRITTEN for text in texts)
        if kwargs or level is None or not known or _tells_the_caller(self.logger):
            raise graph_break("print", f"a call of logger.{self.name}")
        tx.effects.touch(LogRecord(self.logger, self.name, texts))
        return NONE

    def rebuild(self, emit: Emitter) -> str:
        return f"{emit.constant(self.logger)}.{self.name}"


_LEVELS: Final = {
    "debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50,
    "warning_once": 30, "info_once": 20, "warning_advice": 30,
}
_WRITTEN: Final = (str, int, float, bool, type(None))
_PLAIN_HANDLERS: Final = frozenset(
    (logging.StreamHandler, logging.FileHandler, logging.NullHandler, type(logging.lastResort))
)
_CALLER: Final = ("(pathname)", "(filename)", "(module)", "(lineno)", "(funcName)")


def _tells_the_caller(logger: logging.Logger) -> bool:
    """May a handler write the line that logs, or do what is unknown?"""
    return bool(logger.filters) or any(
        type(handler) not in _PLAIN_HANDLERS or handler.filters or not _is_simple(handler.formatter)
        for handler in _handlers(logger)
    )


def _is_simple(formatter: logging.Formatter | None) -> bool:
    if formatter is None:
        return True
    text = formatter._fmt or ""
    return type(formatter) is logging.Formatter and not any(field in text for field in _CALLER)


def _handlers(logger: logging.Logger) -> Iterator[Any]:
    """Those that a record of the logger reaches."""
    current: logging.Logger | None = logger
    found = False
    while current is not None:
        found = found or bool(current.handlers)
        yield from current.handlers
        current = current.parent if current.propagate else None
    if not found:
        yield logging.lastResort


@wraps(logging.Logger, subclasses=True)
def _wrap_logger(tx: Interpreter, obj: Any, source: Source | None) -> SymbolicValue:
    if source is not None and source.accessor[0] != "object":
        tx.guards.add(source, "is", obj)
    return LoggerValue(obj, source)
