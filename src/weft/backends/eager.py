"""The `eager` backend: runs the captured graph as it is, operator by operator.

It shows whether a wrong result comes from capture or from what follows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import GraphModule

from weft.runtime.restoring import run_captured


def eager(gm: GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """The captured graph itself."""
    return run_captured(gm)
