"""What a capture leaves for the store.

Place in the pipeline: made by the compiler, which loads the rest of `capture/stored/` only under
`config.store_entries`; written by `records.py`::

    keep(compiler, Record(state, nodes, ...), outermost=True)
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from weft.capture.core.source import FrameState
from weft.capture.guards.guard_set import Guard
from weft.capture.replacement.function import ReplacementParts
from weft.graph_call import GraphCall


@final
@dataclass(frozen=True, slots=True)
class Record:
    """The parts of a new entry."""

    state: FrameState
    nodes: Sequence[Any]
    tree_checks: Sequence[Any]
    n_slots: int
    guards: Sequence[Guard]
    parts: ReplacementParts
    graph: GraphCall | None
    needs_hook: bool
    may_rerun: bool
    any_size: bool
    interpreted: Mapping[int, tuple[types.CodeType, str]]
    """The code objects that were interpreted, with the names of their modules."""
    signatures: Sequence[tuple[inspect.Signature, object]]
    """Those that the capture has made, with what they are of."""
    orders: Sequence[tuple[type, Any, tuple[Any, ...]]]
    """Kinds of sets, what they are filled with, and their orders."""
    bound_to_process: Sequence[str]
    """What the capture took from this process that no guard compares."""
