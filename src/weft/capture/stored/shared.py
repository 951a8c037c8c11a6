"""One rank compiles a frame, the others load its entry.

Place in the pipeline: around a compilation (`compiler.py`), when no entry on disk fits. Who
compiles is settled as `store/ranks.py` says::

    with OneRankCompiles(compiler, state, outermost=True) as entry:
        if entry is None:
            entry = ...compile, and keep() it...

If the guards of another rank's entry do not hold here (its batch has another size, say), this rank
goes on with the next variant, knowing the sizes that the other one has seen: so a size that differs
between ranks is symbolic in that variant, which all share.
"""

from __future__ import annotations

from typing import Any, Protocol, final

from weft.capture.core.source import FrameState
from weft.capture.sharing import is_alone
from weft.capture.stored.lookup import keys
from weft.capture.stored.records import Compiler, Loading
from weft.config import CompileOptions
from weft.diagnostics import events
from weft.interrupts import surface
from weft.store import DoesNotFit, NotStorable
from weft.store.packing import unpacked
from weft.store.ranks import Claim, Ranks, present_ranks


class SharingCompiler(Compiler, Protocol):
    """What is asked of the compiler."""

    options: CompileOptions
    backend: Any


_claims: list[Claim | None] = []
"""Of the compilations that run, the outermost first."""


@final
class OneRankCompiles:
    """The entry that another rank has compiled; None: this one compiles, and the block is its
    compilation."""

    def __init__(self, compiler: SharingCompiler, state: FrameState, *, outermost: bool) -> None:
        self._compiler = compiler
        self._state = state
        self._outermost = outermost
        self._ranks = None if is_alone() else present_ranks()
        self._claim: Claim | None = None

    def __enter__(self) -> Any:
        answer = None if self._ranks is None else self._ask(self._ranks)
        self._claim = answer if isinstance(answer, Claim) else None
        _claims.append(self._claim)
        return None if self._claim is not None else answer

    def __exit__(self, *_: object) -> None:
        _claims.pop()
        if self._claim is not None and self._ranks is not None:
            self._ranks.settle(self._claim)

    def _ask(self, ranks: Ranks) -> Any:
        """An entry, a claim, or None."""
        compiler, state = self._compiler, self._state
        try:
            key = next(keys(state, compiler.options, compiler.backend, outermost=self._outermost))
        except NotStorable:
            return None
        while True:
            answer = ranks.take(key, "entries", state.code.co_qualname)
            if not isinstance(answer, bytes):
                return answer
            entry = self._entry(answer)
            if entry is not None:
                return entry

    def _entry(self, content: bytes) -> Any:
        """The entry, or None if its guards do not hold here."""
        policy = self._compiler.policy(self._state.code)
        try:
            with events.stage("load"):
                data = unpacked(content)
                entry = Loading(data, self._compiler, self._state).entry()
        except DoesNotFit as reason:
            events.record("not_loaded", code=self._state.code, reason=str(reason))
            policy.continue_from(data["policy"])
            return None
        except Exception as error:  # noqa: BLE001  a damaged entry: compile it
            surface(error)
            events.record("not_loaded", code=self._state.code,
                          reason=f"{type(error).__name__}: {error}")
            return None
        events.count("entries_loaded")
        events.count("entries_of_other_ranks")
        return entry


def offer(key: str, content: bytes) -> None:
    """An entry was kept under the key: the other ranks may have it."""
    if _claims and _claims[-1] is not None:
        _claims[-1].offer(key, content)
