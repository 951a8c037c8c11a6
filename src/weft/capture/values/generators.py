"""Generators made inside: suspended frames, resumed when the program asks for the next item.

Place in the pipeline: a value family; `next`, `send`, `throw`, `close` and `yield from` go through
it.
"""

from __future__ import annotations

import builtins
import inspect
import types
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, final

from weft.capture.breaks import ObservedException, graph_break
from weft.capture.continuation import resume_generator
from weft.capture.frame import Frame, frame_variables
from weft.capture.values.base import Args, Kwargs, SymbolicValue, stack_arguments, stack_kinds
from weft.capture.values.builtins import EXTERNAL_METHODS
from weft.capture.values.constant import NONE
from weft.capture.values.exceptions import is_exception, new_exception
from weft.capture.values.functions import GENERATOR, FunctionValue
from weft.capture.values.methods import MethodTable

if TYPE_CHECKING:
    from weft.capture.interpreter import Interpreter
    from weft.capture.replacement import Emitter


@final
class GeneratorValue(MethodTable):
    """A generator object."""

    __slots__ = ("done", "frame", "function", "result", "running", "started", "yielded")

    def __init__(self, frame: Frame, function: FunctionValue) -> None:
        super().__init__()
        self.frame = frame
        self.function = function
        self.started = False
        self.running = False
        self.done = False
        self.yielded = False
        self.result: SymbolicValue = NONE
        frame.generator = self

    def python_type(self) -> type:
        return types.GeneratorType

    def iter(self, tx: Interpreter) -> SymbolicValue:
        return self

    def next(self, tx: Interpreter) -> SymbolicValue | None:
        return self.resume(tx, NONE)

    def resume(self, tx: Interpreter, sent: SymbolicValue) -> SymbolicValue | None:
        """The next item; None when the generator returned (see `result`)."""
        if self.running:
            raise tx.error(ValueError, "generator already executing")
        if self.done:
            self.result = NONE
            return None
        if not (self.started or (sent is NONE or (sent.is_constant and sent.constant() is None))):
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
        except ObservedException:
            self.done = True
            raise
        finally:
            self.running = False
        if self.yielded:
            return value
        self.done = True
        self.result = value
        return None

    def throw(self, tx: Interpreter, error: ObservedException) -> SymbolicValue | None:
        """Raises at the `yield` where the generator is suspended."""
        if self.done or not self.started:
            self.done = True
            raise error
        tx.unwind(self.frame, error)
        return self._run(tx)

    @property
    def acts_when_left(self) -> bool:
        """Whether something would run if nobody went on with it: it waits in a `try` or `with`."""
        if self.done or not self.started:
            return False
        program = self.frame.program
        row = program.handler_of(self.frame.pc - 1)
        if row is None or program.instructions[row.target].name == "CALL_INTRINSIC_1":
            return False
        return not self._passes_on(row.target)

    def _passes_on(self, at: int) -> bool:
        """Whether the handler there only compares GeneratorExit with errors of builtins, as
        `except IndexError`, and raises it again, out of the generator."""
        program = self.frame.program
        instructions = program.instructions
        if instructions[at].name == "CALL_INTRINSIC_1":
            return True  # the end of every generator
        if instructions[at].name not in ("PUSH_EXC_INFO", "COPY"):
            return False
        at += 1
        while instructions[at].name == "LOAD_GLOBAL" and self._is_error(instructions[at].argval):
            test, jump = instructions[at + 1], instructions[at + 2]
            if test.name != "CHECK_EXC_MATCH" or not jump.name.endswith("IF_FALSE"):
                return False
            at = jump.target
        if instructions[at].name == "POP_EXCEPT":  # the end of a handler that was left
            at += 1
        if instructions[at].name != "RERAISE":
            return False
        row = program.handler_of(at)
        return row is None or self._passes_on(row.target)

    def _is_error(self, name: str) -> bool:
        """Whether a global name means one of Python's own errors."""
        kind = getattr(builtins, name, None)
        known = isinstance(kind, type) and issubclass(kind, Exception)
        return known and name not in self.frame.globals.original

    # -- rebuilding -------------------------------------------------------------------------------

    def rebuild(self, emit: Emitter) -> str:
        if self.running:
            raise graph_break("unknown-value", "a generator that is running")
        if self.done:
            name = emit.bind(self, f"{emit.constant(_finished)}()")
            emit.line(f"next({name}, None)")
            return name
        if not self.started:
            return self._rebuild_unstarted(emit)
        return self._rebuild_suspended(emit)

    def _rebuild_unstarted(self, emit: Emitter) -> str:
        """A call of its function with the arguments as they were bound."""
        code, variables = self.frame.code, self.frame.locals
        names = iter(code.co_varnames)
        parts = [emit.value(variables[name]) for name in islice(names, code.co_argcount)]
        keywords = [f"**{{{name!r}: {emit.value(variables[name])}}}"
                    for name in islice(names, code.co_kwonlyargcount)]
        if code.co_flags & inspect.CO_VARARGS:
            parts.append(f"*{emit.value(variables[next(names)])}")
        if code.co_flags & inspect.CO_VARKEYWORDS:
            keywords.append(f"**{emit.value(variables[next(names)])}")
        function = emit.value(self.function)
        return emit.bind(self, f"{function}({', '.join([*parts, *keywords])})")

    def _rebuild_suspended(self, emit: Emitter) -> str:
        """A generator made of the rest of the code, brought to where this one waits."""
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
        name = emit.bind(self, f"{self._with_closure(emit, function)}({', '.join(arguments)})")
        emit.line(f"next({name})")
        return name

    def _with_closure(self, emit: Emitter, function: types.FunctionType) -> str:
        free = function.__code__.co_freevars
        if not free:
            return emit.constant(function)
        cells = "".join(f"{emit.value(self.frame.cells[name])}, " for name in free)
        made = emit.temporary(
            f"{emit.constant(types.FunctionType)}({emit.constant(function.__code__)}, "
            f"{emit.constant(function.__globals__)}, {function.__name__!r}, None, ({cells}))")
        emit.line(f"{made}.__qualname__ = {function.__qualname__!r}")
        return made

    # -- methods ----------------------------------------------------------------------------------

    def _or_stop(self, tx: Interpreter, item: SymbolicValue | None) -> SymbolicValue:
        if item is not None:
            return item
        raise ObservedException(new_exception(StopIteration, [self.result]))

    def m___next__(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        return self._or_stop(tx, self.next(tx))

    def m___iter__(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        return self

    def m_send(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        return self._or_stop(tx, self.resume(tx, args[0]))

    def m_throw(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        value = args[1] if len(args) > 1 and is_exception(args[1]) else args[0]
        if not is_exception(value):
            value = tx.call(value, args[1:2])
        return self._or_stop(tx, self.throw(tx, ObservedException(value)))

    def m_close(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        if self.done or not self.started:
            self.done = True
            return NONE
        try:
            self.throw(tx, tx.error(GeneratorExit))
        except ObservedException as error:
            if not issubclass(error.value.python_type(), (GeneratorExit, StopIteration)):
                raise
        return NONE


def _finished() -> Iterator[Any]:
    """A generator without items."""
    return
    yield


GENERATOR.append(GeneratorValue)


def _itself(tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
    """`iter(generator)` of one from outside."""
    return args[0]


EXTERNAL_METHODS[types.GeneratorType, "__iter__"] = _itself
