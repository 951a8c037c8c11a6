"""Graphs that raise when they run: the frame is run eagerly instead.

Place in the pipeline: consulted when a replacement is written. An index is out of range, a matrix
is not positive definite, memory runs out: eager raises in the middle of the frame, after some
effects and perhaps inside a `try`. A graph is one step of its replacement, so the replacement gives
up, and C runs the frame eagerly from its start. This is impossible if the graph may have changed
one of its inputs::

    try:
        out0, = graph(v[0], v[1])
    except Exception as error:
        raise RunEagerly(error, report)
"""

from __future__ import annotations

import types
from collections.abc import Callable
from functools import partial
from typing import Final

import torch
from torch import fx

from weft import _frame
from weft.aot.global_state import RandomState
from weft.capture.graph import draws, version_of
from weft.diagnostics.failures import handle
from weft.runtime.data_checks import HOLDS, AssumptionError, hold_expected
from weft.shapes.policy import DynamicPolicy

_FAIL_ON_DATA: Final = (
    "index", "gather", "scatter", "embedding", "take", "getitem", "setitem", "loss", "entropy",
    "one_hot", "multinomial", "bernoulli", "normal", "cholesky", "inv", "solve", "det", "lu", "svd",
    "eig", "lstsq", "qr", "assert", "hist", "bincount", "masked", "repeat_interleave", "div",
    "mod", "remainder", "pow", "bucketize", "item", "nonzero", "unique", "select", "ctc", "sparse",
    "quantize", "check", "triangular", "ormqr", "householder", "matrix_", "cond", "backward",
    "grad", "apply", "checkpoint",
)
"""Parts of names of operators that may raise because of their inputs' data."""


_CHECKS: Final = frozenset(HOLDS.values())


def may_refuse_data(graph: fx.Graph) -> bool:
    """Whether the graph could raise because of its inputs' data (and not only for lack of memory).

    If so, the frame's arguments are kept until it has run.
    """
    return any(node.op in ("call_function", "call_method") and _may_refuse(node)
               for node in graph.nodes)


def _may_refuse(node: fx.Node) -> bool:
    target = node.target
    if isinstance(target, str):
        name = target
    else:
        name = getattr(target, "__name__", "")
        home = getattr(target, "__module__", None) or ""
        if not home.startswith(("torch", "_operator", "math")) and home:
            return True  # a function of the program
    return any(part in name for part in _FAIL_ON_DATA)


def changes_inputs(graph: fx.Graph) -> bool:
    """Whether the graph changes inputs or other state, so that running half of it could be
    noticed."""
    if any(map(_may_write_unseen, graph.nodes)):
        return True
    return any(version_of(node.meta.get("example_value")) != node.meta.get("version")
               for node in graph.nodes if node.op == "placeholder")


def _may_write_unseen(node: fx.Node) -> bool:
    """Whether the node could change something that the fakes' versions do not count."""
    if not node.meta.get("effect") or not node.all_input_nodes:
        return False
    return not node.meta.get("counted") and node.target not in _CHECKS


def random_state_saver(graph: fx.Graph) -> Callable[[], RandomState] | None:
    """A function that saves the generators' states, if the graph draws and may then fail a check on
    data.

    None for other graphs.
    """
    expects = any(node.target is hold_expected for node in graph.nodes)
    if not expects or not any(map(draws, graph.nodes)):
        return None
    examples = (node.meta.get("example_value") for node in graph.nodes)
    devices = {e.device for e in examples if isinstance(e, torch.Tensor)} | {torch.device("cpu")}
    return partial(RandomState.of, devices)


def reporter(code: types.CodeType, policy: DynamicPolicy) -> Callable[[Exception], None]:
    """The function to call if the graph of a frame raised but the frame itself then did not."""

    def report(error: Exception) -> None:
        if isinstance(error, AssumptionError):
            if policy.disappointed(sum(entry.hits for entry in _frame.entries(code))):
                _frame.clear(code)
            return
        if isinstance(error, torch.OutOfMemoryError) or code.co_exceptiontable:
            return  # the second run had more memory, or the program caught the error
        _frame.skip(code)
        handle(error, during="run", what=code.co_qualname)

    return report
