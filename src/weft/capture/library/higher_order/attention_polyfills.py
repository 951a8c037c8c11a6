"""Attention with the user's own scores and masks, from matrix products and `torch.vmap`.

Place in the pipeline: interpreted in place of the operator that `torch.nn.attention.flex_attention`
calls (`rules.py`). The code generator fuses what the user's functions do to a score
with the softmax.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

_AXES = ((None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, None, None, None))
"""The dimension (batch, head, query or key) of each level of `vmap`, innermost first."""


def flex_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, score_mod: Callable[..., object],
    block_mask: tuple[Any, ...], scale: float, kernel_options: Mapping[str, object],
    score_mod_other_buffers: tuple[object, ...] = (), mask_mod_other_buffers: tuple[Any, ...] = (),
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(B, H, M, D), 2 x (B or 1, H or fewer, N, D) -> (B, H, M, D'); 2 x (B, H, M), in powers of 2.

    The statistics are the logarithm of the sum of exponentials and the largest score. A query that
    may attend to no key gives 0.
    """
    groups = query.size(1) // key.size(1)
    if groups != 1:
        key, value = (t.repeat_interleave(groups, dim=1) for t in (key, value))
    working = torch.float64 if query.dtype == torch.float64 else torch.float32
    scores = (query.to(working) @ key.to(working).transpose(-2, -1)) * scale
    places = [torch.arange(n, device=query.device) for n in scores.shape]
    seen = _over_all(block_mask[-1], (), len(mask_mod_other_buffers))
    changed = _over_all(score_mod, (0,), len(score_mod_other_buffers))
    scores = torch.where(
        seen(*places, *mask_mod_other_buffers), changed(scores, *places, *score_mod_other_buffers),
        -math.inf,
    )
    largest = scores.amax(-1)
    weights = torch.where(largest.unsqueeze(-1) == -math.inf, 0.0, torch.softmax(scores, -1))
    out = weights.to(query.dtype) @ value.to(query.dtype)
    return out, torch.logsumexp(scores, -1) / math.log(2), largest / math.log(2)


def _over_all(function: Callable[..., object], first: tuple[int, ...], others: int) -> Any:
    """The user's function of one score, or one place, applied to all of them."""
    for axes in _AXES:
        function = torch.vmap(function, in_dims=(*first, *axes) + (None,) * others, out_dims=0)
    return function
