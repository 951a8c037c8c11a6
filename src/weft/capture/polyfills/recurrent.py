"""LSTM layers over sequences of symbolic length, written with one library call for each layer.

Place in the pipeline: `handlers/size_forms.py` has capture interpret this on CPUs where sizes are
symbolic. PyTorch's own call takes plain sizes there, and its Python form is a loop over the steps:
a graph for each length.
"""

from __future__ import annotations

import torch

_LSTM = 2  # the library's code of the kind of cell


def lstm(
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
                y, *weights, hx[at], cx[at], direction == 1, [], _LSTM, hx.size(2), num_layers,
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
