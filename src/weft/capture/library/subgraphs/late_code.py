"""Code of the program that a node of the graph runs later: the frame may not change what it reads.

Place in the pipeline: used by the rules of autograd functions and of hooks. Their code is
interpreted when it is met (`subgraphs.rehearsal`), but runs with the graph or in the backward,
before the replacement makes the frame's changes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from weft.capture.core.base import SymbolicValue
from weft.capture.core.breaks import graph_break
from weft.capture.core.lifetimes import outside_values
from weft.capture.core.source import Source
from weft.capture.guards.late_reads import LateReads, with_items
from weft.capture.library.containers.mapping import DictValue
from weft.capture.library.tensors.tensor import TensorValue

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter

Read = dict[Source, None]
Kept = Mapping[Source, Any]


def late_reads(tx: Interpreter, what: str, backward: Read, forward: Iterable[Source] = (),
               kept: Kept = MappingProxyType({})) -> LateReads:
    """What the code of a node reads, one object for all nodes that read the same; breaks the graph
    if the frame has changed some of it."""
    if tx.classes.attributes or _is_changed(tx, {**backward, **dict.fromkeys(forward), **kept}):
        raise graph_break("unknown-operation", f"{what} after a change of what it reads")
    key = frozenset((*backward, *kept)), frozenset(forward)
    reads: LateReads | None = tx.autograd.late_reads.get(key)
    if reads is None:
        reads = tx.autograd.late_reads[key] = LateReads(backward, forward, kept)
    return reads


def kept_containers(tx: Interpreter, context: SymbolicValue) -> Kept:
    """The containers from outside that a backward gets from its forward in `ctx`: these very
    objects, whatever they hold by then."""
    kept: dict[Source, Any] = {}
    for value in outside_values(tx, context):
        container, source = value.real(), value.source
        if source is None or type(container) not in (list, dict, set, deque):
            continue
        if source.base is None and not source.is_fixed:  # another one at each call
            raise graph_break("unknown-operation", f"a backward that keeps the argument {value!r}")
        tx.guards.identity(source, container)
        kept[source] = container
    return kept


def check_unchanged(tx: Interpreter) -> None:
    """Break the graph before a backward whose code reads what the frame has changed since the
    forward."""
    for read, _ in tx.autograd.late_reads:
        if tx.classes.attributes or _is_changed(tx, read):
            raise graph_break("unknown-operation", "a backward after a change of what it reads")


def _is_changed(tx: Interpreter, read: Iterable[Source]) -> bool:
    sources = with_items(read)
    return any(source in sources for value in tx.effects.touched()
               if isinstance(value, SymbolicValue) for source in _written(value))


def _written(value: SymbolicValue) -> list[Source]:
    """The places that the program has written to, of an outside object that it changed."""
    places: list[Source] = []
    for part in (value, value.own_attributes()):
        source = part.source if part is not None else None
        if source is None:
            continue
        if isinstance(part, DictValue):
            places += map(source.dict_item, part.written)
            places += [] if part.is_namespace else [source]
        else:
            places += source.children()
            places += [] if isinstance(part, TensorValue) else [source]
    return places
