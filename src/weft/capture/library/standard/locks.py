"""Locks of `threading` from outside: held while the graph runs.

Place in the pipeline: wraps of the object family. A lock that the program takes is taken before the
graph, without waiting, and let go after the side effects, so that no other thread gets between the
parts of a block. What the block reads was read by the guards, before the lock was taken: they are
asked again under it. If the lock is held elsewhere, or another thread has changed something since,
the frame runs eagerly, and waits where the program does::

    with self.lock:              take((lock,), guards, v)
        y = self.step(x)         out0, = graph(v[0])
        self.seen += 1           self.seen = 3
    return y * 2                 lock.release()
                                 return out0

At a graph break within the block the lock stays taken, and the continuation lets it go.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, final

from torch import fx

from weft._frame import RunEagerly
from weft.capture.core.base import SymbolicValue, is_same
from weft.capture.core.breaks import graph_break
from weft.capture.core.constant import NONE, TRUE, boolean
from weft.capture.core.graph import is_of_torch
from weft.capture.core.methods import MethodTable
from weft.capture.core.registry import wraps
from weft.capture.core.skips import is_library_code
from weft.errors import SourceLine

if TYPE_CHECKING:
    from weft.capture.core.protocols import Emitter, Interpreter
    from weft.capture.core.source import Source, SourceTree

LOCKS: Final[tuple[type, ...]] = (type(threading.Lock()), type(threading.RLock()))

_OPERATORS: Final = ("aten", "prims", "higher_order")
"""Namespaces of operators that run nothing of the program."""


@final
class LockValue(MethodTable):
    """A lock that exists before the frame."""

    __slots__ = ("_depth", "_n_calls", "_place", "object", "taken")

    def __init__(self, object: Any, source: Source) -> None:
        super().__init__(source)
        self.object = object
        self.taken = False
        """Whether the program takes the lock before it lets it go."""
        self._depth = 0
        self._n_calls = 0
        self._place: tuple[int, tuple[SourceLine, ...]] = (-1, ())

    def python_type(self) -> type:
        return type(self.object)

    def real(self) -> Any:
        return self.object

    def dict_key(self, tx: Interpreter) -> object:
        return tx.identities.key(self, self.object)

    def __repr__(self) -> str:
        return f"a {type(self.object).__name__}"

    # -- what the program calls -------------------------------------------------------------------

    def m_acquire(self, tx: Interpreter, blocking: SymbolicValue = TRUE,
                  timeout: SymbolicValue | None = None) -> SymbolicValue:
        let_go = tx.effects.changed(self) and not self.taken
        is_held = self._depth > 0 and type(self.object) is not LOCKS[1]
        if timeout is not None or let_go or is_held or self._may_wait_for_itself(tx):
            raise graph_break("unknown-c-function", f"acquire of {self!r}")
        self.taken = True
        self._depth += 1
        tx.effects.touch(self)
        return TRUE

    def m_release(self, tx: Interpreter) -> SymbolicValue:
        if self._is_of_library(tx) or (self._depth <= 0 and not self._is_held_before(tx)):
            raise graph_break("unknown-c-function", f"release of {self!r}")
        self._depth -= 1
        self._n_calls = len(tx.builder.calls())
        self._place = (tx.breaking_step(), tx.stack())
        tx.effects.touch_last(self)
        return NONE

    def m___enter__(self, tx: Interpreter) -> SymbolicValue:
        return self.m_acquire(tx)

    def m___exit__(self, tx: Interpreter, *error: SymbolicValue) -> SymbolicValue:
        return self.m_release(tx)

    def m_locked(self, tx: Interpreter) -> SymbolicValue:
        if not tx.effects.changed(self) or not hasattr(self.object, "locked"):
            raise graph_break("unknown-c-function", f"locked of {self!r}")
        return boolean(self._depth > 0)

    def _is_held_before(self, tx: Interpreter) -> bool:
        """Whether this is a continuation, and the piece before it took the lock."""
        if tx.effects.changed(self) or not _is_held(self.object):
            return False
        assert self.source is not None
        tx.guards.add(self.source, "py", _is_held)
        return True

    def _is_of_library(self, tx: Interpreter) -> bool:
        """Queues, semaphores and the like wait with their locks for what other threads do."""
        return tx.frame is None or is_library_code(tx.frame.code)

    def _may_wait_for_itself(self, tx: Interpreter) -> bool:
        """Whether something that runs in the graph, before the program takes the lock, could take
        it too."""
        return self._is_of_library(tx) or _runs_program(tx, 0)

    # -- what the replacement does ----------------------------------------------------------------

    def replay(self, emit: Emitter) -> None:
        if self.taken and _runs_program(emit.tx, self._n_calls):
            signal = graph_break("unknown-c-function", f"release of {self!r}")
            signal.step, signal.stack = self._place
            raise signal
        if self._depth < self.taken:
            emit.line(f"{emit.value(self)}.release()")
        for _ in range(1, self._depth):
            emit.line(f"{emit.value(self)}.acquire()")


def _runs_program(tx: Interpreter, start: int) -> bool:
    """Whether the graph runs functions of the program from its `start`-th call on."""
    return any(map(_is_of_program, tx.builder.calls()[start:]))


def _is_of_program(node: fx.Node) -> bool:
    home, _, namespace = (getattr(node.target, "__module__", None) or "").rpartition(".")
    is_custom = home in ("torch.ops", "torch._ops") and namespace not in _OPERATORS
    return is_custom or not is_of_torch(node)


def _is_held(lock: Any) -> bool:
    """Whether the lock is held; an RLock, by this thread."""
    held = lock._is_owned if type(lock) in LOCKS[1:] else lock.locked
    return bool(held())


def taken_locks(emit: Emitter) -> list[str]:
    """Expressions for the locks that are to be held while the graph runs, in order."""
    touched = emit.tx.effects.touched()
    return [emit.value(lock) for lock in touched if isinstance(lock, LockValue) and lock.taken]


@final
class GuardsUnderLock:
    """The guards of a variant whose replacement takes locks, to be asked again when it has them."""

    def __init__(self) -> None:
        self._tree: Any = None
        self._globals: dict[str, Any] = {}
        self._roots: dict[str, dict[int, int]] = {"local": {}, "cell_object": {}}
        """The slots of the frame's arguments and cells, by their index."""
        self._drawn: frozenset[int] = frozenset()
        """Slots that the replacement fills."""

    def collect(self, tree: SourceTree) -> None:
        """Let the replacement have the arguments and cells that the guards start from."""
        for root in tree.roots():
            if root.accessor[0] in self._roots:
                self._roots[root.accessor[0]][root.accessor[1]] = root.collect()
        self._drawn = frozenset(root.slot for root in tree.roots() if root.is_drawn)

    def bind(self, tree: object, globals: dict[str, Any]) -> None:
        """Set the guard tree that is asked, and the globals of its frame."""
        self._tree, self._globals = tree, globals

    def hold(self, values: Sequence[object]) -> bool:
        """Whether the guards hold and collect what they collected before."""
        frame = [self._objects(kind, values) for kind in ("local", "cell_object")]
        now = self._tree.check(frame[0], frame[1], self._globals)
        return now is not None and all(
            slot in self._drawn or is_same(old, new)  # sizes are made anew each time
            for slot, (old, new) in enumerate(zip(values, now, strict=True)))

    def _objects(self, kind: str, values: Sequence[object]) -> tuple[object, ...]:
        slots = self._roots[kind]
        return tuple(values[slots[index]] if index in slots else None
                     for index in range(max(slots, default=-1) + 1))


def take(locks: tuple[Any, ...], guards: GuardsUnderLock, values: list[Any]) -> None:
    """Take all of these locks, or tell the caller to run the frame eagerly: if one is held, or if
    the guards, asked again, do not hold."""
    for done, lock in enumerate(locks):
        if not lock.acquire(False):
            let_go(locks[:done])
            raise RunEagerly(BlockingIOError("a lock is held by another thread"), _ignore)
    try:
        held = guards.hold(values)
    except BaseException:
        let_go(locks)
        raise
    if not held:
        let_go(locks)
        raise RunEagerly(BlockingIOError("another thread had the lock, and changed what it is for"),
                         _ignore)


def let_go(locks: tuple[Any, ...]) -> None:
    """Undo `take`."""
    for lock in reversed(locks):
        lock.release()


def _ignore(error: BaseException) -> None:
    """The frame has waited for the lock."""


@wraps(*LOCKS)
def _wrap_lock(tx: Interpreter, obj: object, source: Source | None) -> SymbolicValue:
    if source is None:
        source = tx.tree.object(obj, f"<{type(obj).__name__}>")
    if not source.is_fixed:
        tx.guards.add(source, "type_is", type(obj))
    return LockValue(obj, source)
