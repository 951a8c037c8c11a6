"""Numbers that differ from run to run: the `id` of an object, the number of the thread.

Place in the pipeline: a value family. Such a number can be compared, used as a key and returned;
only the replacement knows its value::

    id(made_here)        # replacement: id(t0)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from weft.capture.core.base import MISSING, Args, Kwargs, SymbolicValue
from weft.capture.core.breaks import graph_break
from weft.capture.core.constant import boolean

if TYPE_CHECKING:
    from weft.capture.core.protocols import Emitter, Interpreter


@final
class RunTimeNumber(SymbolicValue):
    """`function(*args)`, an int that equals only that of the same arguments.

    A `fresh` one comes from a counter and equals no other.
    """

    __slots__ = ("args", "fresh", "function")
    kind = int

    def __init__(self, function: Any, args: Args, *, fresh: bool = False) -> None:
        super().__init__()
        self.function = function
        self.args = args
        self.fresh = fresh

    def _key(self, tx: Interpreter) -> tuple[object, ...]:
        if self.fresh:
            return (self.function, id(self))
        things = (arg if arg.real() is MISSING else tx.identities.key(arg, arg.real())
                  for arg in self.args)
        return (self.function, *map(id, things))

    def dict_key(self, tx: Interpreter) -> object:
        return RunTimeKey(self, self._key(tx))

    def binary(self, tx: Interpreter, op: str, other: SymbolicValue, reflected: bool) -> Any:
        if op in ("eq", "ne") and isinstance(other, RunTimeNumber):
            return boolean((self._key(tx) == other._key(tx)) is (op == "eq"))
        if issubclass(other.python_type(), (int, float, complex)):
            raise graph_break("unknown-operation", f"{op} of {self!r} and {other!r}")
        return None

    def call(self, tx: Interpreter, args: Args, kwargs: Kwargs) -> SymbolicValue:
        raise tx.error(TypeError, "'int' object is not callable")

    def rebuild(self, emit: Emitter) -> str:
        args = ", ".join(emit.value(arg) for arg in self.args)
        return emit.bind(self, f"{emit.constant(self.function)}({args})")

    def __repr__(self) -> str:
        return f"{self.function.__name__}()"


@final
class RunTimeKey:
    """Stands for a `RunTimeNumber` as a dictionary key."""

    __slots__ = ("key", "number")

    def __init__(self, number: RunTimeNumber, key: tuple[Any, ...]) -> None:
        self.number = number
        self.key = key

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunTimeKey) and self.key == other.key
