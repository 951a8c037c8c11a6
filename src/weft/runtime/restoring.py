"""Graphs that write their inputs, made to change nothing if they raise.

Place in the pipeline: a captured graph may check conditions on data and update running statistics
or parameters. If a check fails, the frame runs eagerly from its start, and must find its tensors as
they were. Capture says in `gm.meta["restored"]` which inputs are written; whoever runs the captured
graph itself restores them::

    run = restoring(gm.forward, [1, 2])
    run(x, mean, count)            # raises: mean and count are what they were

A compiled graph stores the new values after its checks, and needs no copies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import GraphModule


def run_captured(gm: GraphModule) -> Callable[..., Any]:
    """The captured graph itself, operator by operator."""
    return restored_on_error(gm.forward, gm)


def restored_on_error(call: Callable[..., Any], gm: GraphModule) -> Callable[..., Any]:
    """A backend's callable for the graph; it restores what the graph writes if it raises."""
    written = gm.meta.get("restored")
    if written is None or getattr(call, "restores", False):
        return call
    return restoring(call, written)


def restoring(call: Callable[..., Any], written: Sequence[int]) -> Callable[..., Any]:
    """`call`, which writes some of its inputs; if it raises, they hold again what they held.

    It takes its inputs as `call` does: as arguments, or (`boxed`) in a list, which it may clear.
    """
    boxed = getattr(call, "boxed", False)

    def restored(*inputs: Any) -> Any:
        given = inputs[0] if boxed else inputs
        targets = [given[i] for i in written]
        copies = [target.detach().clone() for target in targets]
        del given
        try:
            return call(*inputs)
        except Exception:
            for target, copy in zip(targets, copies, strict=True):
                target.data.copy_(copy)
            raise

    restored.boxed, restored.restores = boxed, True  # type: ignore[attr-defined]
    return restored
