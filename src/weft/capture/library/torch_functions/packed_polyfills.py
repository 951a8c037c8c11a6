"""Packing and unpacking of padded sequences, with operators that work on fake tensors.

Place in the pipeline: interpreted in place of C functions of `torch.nn.utils.rnn`, which loop over
lengths that are data (`recurrent_rules.py`)::

    lengths 3 1      a a' a"      pack:  data a b a' a", batch_sizes 2 1 1
                     b  .  .      pad:   a a' a" / b 0 0, lengths 3 1
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F


def pack_padded(
    x: torch.Tensor, lengths: torch.Tensor, batch_first: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """The steps of all sequences, all first steps before the second ones; the number of sequences
    in each step."""
    steps = x.transpose(0, 1) if batch_first else x
    batch = steps.shape[1]
    if lengths.shape[0] != batch:
        raise RuntimeError(
            f"Expected `len(lengths)` to be equal to batch_size, but got {lengths.shape[0]} "
            f"(batch_size={batch})")
    if not bool((lengths > 0).all()):
        raise RuntimeError("Length of all samples has to be greater than 0, but found an element "
                           "in 'lengths' that is <= 0")
    if not bool((lengths[:-1] >= lengths[1:]).all()):
        raise RuntimeError(
            "`lengths` array must be sorted in decreasing order when `enforce_sorted` is True. You "
            "can pass `enforce_sorted=False` to pack_padded_sequence and/or pack_sequence to "
            "sidestep this requirement if you do not need ONNX exportability.")
    longest = lengths[0].item()
    present = torch.arange(longest)[:, None] < lengths
    return steps[:longest][present.to(x.device)].contiguous(), present.sum(1)


def pad_packed(
    data: torch.Tensor, batch_sizes: torch.Tensor, batch_first: bool, padding_value: Any,
    total_length: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sequences side by side, padded to `total_length`, and their lengths."""
    batch = batch_sizes[0].item()
    place = torch.arange(batch)
    present = place < batch_sizes[:, None]
    index = (batch_sizes.cumsum(0) - batch_sizes)[:, None] + place
    rows = data[torch.where(present, index, 0).to(data.device)]
    seen = present.to(data.device).reshape(present.shape + (1,) * (data.dim() - 1))
    padded = torch.where(seen, rows, data.new_full((), padding_value))
    missing = total_length - batch_sizes.shape[0]
    if missing > 0:
        ends = (0, 0) * data.dim() + (0, missing)
        padded = F.pad(padded, ends, value=padding_value)
    return padded.transpose(0, 1) if batch_first else padded, present.sum(0)
