"""Where entries are kept: one file for each, found by the frame's byte code and the environment.

Place in the pipeline: below `entries.py`. The variants of one code are numbered files, so that an
entry is never changed: a further one gets the next number::

    keys(state, options, backend)      # ['5d1e...', '81c0...', ...], tried until one is missing
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch

from weft.backends import is_own
from weft.capture.core.source import FrameState
from weft.capture.stored.records import FORMAT
from weft.config import CompileOptions
from weft.dims import Dim, DimHint, DynamicShapes
from weft.markers import dynamic_marks
from weft.runtime.disk_cache import DiskCache
from weft.store import NotStorable
from weft.store.code_hash import code_hash
from weft.store.environment import environment
from weft.store.identity import Data
from weft.store.packing import packed as packed
from weft.store.packing import unpacked as unpacked

_DEEPEST: Final = 4
"""How deep in the arguments marks are looked for."""

MOST_VARIANTS: Final = 16
"""How many entries of one code are kept."""


def keys(state: FrameState, options: CompileOptions, backend: Any, *, outermost: bool
         ) -> Iterator[str]:
    """The keys of a frame's entries; raises NotStorable if they depend on what has no name."""
    if not is_own(backend):
        raise NotStorable("its backend is not one of weft's")
    text = json.dumps([
        FORMAT, code_hash(state.code), state.globals.get("__name__"), outermost, backend.name,
        options.fullgraph, options.dynamic, _declared(options.dynamic_shapes), _marks(state),
        _kinds(state), environment(),
    ])
    for number in range(MOST_VARIANTS):
        yield hashlib.sha256(f"{number} {text}".encode("utf-8", "surrogatepass")).hexdigest()


def _declared(shapes: Any) -> Data:
    """What `dynamic_shapes` say."""
    if isinstance(shapes, DynamicShapes):
        return [shapes.bound, _declared(shapes.by_name)]
    if isinstance(shapes, Mapping):
        return [[repr(key), _declared(value)] for key, value in shapes.items()]
    if isinstance(shapes, tuple | list):
        return list(map(_declared, shapes))
    if isinstance(shapes, Dim):
        return ["dim", shapes.root, shapes.factor, shapes.offset, shapes.min, shapes.max]
    if isinstance(shapes, DimHint):
        return ["hint", shapes.kind, shapes.min, shapes.max]
    if shapes is None or type(shapes) is int:
        return shapes
    raise NotStorable("dynamic_shapes hold something else than sizes")


def _kinds(state: FrameState) -> list[str]:
    """The types of the arguments: the models whose code is one wrapper's have files of their own.
    """
    return [f"{type(value).__module__}.{type(value).__qualname__}" for value in state.locals]


def _marks(state: FrameState) -> Data:
    """What the program said about the sizes of its arguments (`weft.mark_dynamic`)."""
    tensors = [tensor for value in state.locals for tensor in _tensors_in(value, _DEEPEST)]
    return [[at, sorted(map(repr, dynamic_marks(tensor).items()))]
            for at, tensor in enumerate(tensors) if dynamic_marks(tensor)]


def _tensors_in(value: Any, depth: int) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif depth and type(value) in (tuple, list):
        for item in value:
            yield from _tensors_in(item, depth - 1)
    elif depth and type(value) is dict:
        for item in value.values():
            yield from _tensors_in(item, depth - 1)


def disk() -> DiskCache:
    """The files of entries."""
    return DiskCache("entries")
