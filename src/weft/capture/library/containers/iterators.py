"""Iterators over sequences, and those that Python generators of capture drive.

Place in the pipeline: a value family. An iterator yields one value at a time, when the program asks
for it, so side effects of lazily called functions happen in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, final

from weft.capture.core.base import Args, SymbolicValue
from weft.capture.core.breaks import ObservedException, graph_break
from weft.capture.core.constant import list_iterator
from weft.capture.core.methods import MethodTable

if TYPE_CHECKING:
    from weft.capture.core.protocols import Emitter, Interpreter


class IteratorValue(MethodTable):
    """The methods that all iterators have."""

    __slots__ = ()

    def iter(self, tx: Interpreter) -> SymbolicValue:
        return self

    def m___iter__(self, tx: Interpreter) -> SymbolicValue:
        return self

    def m___next__(self, tx: Interpreter) -> SymbolicValue:
        item = self.next(tx)
        if item is None:
            raise tx.error(StopIteration)
        return item


def unless_ended(take: Callable[[], SymbolicValue | None],
                 ends: tuple[type[Exception], ...] = (StopIteration,)) -> SymbolicValue | None:
    """The item that `take` returns; None if it raises one of `ends`, which ends the loop over the
    iterator."""
    try:
        return take()
    except ObservedException as error:
        if issubclass(error.value.python_type(), ends):
            return None
        raise


def result_or_end(tx: Interpreter, function: SymbolicValue, args: Args) -> SymbolicValue | None:
    """What an iterator's function returns, `unless_ended`."""
    return unless_ended(lambda: tx.force(tx.call(function, args)))


@final
class ItemsIterator(IteratorValue):
    """An iterator over a live sequence: it sees items that are added, until it has ended."""

    __slots__ = ("position", "sequence", "text")

    def __init__(self, sequence: Any) -> None:
        super().__init__()
        self.sequence = sequence
        self.position = 0
        self.text: Any = None
        """The str or bytes whose items they are."""

    def python_type(self) -> type:
        if self.text is not None:
            return type(iter(self.text.constant()))
        return type(iter(self.sequence.kind()))

    def next(self, tx: Interpreter) -> SymbolicValue | None:
        if self.position < 0:
            return None
        if self.position >= len(self.sequence.items):
            self.position = -1
            return None
        self.position += 1
        item: SymbolicValue = self.sequence.at(tx, self.position - 1)
        return item

    def rebuild(self, emit: Emitter) -> str:
        if self.position < 0:  # over nothing: what it was over may be filled again
            sequence = (f"{emit.constant(self.sequence.kind)}()" if self.text is None
                        else emit.value(self.text))
            name = emit.bind(self, f"iter({sequence})")
            emit.line(f"for _ in {name}: pass")
            return name
        name = emit.bind(self, f"iter({emit.filled(self.text or self.sequence)})")
        if self.position and hasattr(self.python_type(), "__setstate__"):
            emit.line(f"{name}.__setstate__({self.position})")
        elif self.position:
            advance(emit, name, self.position)
        return name


def advance(emit: Emitter, name: str, n: int) -> None:
    """Emit `n` steps of an iterator."""
    with emit.block(f"for _ in range({n}):"):
        emit.line(f"next({name})")


@final
class LazyIterator(IteratorValue):
    """An iterator driven by a Python generator of values; the program sees the type `kind`."""

    __slots__ = ("kind", "produce", "pure", "started")

    def __init__(self, kind: type, produce: Callable[[], Iterator[SymbolicValue]],
                 pure: bool = False) -> None:
        super().__init__()
        self.kind = kind
        self.pure = pure
        self.produce: Any = produce
        self.started: Iterator[SymbolicValue] | None = None

    def next(self, tx: Interpreter) -> SymbolicValue | None:
        if self.started is None:
            self.started = self.produce()
        started = self.started
        try:
            item = unless_ended(lambda: next(started, None))
        except ValueError as error:  # "generator already executing"
            raise graph_break("unknown-operation", f"a {self!r} entered again: {error}") from error
        return None if item is None else tx.force(item)

    def rebuild(self, emit: Emitter) -> str:
        if not self.pure:
            return super().rebuild(emit)
        rest: list[SymbolicValue] = []
        while (item := self.next(emit.tx)) is not None:
            rest.append(item)
        return emit.bind(self, f"iter([{', '.join(emit.value(item) for item in rest)}])")

    def __repr__(self) -> str:
        return f"{self.kind.__name__} iterator"


@list_iterator.define
def _list_iterator(tx: Interpreter, iterator: Iterator[object]) -> SymbolicValue:
    items = list(iterator)
    return LazyIterator(type(iterator), lambda: map(tx.wrap_new, items), True)

