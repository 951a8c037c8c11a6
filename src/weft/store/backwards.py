"""The backwards of stored training graphs: one file for each that was compiled.

Place in the pipeline: beside the entries (docs/architecture/store.md). Which gradients a backward
is asked for is known when it runs, so it is compiled then, and kept then: under a hash of its
graph, the tangents that it gets and the gradients that it gives. A process that wants another one
has the graph, and compiles it::

    backwards.on_disk = BackwardsOnDisk(backwards, graph)
    backwards.of(None, None)            # from the disk, or compiled and kept
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, final

from weft.config import config
from weft.diagnostics import events
from weft.interrupts import surface
from weft.runtime.disk_cache import DiskCache
from weft.store.environment import environment
from weft.store.errors import NotStorable
from weft.store.graphs import GraphAsData
from weft.store.identity import Data
from weft.store.packing import packed, unpacked
from weft.store.ranks import Claim, present_ranks
from weft.store.reader import Reader
from weft.store.writer import Writer

if TYPE_CHECKING:  # loaded with the entries that need it
    from weft.aot.training.backwards import Backward, Backwards, Indices

FORMAT: Final = 1


@final
class BackwardsOnDisk:
    """The files of what is compiled of one backward graph."""

    def __init__(self, backwards: Backwards, graph: GraphAsData) -> None:
        self.graph = graph
        self._claim: Claim | None = None
        self._fixed = [FORMAT, graph.digest(), backwards.tangents, backwards.stages,
                       getattr(backwards.compiler, "__qualname__", "")]

    @contextmanager
    def shared(self, present: Indices | None, wanted: Indices | None
               ) -> Iterator[Backward | None]:
        """The backward of an earlier process or of another rank; None: the block compiles it."""
        try:
            key = self._key(present, wanted) if config.store_entries else None
        except NotStorable:
            key = None
        backward = None if key is None else self._load(key)
        ranks = present_ranks() if backward is None else None
        if key is None or ranks is None:
            yield backward
            return
        answer = ranks.take(key, "backwards", "a backward")
        if not isinstance(answer, Claim):
            yield None if answer is None else self._read(answer)
            return
        self._claim = answer
        try:
            yield None
        finally:
            self._claim = None
            ranks.settle(answer)

    def _load(self, key: str) -> Backward | None:
        """The backward that is on disk; None if there is none that can be used."""
        content = DiskCache("backwards").get(key)
        return None if content is None else self._read(content)

    def _read(self, content: bytes) -> Backward | None:
        try:
            with events.stage("load"):
                backward: Backward = _read(unpacked(content))
        except Exception as error:  # noqa: BLE001  a damaged file: compile it
            surface(error)
            events.record("not_loaded", code=None, reason=f"{type(error).__name__}: {error}")
            return None
        events.count("backwards_loaded")
        return backward

    def keep(self, present: Indices | None, wanted: Indices | None, backward: Backward) -> None:
        """Keep one for other processes; why not, if it cannot be, is an event."""
        if not config.store_entries:
            return
        try:
            with events.stage("store"):
                writer = Writer()
                data = writer.value(backward)
                if writer.programs:
                    raise NotStorable("its backward runs code of the program")
                key, content = self._key(present, wanted), packed(data)
                DiskCache("backwards").put(key, content)
                if self._claim is not None:
                    self._claim.offer(key, content)
        except Exception as error:  # noqa: BLE001  it is compiled: not keeping it costs time only
            surface(error)
            events.record("not_stored", code=None, reason=f"a backward: {error}")
            return
        events.count("backwards_stored")

    def _key(self, present: Indices | None, wanted: Indices | None) -> str:
        text = json.dumps([*self._fixed, _sorted(present), _sorted(wanted), environment()])
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _sorted(indices: Indices | None) -> list[int] | None:
    return None if indices is None else sorted(indices)


def _read(data: Data) -> Any:
    reader = Reader([])
    reader.compile_all(data)
    return reader.value(data)


def keep_backwards(written: Sequence[tuple[Any, Data]]) -> None:
    """Keep what was compiled of these, with their graphs as data, and what will be."""
    for backwards, data in written:
        graph = GraphAsData(data, (), Reader([]).value, BackwardsOnDisk)
        on_disk = backwards.on_disk = BackwardsOnDisk(backwards, graph)
        for (present, wanted), backward in backwards.compiled.items():
            on_disk.keep(present, wanted, backward)
