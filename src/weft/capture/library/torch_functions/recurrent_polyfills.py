"""Recurrent layers, written with library calls that take symbolic lengths and fake tensors.

Place in the pipeline: interpreted in place of `torch.lstm`, `torch.gru` and the like
(`recurrent_rules.py`). On CPUs PyTorch's own call takes plain sizes, and its Python form
is a loop over the steps: one graph for each length. On GPUs its call reads addresses.
"""

from __future__ import annotations

import torch

from weft.runtime.cudnn_rnn import LSTM


def lstm_by_layers(
    x: torch.Tensor, states: list[torch.Tensor], params: list[torch.Tensor], has_biases: bool,
    num_layers: int, dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`torch.lstm` of sequences of one length: output, last hidden state, last cell state."""
    directions = 2 if bidirectional else 1
    each = 4 if has_biases else 2
    hx, cx = states[0].contiguous(), states[1].contiguous()
    y = (x.transpose(0, 1) if batch_first else x).contiguous()
    hidden, cells = [], []
    for layer in range(num_layers):
        outputs = []
        for direction in range(directions):
            at = layer * directions + direction
            weights = list(params[at * each : (at + 1) * each])
            if not has_biases:
                weights += [weights[0].new_zeros(weights[0].size(0)) for _ in range(2)]
            output, hy, cy, _ = torch.ops.aten.mkldnn_rnn_layer(
                y, *weights, hx[at], cx[at], direction == 1, [], LSTM, hx.size(2), num_layers,
                has_biases, bidirectional, batch_first, train,
            )
            outputs.append(output)
            hidden.append(hy)
            cells.append(cy)
        y = outputs[0] if directions == 1 else torch.cat(outputs, -1)
        if dropout != 0 and train and layer < num_layers - 1:
            y = torch.dropout(y, dropout, True)
    y = y.transpose(0, 1) if batch_first else y
    return y, torch.stack(hidden), torch.stack(cells)


# -- cuDNN ---------------------------------------------------------------------------------------


def cudnn_lstm(
    x: torch.Tensor, states: list[torch.Tensor], params: list[torch.Tensor], has_biases: bool,
    num_layers: int, dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`torch.lstm` of sequences of one length."""
    each = (4 if has_biases else 2) + (states[0].size(2) != states[1].size(2))
    return _cudnn(LSTM, x, states, params, each, num_layers, dropout if train else 0.0,
                  (batch_first, train, bidirectional))


def cudnn_layer(
    mode: int, x: torch.Tensor, hx: torch.Tensor, params: list[torch.Tensor], has_biases: bool,
    num_layers: int, dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`torch.gru`, `rnn_tanh` or `rnn_relu`; `mode` is cuDNN's number of the kind of cell."""
    return _cudnn(mode, x, [hx], params, 4 if has_biases else 2, num_layers,
                  dropout if train else 0.0, (batch_first, train, bidirectional))[:2]


def _cudnn(
    mode: int, x: torch.Tensor, states: list[torch.Tensor], params: list[torch.Tensor], each: int,
    num_layers: int, dropout: float, form: tuple[bool, bool, bool],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One call for all layers; with dropout between them, one for each: cuDNN would draw random
    numbers of its own, which a checkpoint could not repeat."""
    x, states, params = _autocast(x), [*map(_autocast, states)], [*map(_autocast, params)]
    cells = states[0].size(0) // num_layers  # of one layer: 1, or one for each direction
    together = num_layers if dropout == 0 else 1
    hidden, inner = [], []
    for layer in range(0, num_layers, together):
        if layer > 0:
            x = torch.dropout(x, dropout, True)
        begin, end = layer * cells, (layer + together) * cells
        hx, *cx = [state[begin:end] for state in states] if dropout != 0 else states
        x, hy, cy, *_ = torch.ops.weft.cudnn_rnn(
            x, params[begin * each : end * each], each, hx, cx[0] if cx else None, mode, together,
            *form)
        hidden.append(hy)
        inner.append(cy)
    if len(hidden) == 1:
        return x, hidden[0], inner[0]
    return x, torch.cat(hidden), torch.cat(inner)


def _autocast(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as autocast gives it to cuDNN: in float16, whatever its type is."""
    if not torch.is_autocast_enabled("cuda") or tensor.dtype is torch.float64:
        return tensor
    return tensor.to(torch.float16)
