"""One rank compiles, the others load: who compiles is settled on the process group's store.

Place in the pipeline: below the entries (`capture/stored/shared.py`) and the backwards
(`backwards.py`). Under a key for what is to be compiled there are slots, one for each variant. The
rank that takes a slot compiles, and puts what it has kept there; another one waits for it::

    answer = ranks.take(key, "entries", "f")
    Claim         # this rank compiles: claim.offer(...), and claim.settle() in any case
    bytes         # another rank has: the content of the file, which this machine's disk has now
    None          # compile, and tell nobody

Nobody waits for a collective here: ranks come when they come, and those that run other code have
other keys. A rank that compiles says so every second; one that has not for `DEAD` seconds, or not
ended in `LONGEST`, is not waited for, and from then on this rank compiles for itself.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Protocol, final

import torch.distributed as dist

from weft._torch import default_group_store
from weft.compiling import is_forked
from weft.config import config
from weft.diagnostics import events
from weft.errors import CacheWarning, warn
from weft.interrupts import checkpoint
from weft.runtime.disk_cache import DiskCache
from weft.runtime.sealing import sealed

DEAD: Final = 15.0
"""Seconds without a sign of life after which a rank is not waited for."""
LONGEST: Final = 300.0
"""Seconds of one compilation that are waited for."""
MOST_SLOTS: Final = 16
_BEAT: Final = 1.0
_PAUSES: Final = (0.005, 0.05)
"""Seconds between two looks at the store: the first, and the longest."""
_MOST_SENT: Final = 32 << 20
"""Bytes of an entry that are sent through the store, to ranks with another disk."""

_STORED: Final = b"s"
_NOT_STORED: Final = b"n"
_KEY_LENGTH: Final = 64


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

    def __init__(self, store: GroupStore, slot: Slot, kind: str) -> None:
        self.store = store
        self.slot = slot
        self.kind = kind
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
        """What was compiled was kept on this machine's disk under the key."""
        is_there = _is_one_machine() and DiskCache(self.kind).path(key).exists()
        if is_there or len(content) <= _MOST_SENT:
            self.outcome = _STORED + key.encode() + (b"" if is_there else content)

    def settle(self) -> None:
        """Let the others go on; raises RuntimeError."""
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

    def take(self, key: str, kind: str, what: str) -> Claim | bytes | None:
        """The next slot of a key: this rank's, or what another one has kept there; None: compile
        alone."""
        number = self._next.get(key, 0)
        if key in self._alone or number >= MOST_SLOTS:
            return None
        slot = Slot(key, number)
        self._next[key] = number + 1
        with self._surviving():
            if self.store.add(slot.key("taken"), 1) == 1:
                self.store.set(slot.key("by"), str(dist.get_rank()).encode())
                return Claim(self.store, slot, kind)
            content = _content(self._outcome(slot, what), DiskCache(kind))
            if content is not None:
                return content
        self._alone.add(key)
        return None

    def settle(self, claim: Claim) -> None:
        """End a claim."""
        with self._surviving():
            claim.settle()

    def _outcome(self, slot: Slot, what: str) -> bytes:
        """What became of the compilation in a slot."""
        with events.stage("wait_for_rank"):
            start = seen_at = time.monotonic()
            beats, pause = -1, _PAUSES[0]
            while not self.store.check([slot.key("outcome")]):
                now, count = time.monotonic(), self.store.add(slot.key("beat"), 0)
                if count != beats:
                    beats, seen_at = count, now
                if now - seen_at > DEAD or now - start > LONGEST:
                    self._give_up(f"rank {self._owner(slot)}, which compiles {what}, "
                                  f"{_late(now - seen_at > DEAD)}")
                    return _NOT_STORED
                checkpoint()
                time.sleep(pause)
                pause = min(2 * pause, _PAUSES[1])
            return bytes(self.store.get(slot.key("outcome")))

    def _owner(self, slot: Slot) -> str:
        by = slot.key("by")
        return self.store.get(by).decode() if self.store.check([by]) else "?"

    def _give_up(self, reason: str) -> None:
        self.is_used = False
        warn(CacheWarning, f"{reason}\n  this rank compiles for itself from now on\n  do: "
             "WEFT_COMPILE_ON_RANK=0 lets each rank compile for itself from the start")

    @contextmanager
    def _surviving(self) -> Iterator[None]:
        """The store cannot be asked: the process that holds it has ended, say."""
        try:
            yield
        except RuntimeError as error:
            self._give_up(f"ranks cannot agree who compiles: {type(error).__name__}: {error}")


def _content(outcome: bytes, files: DiskCache) -> bytes | None:
    """What was kept, which this machine's disk has from now on."""
    if not outcome.startswith(_STORED):
        return None
    key, content = outcome[1:1 + _KEY_LENGTH].decode(), outcome[1 + _KEY_LENGTH:]
    if content and not files.path(key).exists():
        files.accept(sealed(content, [key]))
    return content or files.get(key)


def _can_count(store: GroupStore) -> bool:
    """Whether it is a store: that of PyTorch's fake group is none."""
    try:
        return store.add("weft/ranks", 1) > 0
    except RuntimeError:
        return False


def _late(is_dead: bool) -> str:
    return f"has shown no life for {DEAD:.0f} s" if is_dead else (
        f"has not ended in {LONGEST:.0f} s")


_ranks: list[Ranks] = []
"""Of the present process group: at most one."""


def present_ranks() -> Ranks | None:
    """The ranks of this process's group, if they settle together who compiles."""
    if not config.compile_on_rank or config.verify_entries or is_forked() or not (
            dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return None
    store = default_group_store()
    if not _ranks or _ranks[0].store is not store:
        _ranks[:] = [Ranks(store)]
    return _ranks[0] if _ranks[0].is_used else None
