"""Graphs that raise when they run: the frame is run eagerly instead.

Place in the pipeline: consulted when a replacement is written. An index is out of range, a matrix
is not positive definite, memory runs out: eager raises in the middle of the frame, after some
effects and perhaps inside a `try`. A graph is one step of its replacement, so the replacement gives
up, and C runs the frame eagerly from its start. If the graph writes its inputs, that needs their
old contents: a graph that checks conditions on data restores them (`runtime/restoring.py`), others
raise as they are::

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
from weft._torch import assert_async
from weft.aot.global_state import RandomState
from weft.capture.graph import draws, is_of_torch, nodes_of_subgraphs, target_name, version_of
from weft.diagnostics.failures import handle
from weft.runtime.data_checks import AssumptionError, CheckFailed, is_check
from weft.shapes.fakes.wrappers import is_wrapper
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

_WRITE_CONTENTS: Final = ("_foreach_", "_fused_", "batch_norm", "fused_moving_avg_obs")
"""Parts of names of PyTorch's functions that write arguments, which no versions tell."""


def may_refuse_data(graph: fx.Graph) -> bool:
    """Whether the graph could raise because of its inputs' data (and not only for lack of memory).

    If so, the frame's arguments are kept until it has run.
    """
    return any(node.op in ("call_function", "call_method") and _may_refuse(node)
               for node in graph.nodes)


def _may_refuse(node: fx.Node) -> bool:
    return not is_of_torch(node) or any(part in target_name(node) for part in _FAIL_ON_DATA)


def has_checks(graph: fx.Graph) -> bool:
    """Whether the graph checks conditions on data."""
    return any(map(_checks, graph.nodes))


def _checks(node: fx.Node) -> bool:
    return is_check(node.target) or any(map(_checks, nodes_of_subgraphs(node)))


def written_inputs(graph: fx.Graph) -> tuple[int, ...] | None:
    """Positions of the inputs that the graph writes; None if it changes more than the contents of
    tensors, which could not be restored."""
    unseen = [node for node in graph.nodes if _may_write_unseen(node)]
    if not all(map(_writes_contents_only, unseen)):
        return None
    memory = {_memory(arg) for node in unseen for arg in node.all_input_nodes} - {None}
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    written = tuple(i for i, node in enumerate(inputs)
                    if version_of(node.meta.get("example_value")) != node.meta.get("version")
                    or _memory(node) in memory)
    return written if all(_can_restore(inputs[i]) for i in written) else None


def _may_write_unseen(node: fx.Node) -> bool:
    """Whether the node could change something that the fakes' versions do not count."""
    if any(map(_may_write_unseen, nodes_of_subgraphs(node))):
        return True
    if not node.meta.get("effect") or not node.all_input_nodes:
        return False
    return not node.meta.get("counted") and not (
        is_check(node.target) or node.target is assert_async)


def _writes_contents_only(node: fx.Node) -> bool:
    """Whether the node changes nothing but the contents of its arguments."""
    inner = [n for n in nodes_of_subgraphs(node) if _may_write_unseen(n)]
    if inner:
        return all(map(_writes_contents_only, inner))
    return is_of_torch(node) and any(part in target_name(node) for part in _WRITE_CONTENTS)


def _memory(node: fx.Node) -> int | None:
    """What the tensors that share memory with a node's have in common."""
    example = node.meta.get("example_value")
    if not isinstance(example, torch.Tensor) or is_wrapper(type(example)):
        return None
    return example.untyped_storage()._cdata if example.layout == torch.strided else None


def _can_restore(node: fx.Node) -> bool:
    """Whether the old contents can be put back into an input: autograd must not have seen the
    write."""
    example = node.meta["example_value"]
    return _memory(node) is not None and example.grad_fn is None and not example.is_quantized


def random_state_saver(graph: fx.Graph) -> Callable[[], RandomState] | None:
    """A function that saves the generators' states, if the graph draws and may then fail a check on
    data.

    None for other graphs.
    """
    if not has_checks(graph) or not any(map(draws, graph.nodes)):
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
        if isinstance(error, (CheckFailed, torch.OutOfMemoryError)) or code.co_exceptiontable:
            return  # the second run had more memory, or the program caught the error
        _frame.skip(code)
        handle(error, during="run", what=code.co_qualname)

    return report
