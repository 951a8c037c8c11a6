"""Recurrent layers in training: a library call that keeps what its backward needs.

Place in the pipeline: `record_special.py` records this operator instead of `aten.mkldnn_rnn_layer`
if gradients are needed. PyTorch's operator keeps the workspace of its backward only when gradients
are enabled, which they are not in a compiled forward; this one always keeps it::

    torch.ops.weft.mkldnn_rnn_layer_keeping(x, w0, w1, ...)     # (output, hy, cy, workspace)
"""

from __future__ import annotations

from typing import Final

import torch

from weft._torch import below_autograd

aten = torch.ops.aten

_LIBRARY: Final = torch.library.Library("weft", "FRAGMENT")
_SCHEMA: Final = str(aten.mkldnn_rnn_layer.default._schema).partition("(")[2]
_LIBRARY.define(f"mkldnn_rnn_layer_keeping({_SCHEMA}")


def _keeping(*args: object) -> object:
    with below_autograd(), torch.enable_grad():
        return aten.mkldnn_rnn_layer.default(*args)


_LIBRARY.impl("mkldnn_rnn_layer_keeping", _keeping, "CPU")
_LIBRARY.impl("mkldnn_rnn_layer_keeping", aten.mkldnn_rnn_layer.default, "Meta")

mkldnn_rnn_layer_keeping: Final = torch.ops.weft.mkldnn_rnn_layer_keeping.default
