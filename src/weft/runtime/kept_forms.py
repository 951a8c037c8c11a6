"""Forms of parameters that are kept between calls: packed for a library, or computed of several.

Place in the pipeline: around the compiled calls of graphs without gradients; made by
`aot/kept_forms.py`. A form is made at the first call that needs it, and again whenever somebody
could have written to its parameters since (`watched_storages.py`)::

    call = KeptForms(run, {1: LinearPacking(512)})
    call([x, weight])            # packs weight; run([x, packed])
    call([x, weight])            # run([x, packed])
    weight.data.mul_(2)
    call([x, weight])            # packs it again

A parameter whose memory cannot be watched is passed as it is, and so are all of them while they are
written all the time. Forms that a graph cannot do without are computed at each call then.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, final

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from weft._watched import Watch
from weft.config import config
from weft.diagnostics.statistics import HELD
from weft.graph_call import Packing
from weft.runtime.watched_storages import can_be_watched, watched

COST: Final = 8
"""Calls that forms must have served to be made once more."""
CREDIT: Final = 64
PATIENCE: Final = 100
"""Calls before it is tried again to keep what could not be kept."""

Run = Callable[[list[Any]], Any]
Derive = Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]


@final
@dataclass(frozen=True, slots=True)
class _Kept:
    """Forms: what is passed in place of inputs, and behind them, as long as `watch` holds for the
    inputs at `positions`."""

    watch: Watch
    positions: tuple[int, ...]
    replaced: Mapping[int, torch.Tensor]
    derived: Sequence[torch.Tensor]
    bytes: int
    storage: StorageWeakRef
    """Of a parameter. (Tensors with weak references cannot be swapped.)"""


@final
@dataclass(slots=True)
class _Forms:
    """The forms for one set of parameters, if there are any now, and when to make them."""

    kept: _Kept | None = None
    credit: int = CREDIT
    wait: int = 0

    def keep(self, kept: _Kept | None) -> None:
        """Take these instead of those before."""
        before, self.kept = self.kept, kept
        HELD["kept_form_bytes"] += (0 if kept is None else kept.bytes) - (
            0 if before is None else before.bytes)


def bytes_kept() -> int:
    """What all kept forms of the process occupy."""
    return HELD["kept_form_bytes"]


@final
@dataclass(frozen=True, slots=True)
class Derived:
    """Forms that a graph has as further inputs, behind its own.

    `derive` computes them of the inputs at `positions`.
    """

    derive: Derive
    positions: tuple[int, ...]


_calls: Final[weakref.WeakSet[KeptForms]] = weakref.WeakSet()
"""All that may have forms, for when one needs room."""


@final
class KeptForms:
    """A compiled call that gets forms of its parameters.

    packed: inputs of which a packed form will do, and how it is packed; those behind the call's
    inputs are derived forms.
    """

    def __init__(
        self, run: Run, packed: Mapping[int, Packing], n_inputs: int,
        derived: Derived | None = None,
    ) -> None:
        self.run = run
        self.packed = {i: how for i, how in packed.items() if i < n_inputs}
        self.packed_forms = {i - n_inputs: how for i, how in packed.items() if i >= n_inputs}
        self.derived = derived
        self.key = min((*self.packed, *(derived.positions if derived is not None else ())))
        self.limit = config.kept_forms_mb << 20
        self.is_frozen = config.freezing
        self._forms: dict[int, _Forms] = {}
        _calls.add(self)

    def __call__(self, inputs: list[Any]) -> Any:
        key = id(inputs[self.key])
        forms = self._forms.get(key)
        if forms is None:
            forms = self._forms[key] = _Forms()
        kept = forms.kept
        if kept is not None and kept.watch.holds(inputs, kept.positions):
            forms.credit = min(forms.credit + 1, CREDIT)
        else:
            kept = self._made(forms, key, inputs)
            if kept is None:
                return self._run_without(inputs)
        for position, form in kept.replaced.items():
            inputs[position] = form
        inputs.extend(kept.derived)
        return self.run(inputs)

    def _run_without(self, inputs: list[Any]) -> Any:
        if self.derived is not None:
            with torch.no_grad():
                inputs.extend(self.derived.derive(inputs))
        return self.run(inputs)

    def _made(self, forms: _Forms, key: int, inputs: list[Any]) -> _Kept | None:
        """New forms; None if they cannot be kept, or the parameters are written all the time."""
        forms.keep(None)
        for other in _calls:
            other.drop_dead()
        if forms.wait > 0:
            forms.wait -= 1
            return None
        forms.wait, forms.credit = PATIENCE, forms.credit - COST
        if forms.credit < 0:
            forms.credit = 0
            return None
        kept = self._new(inputs)
        if kept is not None:
            forms.wait = 0
            forms.keep(kept)
        return kept

    def _new(self, inputs: list[Any]) -> _Kept | None:
        needed = () if self.derived is None else self.derived.positions
        if not all(can_be_watched(inputs[i]) for i in needed) or self._room(inputs, needed) < 0:
            return None
        packed = [i for i in self.packed if i not in needed and can_be_watched(inputs[i])]
        packed = packed[:self._fitting(inputs, packed, needed)]
        positions = (*needed, *packed)
        watch = watched(tuple(inputs[i] for i in positions)) if positions else None
        if watch is None:
            return None
        with torch.no_grad():
            replaced = {i: pack(inputs[i], self.packed[i]) for i in packed}
            derived = self._derived(inputs)
        if not watch.holds(inputs, positions):  # written meanwhile
            return None
        size = sum(map(_bytes, (*replaced.values(), *derived)))
        storage = StorageWeakRef(inputs[self.key].untyped_storage())
        return _Kept(watch, positions, replaced, derived, size, storage)

    def _derived(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        forms = [] if self.derived is None else self.derived.derive(inputs)
        for k, packing in self.packed_forms.items():
            forms[k] = pack(forms[k], packing)
        return forms

    def _room(self, inputs: Sequence[torch.Tensor], needed: Sequence[int]) -> int:
        """The memory that is left when the forms of the needed inputs are made."""
        if self.is_frozen:
            return 0
        return self.limit - bytes_kept() - sum(_bytes(inputs[i]) for i in needed)

    def _fitting(
        self, inputs: Sequence[torch.Tensor], packed: Sequence[int], needed: Sequence[int]
    ) -> int:
        """How many of the packed forms there is room for."""
        if self.is_frozen:
            return len(packed)
        room = self._room(inputs, needed)
        sizes = accumulate(_bytes(inputs[i]) for i in packed)
        return sum(size <= room for size in sizes)

    def drop_dead(self) -> None:
        """Forget the forms of parameters that are no more."""
        for key, forms in list(self._forms.items()):
            if forms.kept is not None and forms.kept.storage.expired():
                forms.keep(None)
                del self._forms[key]

    def __del__(self) -> None:
        for forms in self._forms.values():
            forms.keep(None)


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def pack(weight: torch.Tensor, packing: Packing) -> torch.Tensor:
    """The weight of a linear layer in oneDNN's own layout (of a copy, because packing asks for
    memory that may be written)."""
    return packing(weight.detach().clone())
