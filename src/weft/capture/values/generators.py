"""Generators made inside: suspended frames, resumed when the program asks for the next item.

Place in the pipeline: a value family; `next`, `send`, `throw`, `close` and `yield from` go through
it.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, final

from weft.capture.breaks import ObservedException
from weft.capture.frame import Frame
from weft.capture.values.base import Args, Kwargs, SymbolicValue
from weft.capture.values.constant import NONE
from weft.capture.values.exceptions import is_exception, new_exception
from weft.capture.values.functions import GENERATOR, FunctionValue
from weft.capture.values.methods import MethodTable

if TYPE_CHECKING:
    from weft.capture.interpreter import Interpreter


@final
class GeneratorValue(MethodTable):
    """A generator object."""

    __slots__ = ("done", "frame", "function", "result", "started", "yielded")

    def __init__(self, frame: Frame, function: FunctionValue) -> None:
        super().__init__()
        self.frame = frame
        self.function = function
        self.started = False
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
        if self.done:
            self.result = NONE
            return None
        self.frame.stack.append(sent)
        self.started = True
        return self._run(tx)

    def _run(self, tx: Interpreter) -> SymbolicValue | None:
        self.frame.caller = tx.frame
        self.yielded = False
        try:
            value = tx.run(self.frame)
        except ObservedException:
            self.done = True
            raise
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


GENERATOR.append(GeneratorValue)
