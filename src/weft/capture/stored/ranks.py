"""One rank compiles, the others load: who compiles a frame is settled on the process group's store.

Place in the pipeline: around a compilation (`compiler.py`), when no entry on disk fits. Under a key
for the frame's code there are slots, one for each variant. The rank that takes a slot compiles, and
puts the entry there; another one waits for it, and loads it if its guards hold. If they do not (its
batch has another size, say), it goes on with the next slot, knowing the sizes that the other one
has seen: so a size that differs between ranks is symbolic in that next variant, which all share::

    with OneRankCompiles(compiler, state, outermost=True) as entry:
        if entry is None:
            entry = ...compile, and keep() it...

Nobody waits for a collective here: ranks come when they come, and those that run other code have
other keys. A rank that compiles says so every second; one that has not for `DEAD` seconds, or not
ended in `LONGEST`, is not waited for, and from then on this rank compiles for itself.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from typing import Any, Final, Protocol, final

import torch.distributed as dist

from weft._torch import default_group_store
from weft.capture.core.source import FrameState
from weft.capture.sharing import is_alone
from weft.capture.stored.lookup import MOST_VARIANTS, disk, keys
from weft.capture.stored.records import Compiler, Loading
from weft.compiling import is_forked
from weft.config import CompileOptions, config
from weft.diagnostics import events
from weft.errors import CacheWarning, warn
from weft.interrupts import checkpoint, surface
from weft.runtime.sealing import sealed
from weft.store import DoesNotFit, NotStorable
from weft.store.packing import unpacked

DEAD: Final = 15.0
"""Seconds without a sign of life after which a rank is not waited for."""
LONGEST: Final = 300.0
"""Seconds of one compilation that are waited for."""
_BEAT: Final = 1.0
_PAUSES: Final = (0.005, 0.05)
"""Seconds between two looks at the store: the first, and the longest."""
_MOST_SENT: Final = 32 << 20
"""Bytes of an entry that are sent through the store, to ranks with another disk."""

_STORED: Final = b"s"
_NOT_STORED: Final = b"n"
_KEY_LENGTH: Final = 64


class SharingCompiler(Compiler, Protocol):
    """What is asked of the compiler."""

    options: CompileOptions
    backend: Any


class GroupStore(Protocol):
    """A store of torch.distributed."""

    def add(self, key: str, amount: int, /) -> int:
        """Add to a number, 0 at first; returns the sum."""

    def set(self, key: str, value: bytes, /) -> None:
        """Write a value."""

    def get(self, key: str, /) -> bytes:
        """Read a value that is there."""

    def check(self, keys: list[str], /) -> bool:
        """Whether there are values."""


@final
@dataclass(frozen=True, slots=True)
class Slot:
    """The place of one variant in the store."""

    code: str
    number: int

    def key(self, what: str) -> str:
        """The name of a part of it."""
        return f"weft/{self.code}/{self.number}/{what}"


@final
class Claim:
    """A slot that this rank has taken; it says that it lives until `settle`."""

    def __init__(self, store: GroupStore, slot: Slot) -> None:
        self.store = store
        self.slot = slot
        self.outcome = _NOT_STORED
        self._ended = threading.Event()
        threading.Thread(target=self._beat, daemon=True, name="weft-rank").start()

    def _beat(self) -> None:
        try:
            while not self._ended.wait(_BEAT):
                self.store.add(self.slot.key("beat"), 1)
        except RuntimeError:  # the store is gone, with the process that holds it
            return

    def offer(self, key: str, content: bytes) -> None:
        """An entry was compiled, and kept on this machine's disk under the key."""
        is_there = _is_one_machine() and disk().path(key).exists()
        if is_there or len(content) <= _MOST_SENT:
            self.outcome = _STORED + key.encode() + (b"" if is_there else content)

    def settle(self) -> None:
        """Let the others go on."""
        self._ended.set()
        self.store.set(self.slot.key("outcome"), self.outcome)


def _is_one_machine() -> bool:
    """Whether all ranks certainly share the disk."""
    return os.environ.get("LOCAL_WORLD_SIZE") == str(dist.get_world_size())


@final
class Ranks:
    """What this rank knows of the others' compilations, for one process group."""

    def __init__(self, store: GroupStore) -> None:
        self.store = store
        self.is_used = _can_count(store)
        self._next: dict[str, int] = {}
        self._alone: set[str] = set()
        """Codes whose entries cannot be stored."""

    def ask(self, compiler: SharingCompiler, state: FrameState, code: str) -> Any:
        """The entry of another rank, or a `Claim`, or None: compile without one."""
        while code not in self._alone and self._next.get(code, 0) < MOST_VARIANTS:
            slot = Slot(code, self._next.get(code, 0))
            self._next[code] = slot.number + 1
            if self.store.add(slot.key("taken"), 1) == 1:
                self.store.set(slot.key("by"), str(dist.get_rank()).encode())
                return Claim(self.store, slot)
            content = self._content(self._outcome(slot, state))
            if content is None:
                self._alone.add(code)
            else:
                entry = _entry(content, compiler, state)
                if entry is not None:
                    return entry
        return None

    def _outcome(self, slot: Slot, state: FrameState) -> bytes:
        """What became of the compilation in a slot."""
        with events.stage("wait_for_rank"):
            start = seen_at = time.monotonic()
            beats, pause = -1, _PAUSES[0]
            while not self.store.check([slot.key("outcome")]):
                now, count = time.monotonic(), self.store.add(slot.key("beat"), 0)
                if count != beats:
                    beats, seen_at = count, now
                if now - seen_at > DEAD or now - start > LONGEST:
                    self._give_up(f"rank {self._owner(slot)}, which compiles "
                                  f"{state.code.co_qualname}, {_late(now - seen_at > DEAD)}")
                    return _NOT_STORED
                checkpoint()
                time.sleep(pause)
                pause = min(2 * pause, _PAUSES[1])
            return bytes(self.store.get(slot.key("outcome")))

    def _owner(self, slot: Slot) -> str:
        by = slot.key("by")
        return self.store.get(by).decode() if self.store.check([by]) else "?"

    def _content(self, outcome: bytes) -> bytes | None:
        """The entry of an outcome, which this machine's disk has from now on."""
        if not outcome.startswith(_STORED):
            return None
        key, content = outcome[1:1 + _KEY_LENGTH].decode(), outcome[1 + _KEY_LENGTH:]
        files = disk()
        if content and not files.path(key).exists():
            files.accept(sealed(content, [key]))
        return content or files.get(key)

    def _give_up(self, reason: str) -> None:
        self.is_used = False
        warn(CacheWarning, f"{reason}\n  this rank compiles for itself from now on\n  do: "
             "WEFT_COMPILE_ON_RANK=0 lets each rank compile for itself from the start")

    def fail(self, error: Exception) -> None:
        """The store cannot be asked: the process that holds it has ended, say."""
        self._give_up(f"ranks cannot agree who compiles: {type(error).__name__}: {error}")


def _can_count(store: GroupStore) -> bool:
    """Whether it is a store: that of PyTorch's fake group is none."""
    try:
        return store.add("weft/ranks", 1) > 0
    except RuntimeError:
        return False


def _late(is_dead: bool) -> str:
    return f"has shown no life for {DEAD:.0f} s" if is_dead else (
        f"has not ended in {LONGEST:.0f} s")


def _entry(content: bytes, compiler: SharingCompiler, state: FrameState) -> Any:
    """The entry, or None if its guards do not hold here."""
    data = unpacked(content)
    try:
        with events.stage("load"):
            entry = Loading(data, compiler, state).entry()
    except DoesNotFit as reason:
        events.record("not_loaded", code=state.code, reason=str(reason))
        compiler.policy(state.code).continue_from(data["policy"])
        return None
    events.count("entries_loaded")
    events.count("entries_of_other_ranks")
    return entry


# -- for the compiler ------------------------------------------------------------------------------

_ranks: list[Ranks] = []
"""Of the present process group: at most one."""
_claims: list[Claim | None] = []
"""Of the compilations that run, the outermost first."""


@final
class OneRankCompiles:
    """The entry that another rank has compiled; None: this one compiles, and the block is its
    compilation."""

    def __init__(self, compiler: SharingCompiler, state: FrameState, *, outermost: bool) -> None:
        self._frame = compiler, state, outermost
        self._ranks = _present()
        self._claim: Claim | None = None

    def __enter__(self) -> Any:
        answer = None if self._ranks is None else _answer(self._ranks, *self._frame)
        self._claim = answer if isinstance(answer, Claim) else None
        _claims.append(self._claim)
        return None if self._claim is not None else answer

    def __exit__(self, *_: object) -> None:
        _claims.pop()
        if self._claim is not None and self._ranks is not None:
            _settle(self._ranks, self._claim)


def offer(key: str, content: bytes) -> None:
    """An entry was kept under the key: the other ranks may have it."""
    if _claims and _claims[-1] is not None:
        _claims[-1].offer(key, content)


def _present() -> Ranks | None:
    """The ranks of this process's group, if they settle together who compiles."""
    if not config.compile_on_rank or config.verify_entries or is_alone() or is_forked() or not (
            dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return None
    store = default_group_store()
    if not _ranks or _ranks[0].store is not store:
        _ranks[:] = [Ranks(store)]
    return _ranks[0] if _ranks[0].is_used else None


def _answer(ranks: Ranks, compiler: SharingCompiler, state: FrameState, outermost: bool) -> Any:
    try:
        code = next(keys(state, compiler.options, compiler.backend, outermost=outermost))
        return ranks.ask(compiler, state, code)
    except NotStorable:
        return None
    except RuntimeError as error:
        surface(error)
        ranks.fail(error)
        return None
    except Exception as error:  # noqa: BLE001  a damaged entry: compile it
        surface(error)
        events.record("not_loaded", code=state.code, reason=f"{type(error).__name__}: {error}")
        return None


def _settle(ranks: Ranks, claim: Claim) -> None:
    try:
        claim.settle()
    except RuntimeError as error:
        ranks.fail(error)
