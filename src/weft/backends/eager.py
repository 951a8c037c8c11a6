"""The `eager` backend: runs the captured graph as it is, operator by operator.

It shows whether a wrong result comes from capture or from what follows.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch.fx import GraphModule

from weft.graph_call import GraphCall
from weft.runtime.restoring import run_captured


def eager(gm: GraphModule, example_inputs: Sequence[object]) -> GraphCall:
    """The captured graph itself."""
    return run_captured(gm)
