"""oneDNN's operators, and how they want a weight: in blocks that fit the call and the processor.

Place in the pipeline: calls that generated code makes (`codegen/calls/`) say which packing will do;
`kept_forms.py` packs a parameter once and passes the result in its place::

    LinearPacking(rows=512)(weight)        # a tensor that only oneDNN's calls can read
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch

Numbers = tuple[int, ...]


@final
@dataclass(frozen=True, slots=True)
class LinearPacking:
    """For a linear layer on so many rows, if that is known."""

    rows: int | None

    def __call__(self, weight: torch.Tensor) -> torch.Tensor:
        packed: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight.default(weight, self.rows)
        return packed


@final
@dataclass(frozen=True, slots=True)
class ConvolutionPacking:
    """For a 2-D convolution of images of that shape."""

    padding: Numbers
    stride: Numbers
    dilation: Numbers
    groups: int
    image: Numbers

    def __call__(self, weight: torch.Tensor) -> torch.Tensor:
        packed: torch.Tensor = torch.ops.mkldnn._reorder_convolution_weight.default(
            weight, self.padding, self.stride, self.dilation, self.groups, self.image)
        return packed


def onednn_convolution() -> Callable[..., torch.Tensor] | None:
    """oneDNN's convolution on plain images and plain or packed weights, or None if this torch does
    not have it."""
    return _operator("_convolution_pointwise")


def onednn_linear() -> Callable[..., torch.Tensor] | None:
    """oneDNN's x @ w.T + b on plain x and plain or packed w, or None if this torch does not have
    it."""
    return _operator("_linear_pointwise")


def _operator(name: str) -> Callable[..., torch.Tensor] | None:
    mkldnn = torch.backends.mkldnn
    if not (mkldnn.enabled and mkldnn.is_available()):
        return None
    packet = getattr(torch.ops.mkldnn, name, None)
    operator: Callable[..., torch.Tensor] | None = None if packet is None else packet.default
    return operator
