"""Random numbers of a checkpointed forward, drawn a second time instead of being kept.

Place in the pipeline: `functionalize.py` records these operators when activation checkpointing runs
a large dropout on the CPU again. The forward keeps the generator's state before the draw::

    state = generator_state(empty);  mask = bernoulli(empty, p)     # forward: keeps 5 KB
    mask = bernoulli_again(state, [8, 4096], p)                     # backward: the same mask
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch.fx import Node

aten = torch.ops.aten

_LIBRARY: Final = torch.library.Library("weft", "FRAGMENT")
_LIBRARY.define(
    "generator_state(Tensor drawn) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,)
)
_LIBRARY.define("bernoulli_again(Tensor state, SymInt[] size, float p) -> Tensor")
_STATE_BYTES: Final = torch.get_rng_state().numel()


def _state(drawn: torch.Tensor) -> torch.Tensor:
    return torch.get_rng_state()


def _fake_state(drawn: torch.Tensor) -> torch.Tensor:
    return drawn.new_empty(_STATE_BYTES, dtype=torch.uint8)


def _again(state: torch.Tensor, size: Sequence[int], p: float) -> torch.Tensor:
    generator = torch.Generator()
    generator.set_state(state)
    return state.new_empty(size, dtype=torch.bool).bernoulli_(p, generator=generator)


def _fake_again(state: torch.Tensor, size: Sequence[Any], p: float) -> torch.Tensor:
    return state.new_empty(size, dtype=torch.bool)


for _name, _kernel, _fake in (
    ("generator_state", _state, _fake_state), ("bernoulli_again", _again, _fake_again),
):
    _LIBRARY.impl(_name, _kernel, "CPU")
    _LIBRARY.impl(_name, _fake, "Meta")

generator_state: Final = torch.ops.weft.generator_state.default
bernoulli_again: Final = torch.ops.weft.bernoulli_again.default


def saves_memory(drawn: Node) -> bool:
    """Whether the draw can be repeated from a state that is smaller than its result."""
    value = drawn.meta["val"]
    if drawn.target is not aten.bernoulli.p or value.dtype is not torch.bool:
        return False
    count = value.numel()
    types = [type(a) for a in drawn.args[1:]]
    return types == [float] and type(count) is int and count > 2 * _STATE_BYTES
