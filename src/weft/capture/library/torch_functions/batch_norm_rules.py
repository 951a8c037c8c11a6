"""The rule for batch norms with `momentum=None`, such as `swa_utils.update_bn` runs.

Place in the pipeline: see `weft.capture.library`. PyTorch's code takes the number of batches from
its tensor and divides by it, which would end the graph.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import torch

from weft.capture.core.base import SymbolicValue
from weft.capture.core.constant import is_none
from weft.capture.library.functions.functions import inline, rule
from weft.capture.library.torch_functions.batch_norm_polyfills import cumulative_forward

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter


_FORWARD: Final = torch.nn.BatchNorm1d.forward  # of all batch norms


@rule(_FORWARD)
def _forward(tx: Interpreter, layer: SymbolicValue, /, input: SymbolicValue) -> SymbolicValue:
    cumulative = _is_cumulative(tx, tx.force(layer))
    return inline(tx, cumulative_forward if cumulative else _FORWARD, [layer, input], {})


def _is_cumulative(tx: Interpreter, layer: SymbolicValue) -> bool:
    """Whether the running statistics are averages over all batches, and count this one."""
    if not is_none(tx.force(layer.getattr(tx, "momentum"))):
        return False
    updates = all(layer.getattr(tx, n).truth(tx) for n in ("training", "track_running_stats"))
    return updates and not any(
        is_none(tx.force(layer.getattr(tx, name)))
        for name in ("num_batches_tracked", "running_mean", "running_var"))
