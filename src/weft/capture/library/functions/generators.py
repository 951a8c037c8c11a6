"""Generators made inside: suspended frames, resumed when the program asks for the next item.

Place in the pipeline: a value family; `next`, `send`, `throw`, `close` and `yield from` use it.
"""

from __future__ import annotations

import builtins
import inspect
import types
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final, final

from weft.capture.bytecode.continuation import resume_generator
from weft.capture.bytecode.tables import TABLE
from weft.capture.core.base import Args, SymbolicValue, stack_arguments, stack_kinds
from weft.capture.core.breaks import ObservedException, graph_break
from weft.capture.core.constant import NONE, is_none
from weft.capture.core.frame import Frame
from weft.capture.core.lifetimes import frame_variables
from weft.capture.core.methods import MethodTable
from weft.capture.library.classes.classes import ClassValue
from weft.capture.library.classes.instances import ObjectValue
from weft.capture.library.exceptions.exceptions import (
    ExceptionValue,
    is_exception,
    link_context,
    new_exception,
    stop_iteration_error,
)
from weft.capture.library.functions.builtins import method_rule
from weft.capture.library.functions.functions import FunctionValue, make_generator
from weft.quoting import assignment, literal

if TYPE_CHECKING:
    from weft.capture.core.protocols import Emitter, Interpreter


_IN_YIELD_FROM: Final = 2
"""What the low bits of RESUME's argument say behind the `yield` of a `yield from`."""


@final
class GeneratorValue(MethodTable):
    """A generator object."""

    __slots__ = ("done", "frame", "function", "names", "result", "running", "started", "yielded")
    kind = types.GeneratorType

    def __init__(self, frame: Frame, function: FunctionValue) -> None:
        super().__init__()
        self.frame = frame
        self.function = function
        self.names = {name: value for name, value in function.described.items()
                      if name in ("__name__", "__qualname__")}
        """The function's name if it was changed; generators copy it."""
        self.started = False
        self.running = False
        self.done = False
        self.yielded = False
        self.result: SymbolicValue = NONE
        frame.generator = self

    def iter(self, tx: Interpreter) -> SymbolicValue:
        return self

    def next(self, tx: Interpreter) -> SymbolicValue | None:
        return self.resume(tx, NONE)

    def resume(self, tx: Interpreter, sent: SymbolicValue) -> SymbolicValue | None:
        """The next item; None if the generator returned (see `result`)."""
        if self.running:
            raise tx.error(ValueError, "generator already executing")
        if self.done:
            self.result = NONE
            return None
        if not (self.started or is_none(sent)):
            raise tx.error(TypeError, "can't send non-None value to a just-started generator")
        self.frame.stack.append(sent)
        self.started = True
        return self._run(tx)

    def _run(self, tx: Interpreter) -> SymbolicValue | None:
        self.frame.caller = tx.frame
        self.yielded = False
        self.running = True
        try:
            value = tx.run(self.frame)
        except ObservedException as error:
            self.done = True
            raise _leaving(tx, error) from None
        finally:
            self.running = False
        if self.yielded:
            return value
        self.done = True
        self.result = value
        return None

    def throw(self, tx: Interpreter, error: ObservedException) -> SymbolicValue | None:
        """Raise at the `yield` where the generator waits, or in the iterator that it yields from.

        Returns the next item, or None if the generator returned.
        """
        if self.running:
            raise tx.error(ValueError, "generator already executing")
        if self.done:
            raise error
        if not self.started:
            self.done = True
            raise _leaving(tx, error)
        inner = self._yields_from()
        if inner is None:
            return self._throw_here(tx, error)
        self.running = True
        try:
            item = throw_into(tx, inner, error)
        except ObservedException as raised:
            return self._inner_raised(tx, raised)
        finally:
            self.running = False
        return self._throw_here(tx, error) if item is None else item

    def _throw_here(self, tx: Interpreter, error: ObservedException) -> SymbolicValue | None:
        self.running = False
        self.frame.caller = tx.frame
        if self.frame.handled:
            link_context(tx, error.value, self.frame.handled[-1])
        error.linked, error.again = True, False
        self.frame.stack.append(NONE)  # the value sent to a `yield`: handlers expect it
        try:
            tx.unwind(self.frame, error)
        except ObservedException as raised:
            self.done = True
            raise _leaving(tx, raised) from None
        return self._run(tx)

    def _inner_raised(self, tx: Interpreter, error: ObservedException) -> SymbolicValue | None:
        """Handle what came out of the iterator of a `yield from`: the return value is the value of
        the expression (since 3.12, byte code does that)."""
        frame = self.frame
        stopped = issubclass(error.value.python_type(), StopIteration)
        if TABLE.version == (3, 11):
            frame.stack.pop()
            program = frame.program.instructions
            frame.pc = program[program[frame.pc + 1].target].target
            if stopped:
                frame.stack.append(error.value.getattr(tx, "value"))
                self.running = False
                return self._run(tx)
        return self._throw_here(tx, error)

    def _yields_from(self) -> SymbolicValue | None:
        """The iterator of the `yield from` in which the generator waits, or None."""
        resumed = self.frame.program.instructions[self.frame.pc]
        within = resumed.name == "RESUME" and resumed.arg & 3 == _IN_YIELD_FROM
        return self.frame.stack[-1] if within else None

    @property
    def acts_when_left(self) -> bool:
        """Whether closing the generator runs code: it waits in a `try` or `with`."""
        if self.done or not self.started:
            return False
        program = self.frame.program
        row = program.handler_of(self.frame.pc - 1)
        if row is None or program.instructions[row.target].name == "CALL_INTRINSIC_1":
            return False
        return not self._passes_on(row.target)

    def _passes_on(self, at: int) -> bool:
        """Whether the handler at `at` passes GeneratorExit on without running other code.

        Such a handler only compares it with builtin errors, as `except IndexError` does, and raises
        it again.
        """
        program = self.frame.program
        instructions = program.instructions
        if instructions[at].name == "CALL_INTRINSIC_1":
            return True  # the end of every generator
        if instructions[at].name == "CLEANUP_THROW":  # `yield from`: see the inner generator
            row = program.handler_of(at)
            return row is None or self._passes_on(row.target)
        if instructions[at].name not in ("PUSH_EXC_INFO", "COPY"):
            return False
        at += 1
        while instructions[at].name == "LOAD_GLOBAL" and self._is_error(instructions[at].argval):
            test, jump = instructions[at + 1], instructions[at + 2]
            if test.name != "CHECK_EXC_MATCH" or not jump.name.endswith("IF_FALSE"):
                return False
            at = jump.target
        if instructions[at].name == "POP_EXCEPT":  # the end of the handler
            at += 1
        if instructions[at].name != "RERAISE":
            return False
        row = program.handler_of(at)
        return row is None or self._passes_on(row.target)

    def _is_error(self, name: str) -> bool:
        """Whether a global name means one of Python's builtin errors."""
        kind = getattr(builtins, name, None)
        known = isinstance(kind, type) and issubclass(kind, Exception)
        return known and name not in self.frame.globals.original

    # -- rebuilding -------------------------------------------------------------------------------

    def rebuild(self, emit: Emitter) -> str:
        if self.running:
            raise graph_break("unknown-value", "a generator that is running")
        if self.done:
            name = emit.bind(self, f"{emit.constant(_empty_generator)}()")
            emit.line(f"next({name}, None)")
            return name
        if not self.started:
            return self._rebuild_unstarted(emit)
        return self._rebuild_suspended(emit)

    def _rebuild_unstarted(self, emit: Emitter) -> str:
        """A call of the generator's function with the bound arguments."""
        code, variables = self.frame.code, self.frame.locals
        names = iter(code.co_varnames)
        parts = [emit.value(variables[name]) for name in islice(names, code.co_argcount)]
        keywords = [f"**{{{literal(name)}: {emit.value(variables[name])}}}"
                    for name in islice(names, code.co_kwonlyargcount)]
        if code.co_flags & inspect.CO_VARARGS:
            parts.append(f"*{emit.value(variables[next(names)])}")
        if code.co_flags & inspect.CO_VARKEYWORDS:
            keywords.append(f"**{emit.value(variables[next(names)])}")
        function = emit.value(self.function)
        return self._rename(emit, f"{function}({', '.join([*parts, *keywords])})")

    def _rename(self, emit: Emitter, text: str) -> str:
        name = emit.bind(self, text)
        for attribute, value in self.names.items():
            emit.line(assignment(name, attribute, emit.value(value)))
        return name

    def _rebuild_suspended(self, emit: Emitter) -> str:
        """A generator made from the rest of the code, run to the point where this one waits."""
        frame, code = self.frame, self.frame.code
        offset = frame.program.instructions[frame.pc].offset
        names = frame_variables(frame, code, offset)
        boxes = [name for name in names if name in frame.cells and name in code.co_cellvars]
        plain = [name for name in names if name not in boxes]
        cells = tuple(types.CellType() for _ in code.co_freevars)
        function = resume_generator(
            code, offset, stack_kinds(frame.stack), plain, boxes,
            globals=frame.globals.original, closure=cells or None)
        function.__qualname__ = self.function.name
        arguments = stack_arguments(emit, frame.stack)
        arguments += [emit.value(frame.locals[name]) for name in plain]
        arguments += [emit.value(frame.cells[name]) for name in boxes]
        name = self._rename(emit, f"{self._with_closure(emit, function)}({', '.join(arguments)})")
        emit.line(f"next({name})")
        return name

    def _with_closure(self, emit: Emitter, function: types.FunctionType) -> str:
        free = function.__code__.co_freevars
        if not free:
            return emit.constant(function)
        cells = "".join(f"{emit.value(self.frame.cells[name])}, " for name in free)
        function_name = emit.temporary(
            f"{emit.constant(types.FunctionType)}({emit.constant(function.__code__)}, "
            f"{emit.constant(function.__globals__)}, {function.__name__!r}, None, ({cells}))")
        emit.line(f"{function_name}.__qualname__ = {function.__qualname__!r}")
        return function_name

    # -- methods ----------------------------------------------------------------------------------

    def or_stop(self, item: SymbolicValue | None) -> SymbolicValue:
        """The item; if it is None, the StopIteration with the return value is raised."""
        if item is not None:
            return item
        values = [] if is_none(self.result) else [self.result]
        raise ObservedException(new_exception(StopIteration, values))

    def m___next__(self, tx: Interpreter) -> SymbolicValue:
        return self.or_stop(self.next(tx))

    def m___iter__(self, tx: Interpreter) -> SymbolicValue:
        return self

    def m_send(self, tx: Interpreter, value: SymbolicValue, /) -> SymbolicValue:
        return self.or_stop(self.resume(tx, value))

    def m_throw(self, tx: Interpreter, error: SymbolicValue, /, *more: SymbolicValue
                ) -> SymbolicValue:
        return self.or_stop(self.throw(tx, ObservedException(_thrown(tx, [error, *more]))))

    def m_close(self, tx: Interpreter) -> SymbolicValue:
        if self.done or not self.started:
            self.done = True
            return NONE
        try:
            item = self.throw(tx, tx.error(GeneratorExit))
        except ObservedException as error:
            if not issubclass(error.value.python_type(), (GeneratorExit, StopIteration)):
                raise
            return NONE
        if item is not None:
            raise tx.error(RuntimeError, "generator ignored GeneratorExit")
        return self.result if TABLE.version >= (3, 13) else NONE


def _leaving(tx: Interpreter, error: ObservedException) -> ObservedException:
    """The error that leaves a generator's frame; never a StopIteration (since 3.12, byte code does
    that)."""
    if TABLE.version != (3, 11) or not issubclass(error.value.python_type(), StopIteration):
        return error
    raised = ObservedException(stop_iteration_error(tx, error.value))
    raised.linked = True
    return raised


def throw_into(tx: Interpreter, inner: SymbolicValue, error: ObservedException
               ) -> SymbolicValue | None:
    """Throw an exception into the iterator of a `yield from` and return its next item.

    Returns None if the exception should be raised outside of it. Errors of the iterator,
    StopIteration too, propagate.
    """
    closes = issubclass(error.value.python_type(), GeneratorExit)
    if isinstance(inner, GeneratorValue) and not closes:
        return inner.or_stop(inner.throw(tx, error))
    try:
        method = inner.getattr(tx, "close" if closes else "throw")
    except ObservedException as missing:
        if issubclass(missing.value.python_type(), AttributeError):
            return None
        if closes:
            raise graph_break("unknown-operation", "a `close` that cannot be read") from None
        raise
    if not closes:
        return method.call(tx, [error.value], {})
    method.call(tx, [], {})
    return None


def next_or_stop(tx: Interpreter, iterator: SymbolicValue) -> SymbolicValue:
    """The next item; at the end, the iterator's StopIteration is raised."""
    if isinstance(iterator, GeneratorValue):
        return iterator.or_stop(iterator.next(tx))
    if isinstance(iterator, ObjectValue):
        return tx.force(iterator.next_item(tx))
    item = iterator.next(tx)
    if item is None:
        raise tx.error(StopIteration)
    return item


def _thrown(tx: Interpreter, args: Args) -> SymbolicValue:
    """The exception that `generator.throw(*args)` raises."""
    if len(args) == 1 or TABLE.version != (3, 11):
        return _exception_of(tx, *args)
    error = _exception_of(tx, *args[:2])
    assert isinstance(error, ExceptionValue)
    traceback = args[2] if len(args) > 2 else NONE
    if not is_none(traceback) or isinstance(args[0], ClassValue):
        error.generic_setattr(tx, "__traceback__", traceback)
    return error


def _exception_of(tx: Interpreter, kind: SymbolicValue, value: SymbolicValue = NONE
                  ) -> SymbolicValue:
    if is_exception(kind) and is_none(value):
        return kind
    if not isinstance(kind, ClassValue):
        raise graph_break("unknown-operation", "throw with these arguments")
    if is_exception(value) and kind.cls in value.python_type().__mro__:
        return value
    if not (is_none(value) or value.is_constant) or value.python_type() is tuple:
        raise graph_break("unknown-operation", "throw with a value that is no exception")
    error = tx.call(kind, [] if is_none(value) else [value])
    if not is_exception(error):
        raise graph_break("unknown-operation", "throw of a class that makes no exceptions")
    return error


def _empty_generator() -> Iterator[object]:
    """A generator without items."""
    return
    yield


make_generator.define(GeneratorValue)


@method_rule((types.GeneratorType, "__iter__"))
def _itself(tx: Interpreter, generator: SymbolicValue, /) -> SymbolicValue:
    """`iter(generator)` of a generator from outside."""
    return generator
