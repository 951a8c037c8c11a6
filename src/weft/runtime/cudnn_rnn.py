"""Recurrent layers on NVIDIA GPUs: cuDNN's call, as an operator that works on fake tensors.

Place in the pipeline: `capture/library/torch_functions/recurrent_polyfills.py` uses it for
`torch.lstm` and the like. PyTorch's own functions read the addresses of the weights (cuDNN wants
them in one buffer), which fake tensors do not have; here they are read when the operator runs::

    output, hy, cy, reserve, buffer = torch.ops.weft.cudnn_rnn(x, weights, 4, hx, cx, LSTM, ...)

`weights` are those of all layers and directions, `each` of them for one (2 without biases, one more
with projections). x: (length, batch, features), the first two swapped with `batch_first`; hx, cx:
(layers * directions, batch, hidden). `buffer` is empty if the weights lie in one already.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Final

import torch

from weft._torch import foreach_copy_

aten = torch.ops.aten

RNN_RELU, RNN_TANH, LSTM, GRU = range(4)
"""cuDNN's numbers of the kinds of cells."""

_LIBRARY: Final = torch.library.Library("weft", "FRAGMENT")
_LAYER: Final = "int mode, int layers, bool batch_first, bool train, bool bidirectional"
_LIBRARY.define(
    f"cudnn_rnn(Tensor x, Tensor[] weights, int each, Tensor hx, Tensor? cx, {_LAYER}) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_LIBRARY.define(
    "cudnn_rnn_backward(Tensor x, Tensor[] weights, int each, Tensor hx, Tensor? cx, "
    "Tensor output, Tensor reserve, Tensor buffer, Tensor? grad_output, Tensor? grad_hy, "
    f"Tensor? grad_cy, {_LAYER}) -> Tensor[]"
)


def _forward(
    x: torch.Tensor, weights: list[torch.Tensor], each: int, hx: torch.Tensor,
    cx: torch.Tensor | None, mode: int, layers: int, batch_first: bool, train: bool,
    bidirectional: bool,
) -> tuple[torch.Tensor, ...]:
    buffer, is_copy = _buffer(x, weights, each, hx, cx, mode, layers, batch_first, bidirectional)
    results = aten._cudnn_rnn.default(
        x, weights, each, buffer, hx, cx, mode, *_sizes(hx, cx), layers, batch_first, 0.0, train,
        bidirectional, [], None,
    )
    return (*results[:4], buffer if is_copy else x.new_empty(0))


def _backward(
    x: torch.Tensor, weights: list[torch.Tensor], each: int, hx: torch.Tensor,
    cx: torch.Tensor | None, output: torch.Tensor, reserve: torch.Tensor, buffer: torch.Tensor,
    grad_output: torch.Tensor | None, grad_hy: torch.Tensor | None, grad_cy: torch.Tensor | None,
    mode: int, layers: int, batch_first: bool, train: bool, bidirectional: bool,
) -> list[torch.Tensor]:
    if buffer.numel() == 0:
        buffer, _ = _buffer(x, weights, each, hx, cx, mode, layers, batch_first, bidirectional)
    grad_x, grad_hx, grad_cx, grads = aten._cudnn_rnn_backward.default(
        x, weights, each, buffer, hx, cx, output, grad_output, grad_hy,
        None if cx is None else grad_cy, mode, *_sizes(hx, cx), layers, batch_first, 0.0, train,
        bidirectional, [], None, reserve, [True, True, cx is not None, True],
    )
    return [grad_x, grad_hx, *([] if cx is None else [grad_cx]), *grads]


def _sizes(hx: torch.Tensor, cx: torch.Tensor | None) -> tuple[int, int]:
    """The size of the hidden state, and the size that it is projected to (0: no projection)."""
    if cx is None or cx.size(2) == hx.size(2):
        return hx.size(2), 0
    return cx.size(2), hx.size(2)


# -- the weights' buffer -------------------------------------------------------------------------


def _buffer(
    x: torch.Tensor, weights: Sequence[torch.Tensor], each: int, hx: torch.Tensor,
    cx: torch.Tensor | None, mode: int, layers: int, batch_first: bool, bidirectional: bool,
) -> tuple[torch.Tensor, bool]:
    """The memory of all weights, in cuDNN's order, and whether it is a copy."""
    form = (each, x.size(-1), mode, *_sizes(hx, cx), layers, batch_first, bidirectional)
    first = weights[0]
    offsets, count = _layout(tuple(w.shape for w in weights), first.dtype, first.device, form)
    begin = first.storage_offset() - offsets[0]
    address = first.data_ptr() - offsets[0] * first.itemsize
    fits = (begin + count) * first.itemsize <= first.untyped_storage().nbytes()
    if fits and [(w.data_ptr() - address) // w.itemsize for w in weights] == offsets:
        return first.detach().as_strided((count,), (1,), begin), False
    return _copied(weights, offsets, count), True


def _copied(weights: Sequence[torch.Tensor], offsets: Sequence[int], count: int) -> torch.Tensor:
    """A buffer with copies of the weights."""
    with torch.no_grad():
        buffer = weights[0].new_zeros(count)
        places = [buffer[offset : offset + w.numel()].view(w.shape)
                  for offset, w in zip(offsets, weights, strict=True)]
        foreach_copy_(places, list(weights))
    return buffer


@cache
def _layout(
    shapes: tuple[torch.Size, ...], dtype: torch.dtype, device: torch.device,
    form: tuple[object, ...]
) -> tuple[list[int], int]:
    """The place of each weight in cuDNN's buffer (elements from the start), and the buffer's
    size."""
    weights = [torch.empty(shape, dtype=dtype, device=device) for shape in shapes]
    each, features, mode, hidden, projected, layers, batch_first, bidirectional = form
    with torch.no_grad():  # makes the weights views of the buffer
        buffer = aten._cudnn_rnn_flatten_weight.default(
            weights, each, features, mode, hidden, projected, layers, batch_first, bidirectional)
    return [int(w.storage_offset()) for w in weights], buffer.numel()


# -- fake tensors and gradients ------------------------------------------------------------------


def _forward_metadata(
    x: torch.Tensor, weights: list[torch.Tensor], each: int, hx: torch.Tensor,
    cx: torch.Tensor | None, mode: int, layers: int, batch_first: bool, train: bool,
    bidirectional: bool,
) -> tuple[torch.Tensor, ...]:
    length, batch = (x.size(1), x.size(0)) if batch_first else (x.size(0), x.size(1))
    output = x.new_empty((length, batch, hx.size(2) * (2 if bidirectional else 1)))
    cy = x.new_empty((0,)) if cx is None else x.new_empty(cx.shape)
    reserve = x.new_empty((0,), dtype=torch.uint8)  # only cuDNN knows its size
    buffer = x.new_empty((0,))  # and that of this one
    return (output.transpose(0, 1) if batch_first else output, x.new_empty(hx.shape), cy, reserve,
            buffer)


def _backward_metadata(
    x: torch.Tensor, weights: list[torch.Tensor], each: int, hx: torch.Tensor,
    cx: torch.Tensor | None, *_: object,
) -> list[torch.Tensor]:
    states = [hx] if cx is None else [hx, cx]
    return [torch.empty_like(t) for t in (x, *states, *weights)]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    x, weights, each, hx, cx, *layer = inputs
    ctx.each, ctx.layer = each, layer
    ctx.save_for_backward(x, hx, cx, output[0], *output[3:], *weights)


def _gradients(ctx: Any, *grads: torch.Tensor | None) -> tuple[Any, ...]:
    x, hx, cx, output, reserve, buffer, *weights = ctx.saved_tensors
    gradients = torch.ops.weft.cudnn_rnn_backward(
        x, weights, ctx.each, hx, cx, output, reserve, buffer, *grads[:3], *ctx.layer)
    grad_cx = None if cx is None else gradients[2]
    grads_of_weights = list(gradients[2 if cx is None else 3 :])
    return gradients[0], grads_of_weights, None, gradients[1], grad_cx, None, None, None, None, None


_LIBRARY.impl("cudnn_rnn", _forward, "CUDA")
_LIBRARY.impl("cudnn_rnn_backward", _backward, "CUDA")
_LIBRARY.impl("cudnn_rnn", _forward_metadata, "Meta")
_LIBRARY.impl("cudnn_rnn_backward", _backward_metadata, "Meta")
torch.library.register_autograd(
    "weft::cudnn_rnn", _gradients, setup_context=_save, lib=_LIBRARY)
