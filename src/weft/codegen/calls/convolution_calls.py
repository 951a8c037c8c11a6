"""Convolutions of channels-last images by oneDNN itself, whose weight may be packed.

Place in the pipeline: tried by `library_calls.py` before it writes ATen's convolution::

    convolution(x, w, b, [1, 1], [1, 1], [1, 1], False, [0, 0], 1)        ATen packs w at each call
    onednn_convolution(x, w, b, [1, 1], [1, 1], [1, 1], 1, "none", [], "")     w may be packed
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from weft.codegen.calls.call_sequence import CallSequence
from weft.codegen.lowering.convolution import may_be_packed
from weft.codegen.lowering.registry import in_channels_last
from weft.codegen.values import ExternCall, Value
from weft.runtime.onednn import ConvolutionPacking, onednn_convolution
from weft.shapes.algebra.views import Shape


def spell_convolution(sequence: CallSequence, call: ExternCall) -> str | None:
    """The call, if its weight is a parameter that may be packed; else None."""
    convolution = onednn_convolution()
    if call.op is not torch.ops.aten.convolution.default or convolution is None:
        return None
    x, weight, bias, stride, padding, dilation, transposed, _, groups = call.arguments
    if transposed or not takes_packed(x, weight):
        return None
    placed, image = weight.realize(), _numbers(x.shape)
    packing = ConvolutionPacking(
        _numbers(padding), _numbers(stride), _numbers(dilation), groups, image)
    sequence.weights.setdefault(placed.buffer.name, []).append((call, packing))
    name = sequence.name("onednn_convolution", convolution)
    operands = ", ".join(
        "None" if v is None else sequence.tensor(v.realize()) for v in (x, weight, bias))
    options = ", ".join(map(str, map(list, (padding, stride, dilation))))
    return f"{name}({operands}, {options}, {groups}, 'none', [], '')"


def takes_packed(x: Value, weight: Value) -> bool:
    """Whether oneDNN computes this on NHWC memory with a weight that may be a packed one."""
    if x.dtype != torch.float32 or x.device.type != "cpu" or len(x.shape) != 4:
        return False
    static = all(isinstance(n, int) for n in (*x.shape, *weight.shape))
    return static and in_channels_last(x) and may_be_packed(weight)


def _numbers(sizes: Sequence[object] | Shape) -> tuple[int, ...]:
    return tuple(n for n in sizes if isinstance(n, int))
