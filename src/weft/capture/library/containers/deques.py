"""collections.deque.

Place in the pipeline: a value family: a list with two ends and an optional maximal length. A
changed outside deque is written back as a whole.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final, final

from weft.capture.core.base import MISSING, LazyValue, SymbolicValue
from weft.capture.core.breaks import ObservedException, graph_break
from weft.capture.core.constant import NONE, ONE, constant, evaluate
from weft.capture.core.registry import wraps
from weft.capture.core.source import Source
from weft.capture.library.containers.iterators import IteratorValue, advance
from weft.capture.library.containers.sequences import GrowingValue, SequenceValue

if TYPE_CHECKING:
    from weft.capture.core.protocols import Emitter, Interpreter


@final
class DequeValue(GrowingValue):
    """A deque; `maxlen` is its maximal length, or None."""

    __slots__ = ("assigned", "changes", "maxlen")
    kind = deque

    def __init__(
        self, items: Iterable[SymbolicValue], maxlen: int | None = None,
        source: Source | None = None, original: Any = MISSING,
    ) -> None:
        self.maxlen = maxlen
        self.changes = 0
        """How often it was changed; iterators check this."""
        self.assigned: dict[int, None] = {}
        """Replacements of items, which iterators allow."""
        super().__init__(items, source, original)
        self._drop(from_left=True)

    def _drop(self, *, from_left: bool) -> None:
        extra = 0 if self.maxlen is None else max(len(self.items) - self.maxlen, 0)
        if extra:
            self.items = self.items[extra:] if from_left else self.items[:-extra]

    def append(self, items: Iterable[SymbolicValue]) -> None:
        for item in items:
            super().append([item])
            if not self.unread:
                self._drop(from_left=True)

    def like(self, items: Iterable[SymbolicValue]) -> SequenceValue:
        return DequeValue(items, self.maxlen)

    def build(self, items: Sequence[object]) -> Any:
        return deque(items, self.maxlen)

    def proxy(self, tx: Interpreter) -> Any:
        return [item.proxy(tx) for item in self.all(tx)]  # the graph's code knows no deques

    def getitem(self, tx: Interpreter, key: SymbolicValue) -> SymbolicValue:
        return self.at(tx, self.index_of(tx, key))

    def getattr(self, tx: Interpreter, name: str) -> SymbolicValue:
        return constant(self.maxlen) if name == "maxlen" else super().getattr(tx, name)

    # -- what becomes of it -----------------------------------------------------------------------

    def iter(self, tx: Interpreter) -> SymbolicValue:
        return DequeIterator(self)

    def iterate(self, tx: Interpreter) -> Any:
        return self._each(tx, self.changes, len(self.items))

    def _each(self, tx: Interpreter, changes: int, length: int) -> Iterator[SymbolicValue]:
        for index in range(length):
            self.check_state(tx, changes)
            yield self.at(tx, index)
        self.check_state(tx, changes)

    def state(self) -> int:
        return self.changes

    def check_state(self, tx: Interpreter, state: int) -> None:
        if self.changes != state:
            raise tx.error(RuntimeError, "deque mutated during iteration")

    def _note_change(self, tx: Interpreter) -> SymbolicValue:
        self.changes += 1
        if self.source is not None:
            tx.effects.touch(self)
        return NONE

    def replay(self, emit: Emitter) -> None:
        target, kind = emit.value(self), emit.constant(deque)  # not an override
        if self.unread:
            added = ", ".join(emit.value(item) for item in self.added)
            emit.line(f"{kind}.extend({target}, [{added}])")
            return
        if not self.changes:  # keep its identity for iterators over it
            for where in self.assigned:
                item = emit.value(self.items[where])
                emit.line(f"{kind}.__setitem__({target}, {where}, {item})")
            return
        items = ", ".join(emit.value(item) for item in self.items)
        emit.line(f"{kind}.clear({target})")
        emit.line(f"{kind}.extend({target}, [{items}])")

    def rebuild(self, emit: Emitter) -> str:
        name = emit.bind(self, f"{emit.constant(deque)}((), {self.maxlen})")
        items = ", ".join(emit.value(item) for item in self.items)
        if items:
            emit.line(f"{name}.extend([{items}])")
        return name

    # -- changes ----------------------------------------------------------------------------------

    def binary(self, tx: Interpreter, op: str, other: SymbolicValue, reflected: bool) -> Any:
        if op == "iadd" and not reflected:
            self.m_extend(tx, other)
            return self
        return super().binary(tx, op, other, reflected)

    def setitem(self, tx: Interpreter, key: SymbolicValue, value: SymbolicValue) -> None:
        where = self.index_of(tx, key) % len(self.items)
        self.items[where] = value
        self.assigned[where] = None
        if self.source is not None:
            tx.effects.touch(self)

    def delitem(self, tx: Interpreter, key: SymbolicValue) -> None:
        del self.items[self.index_of(tx, key)]
        self._note_change(tx)

    def m___init__(self, tx: Interpreter, iterable: SymbolicValue | None = None,
                   maxlen: SymbolicValue = NONE) -> SymbolicValue:
        length = maxlen.constant()
        if self.source is not None:
            raise graph_break("unknown-operation", "arguments of deque")
        evaluate(tx, lambda: deque(maxlen=length))  # raises what is wrong with the length
        self.maxlen = length
        self.items = []
        return NONE if iterable is None else self.m_extend(tx, iterable)

    def m_append(self, tx: Interpreter, item: SymbolicValue, /) -> SymbolicValue:
        return self.m_extend(tx, SequenceValue([item]))

    def m_appendleft(self, tx: Interpreter, item: SymbolicValue, /) -> SymbolicValue:
        return self.m_extendleft(tx, SequenceValue([item]))

    def m_extend(self, tx: Interpreter, iterable: SymbolicValue, /) -> SymbolicValue:
        for item in self._items_of(tx, iterable):
            self.append([item])
            self._note_change(tx)
        return NONE

    def m_extendleft(self, tx: Interpreter, iterable: SymbolicValue, /) -> SymbolicValue:
        for item in self._items_of(tx, iterable):
            self.items.insert(0, item)
            self._drop(from_left=False)
            self._note_change(tx)
        return NONE

    def _items_of(self, tx: Interpreter, other: SymbolicValue) -> Iterable[SymbolicValue]:
        """The items to add, one at a time, since a generator may look at those before."""
        return tx.unpack(other) if other is self else tx.force(other).iterate(tx)

    def m_insert(self, tx: Interpreter, index: SymbolicValue, item: SymbolicValue, /
                 ) -> SymbolicValue:
        if len(self.items) == self.maxlen:
            raise tx.error(IndexError, "deque already at its maximum size")
        self.items.insert(index.constant(), item)
        return self._note_change(tx)

    def _pop(self, tx: Interpreter, where: int) -> SymbolicValue:
        if not self.items:
            raise tx.error(IndexError, "pop from an empty deque")
        item = self.at(tx, where)
        del self.items[where]
        self._note_change(tx)
        return item

    def m_pop(self, tx: Interpreter) -> SymbolicValue:
        return self._pop(tx, -1)

    def m_popleft(self, tx: Interpreter) -> SymbolicValue:
        return self._pop(tx, 0)

    def m_remove(self, tx: Interpreter, item: SymbolicValue, /) -> SymbolicValue:
        before = self.changes
        try:
            where = self.find(tx, item)
        except ObservedException as error:
            if self.changes == before or error.value.python_type() is not RuntimeError:
                raise
            raise tx.error(IndexError, "deque mutated during iteration") from None
        if where < 0:
            self.refuse_absent(tx, "remove", item)
        del self.items[where]
        return self._note_change(tx)

    def m_rotate(self, tx: Interpreter, steps: SymbolicValue = ONE, /) -> SymbolicValue:
        turned = deque(self.items)
        turned.rotate(steps.constant())
        self.items = list(turned)
        return self._note_change(tx)

    def m_reverse(self, tx: Interpreter) -> SymbolicValue:
        self.items.reverse()
        return self._note_change(tx)

    def m_clear(self, tx: Interpreter) -> SymbolicValue:
        self.items.clear()
        return self._note_change(tx)

    def m_copy(self, tx: Interpreter) -> SymbolicValue:
        return DequeValue(self.items, self.maxlen)


@final
class DequeIterator(IteratorValue):
    """An iterator over a live deque; raises if the deque was changed."""

    __slots__ = ("changes", "end", "position", "sequence")
    kind: type = type(iter(deque()))

    def __init__(self, sequence: DequeValue) -> None:
        super().__init__()
        self.sequence = sequence
        self.changes = sequence.changes
        self.end = len(sequence.items)
        self.position = 0

    def next(self, tx: Interpreter) -> SymbolicValue | None:
        self.sequence.check_state(tx, self.changes)
        if self.position >= self.end:
            return None
        self.position += 1
        return self.sequence.at(tx, self.position - 1)

    def rebuild(self, emit: Emitter) -> str:
        if self.sequence.changes != self.changes:
            raise graph_break("unknown-operation", "an iterator over a deque that was changed")
        name = emit.bind(self, f"iter({emit.filled(self.sequence)})")
        if self.position:
            advance(emit, name, self.position)
        return name


@functools.lru_cache(maxsize=1024)
def _item_getter(index: int) -> Callable[[Any], object]:
    return lambda items: deque.__getitem__(items, index)


_max_length: Final = vars(deque)["maxlen"].__get__


@wraps(deque)
def _wrap_deque(tx: Interpreter, obj: Any, source: Source | None) -> SymbolicValue:
    if source is None:
        return DequeValue([tx.wrap_new(item) for item in obj], obj.maxlen)
    tx.guards.add(source, "type_is", deque)
    return outside_deque(tx, obj, source)


def outside_deque(tx: Interpreter, obj: Any, source: Source) -> DequeValue:
    """The items of a deque, or of an instance of a subclass."""
    length = _max_length(obj)
    tx.wrap(length, source.call(_max_length, f"{source.name}.maxlen"))

    def read() -> list[SymbolicValue]:
        size = source.call(deque.__len__, f"len({source.name})")  # not an override
        tx.guards.add(size, "eq", deque.__len__(obj))
        return [
            LazyValue(source.call(_item_getter(i), f"{source.name}[{i}]"), item)
            for i, item in enumerate(deque.__iter__(obj))
        ]

    return DequeValue((), length, source, obj).read_with(read)
