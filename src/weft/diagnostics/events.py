"""Events: what the stages tell, at a cost of about a microsecond, none when nothing happens.

Place in the pipeline: below every stage. Statistics, logs, `explain` and progress displays are
views; they read the counters or subscribe::

    with stage("capture"):                          # wall clock, nestable, per thread
        record("graph", nodes=12)                   # an event, seen by subscribers
        count("graphs")                             # a counter in weft.stats()

Kinds in use, with their fields (a new kind is added here):

=============== ==================================================================================
graph           code, gm, nodes, guards
graph_break     id, reason, stack, hint
recompile       code, reason, stack, changes (`Change`s: one for each earlier variant)
guards          code, guards
symbols         code, symbols (rows: name, sources, value in this call, conditions)
bytecode        code, source
aot             gm
pass            name, before, after
pattern         name, stack (a form that the program writes was replaced: `passes/patterns.py`)
schedule        text
kernel          name, stack, source, target, ops
extern_call     op, stack
output_code     name, source
uncompiled      reason (a graph runs operator by operator: aot cannot take it)
fallback        error, report
ignored         what, instead (an argument of torch.compile without a counterpart)
limit           code, reason
skip            code, reason
not_stored      code, reason (why an entry is not kept on disk)
not_loaded      code, reason (why an entry on disk is not used)
perf            text
stage_start     name
stage_end       name, seconds, self_seconds
=============== ==================================================================================
"""

from __future__ import annotations

import os
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter
from types import TracebackType
from typing import Any, Final, final

from weft.interrupts import checkpoint

HISTORY: Final = 500
"""Events kept for failure reports; older ones are dropped, counters are not."""

_KEPT: Final = frozenset({str, int, float, bool})
"""Types of fields that the history keeps: graphs and other large things are not kept alive."""


@final
@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened: `kind`, time (seconds, `time.perf_counter`), and its fields."""

    kind: str
    time: float
    fields: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        try:
            return self.fields[name]
        except KeyError:
            raise AttributeError(name) from None


Subscriber = Callable[[Event], None]

_lock = threading.Lock()


def _new_lock() -> None:
    """A new lock in a forked child: another thread of the parent may have held the old one."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_new_lock)

_history: deque[tuple[str, float, dict[str, Any]]] = deque(maxlen=HISTORY)
_counters: Counter[str] = Counter()
_self_seconds: defaultdict[str, float] = defaultdict(float)
_subscribers: tuple[Subscriber, ...] = ()


class _Running(threading.local):
    """The running stages of this thread, innermost last."""

    def __init__(self) -> None:
        self.stack: list[stage] = []


_running = _Running()


def record(kind: str, **fields: object) -> None:
    """Record that something happened."""
    now = perf_counter()
    _history.append((kind, now, {k: v for k, v in fields.items() if type(v) in _KEPT}))
    if _subscribers:
        event = Event(kind, now, fields)
        for subscriber in _subscribers:
            subscriber(event)


def count(name: str, n: int = 1) -> None:
    """Add to a counter."""
    with _lock:
        _counters[name] += n


@final
class stage:
    """A named part of compilation; a context manager that adds its wall time to the statistics.

    Its event's `seconds` count inner stages too; `self_seconds`, and the statistics, do not.
    """

    __slots__ = ("_inner", "_start", "name")

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> stage:
        checkpoint()
        stack = _running.stack
        self._inner = 0.0
        stack.append(self)
        if _subscribers:
            record("stage_start", name=self.name)
        self._start = perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        elapsed = perf_counter() - self._start
        stack = _running.stack
        stack.pop()
        if stack:
            stack[-1]._inner += elapsed
        with _lock:
            _self_seconds[self.name] += elapsed - self._inner
        if _subscribers:
            record("stage_end", name=self.name, seconds=elapsed,
                   self_seconds=elapsed - self._inner)


def subscribe(subscriber: Subscriber) -> Callable[[], None]:
    """Call `subscriber` with each event from now on; returns a function that ends it."""
    global _subscribers
    with _lock:
        _subscribers = (*_subscribers, subscriber)

    def unsubscribe() -> None:
        global _subscribers
        with _lock:
            _subscribers = tuple(s for s in _subscribers if s is not subscriber)

    return unsubscribe


def watched() -> bool:
    """Whether there are subscribers: expensive fields (texts of graphs) are only computed for
    them."""
    return bool(_subscribers)


@contextmanager
def collect() -> Iterator[list[Event]]:
    """The events of a ``with`` block, in order (of all threads)."""
    seen: list[Event] = []
    end = subscribe(seen.append)
    try:
        yield seen
    finally:
        end()


def counters() -> dict[str, int]:
    """All counters."""
    with _lock:
        return dict(_counters)


def stage_self_seconds() -> dict[str, float]:
    """Wall seconds per stage, inner stages excluded: these add up."""
    with _lock:
        return dict(_self_seconds)


def history(kind: str | None = None) -> list[Event]:
    """The latest events, oldest first, with their plain fields."""
    return [Event(*e) for e in list(_history) if kind is None or e[0] == kind]


def reset() -> None:
    """Forget everything except the subscribers."""
    with _lock:
        _history.clear()
        _counters.clear()
        _self_seconds.clear()
