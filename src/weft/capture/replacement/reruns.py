"""Graphs that raise when they run: the frame is run eagerly instead.

Place in the pipeline: consulted when a replacement is written. An index is out of range, a matrix
is not positive definite, memory runs out: eager raises in the middle of the frame, after some
effects and perhaps inside a `try`. A graph is one step of its replacement, so the replacement gives
up, and C runs the frame eagerly from its start. By then, inputs that the graph wrote hold their old
contents (`graph_writes.py`, `runtime/restoring.py`), generators are in their old states, and what
the graph had begun has ended::

    try:
        out0, = graph(v[0], v[1])
    except Exception as error:
        end_frames(error)
        raise RunEagerly(error, report)
"""

from __future__ import annotations

import traceback
import types
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import torch
from torch import fx

from weft import _frame
from weft.aot.global_state import RandomState
from weft.capture.core.graph import draws
from weft.capture.core.graph_writes import may_refuse_data
from weft.diagnostics.failures import handle
from weft.runtime.data_checks import AssumptionError, CheckFailed
from weft.shapes.policy import DynamicPolicy
from weft.storable import storable


def random_state_saver(graph: fx.Graph) -> Callable[[], RandomState] | None:
    """A function that saves the generators' states, for a graph that draws and may fail because of
    data; None for others."""
    if not may_refuse_data(graph) or not any(map(draws, graph.nodes)):
        return None
    examples = (node.meta.get("example_value") for node in graph.nodes)
    devices = {e.device for e in examples if isinstance(e, torch.Tensor)} | {torch.device("cpu")}
    return partial(RandomState.of, frozenset(devices))


def end_frames(error: Exception) -> None:
    """Clear the frames that the error came through, innermost first, which closes the generators
    in them: that of `checkpoint` keeps its hooks on saved tensors until then (before PyTorch 2.13),
    and the eager run would save its tensors for the checkpoint that failed."""
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        with suppress(RuntimeError):  # it is running
            frame.clear()
            dict(frame.f_locals)  # before Python 3.13: empties what was read of them before


@storable
def reporter(code: types.CodeType, policy: DynamicPolicy, *, caught: bool
             ) -> Callable[[Exception], None]:
    """The function to call if the graph of a frame raised but the frame itself then did not;
    `caught`: a function that the frame called may have caught the error."""
    caught |= bool(code.co_exceptiontable)

    def report(error: Exception) -> None:
        if isinstance(error, AssumptionError):
            if policy.disappointed(sum(entry.hits for entry in _frame.entries(code))):
                _frame.clear(code)
            return
        if caught or isinstance(error, (CheckFailed, torch.OutOfMemoryError)):
            return  # the second run had more memory, or the program caught the error
        _frame.skip(code)
        handle(error, during="run", what=code.co_qualname)

    return report
