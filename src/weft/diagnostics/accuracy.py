"""How exact a result is: its largest error against the same program in float64.

Place in the pipeline: independent; used by `weft.benchmark`, `weft demo` and the benchmarks::

    relative_error(tensors(model(x)), tensors(as_float64(model)(as_float64(x))))
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from weft._torch import tree_map


def tensors(value: object) -> list[torch.Tensor]:
    """Every tensor in a result, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        return [t for v in value.values() for t in tensors(v)]
    if isinstance(value, list | tuple):
        return [t for v in value for t in tensors(v)]
    return []


def as_float64(value: object) -> Any:
    """A copy with modules and floating-point tensors in float64."""
    return tree_map(_wide, value)


def _wide(leaf: object) -> object:
    if isinstance(leaf, torch.nn.Module):
        return copy.deepcopy(leaf).double()
    if isinstance(leaf, torch.Tensor):
        wide = leaf.detach().double() if leaf.is_floating_point() else leaf.detach().clone()
        return wide.requires_grad_(leaf.requires_grad)
    return leaf


def relative_error(actual: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """Largest difference over the largest expected value, over all floating-point tensors.

    Raises ValueError if the numbers of tensors differ.
    """
    worst = 0.0
    for a, b in zip(actual, expected, strict=True):
        if b.numel() and b.is_floating_point():
            scale = b.double().abs().max().item() or 1.0
            worst = max(worst, (a.double() - b.double()).abs().max().item() / scale)
    return worst
