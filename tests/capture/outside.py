"""Which tensor operators a compiled function runs outside of its graphs.

`outside(f, x)` calls a function compiled by `compiled_and_watched` and names them::

    f = compiled_and_watched(program)
    f(x)                                  # compiles
    assert outside(f, x) == []
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

import weft

_FREE = frozenset({
    "aten::item", "aten::is_nonzero", "aten::_local_scalar_dense", "aten::detach", "detach",
    "aten::lift_fresh", "aten::view", "aten::select", "aten::alias", "aten::as_strided",
    "aten::empty", "aten::to", "aten::reshape", "aten::resolve_conj", "aten::resolve_neg",
})
"""What reading a number or looking at a tensor comes to."""


def _watched(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    @weft.disable
    def run(*args: Any) -> Any:
        with record_function("GRAPH"):
            return gm.forward(*args)

    return run


def compiled_and_watched(function: Callable[..., Any]) -> Any:
    return weft.compile(function, backend=_watched)


def outside(function: Callable[..., Any], *args: Any) -> list[str]:
    """The outermost operators of a call that no graph ran."""
    profiler = profile(activities=[ProfilerActivity.CPU], acc_events=True)  # else 2.11 warns
    with contextlib.redirect_stdout(io.StringIO()), profiler as p:
        with contextlib.suppress(Exception):
            function(*args)
    return [event.name for event in p.events()
            if event.name.startswith("aten::") and event.name not in _FREE and not _within(event)]


def _within(event: Any) -> bool:
    parent = event.cpu_parent
    while parent is not None:
        if parent.name == "GRAPH" or parent.name.startswith("aten::"):
            return True
        parent = parent.cpu_parent
    return False
