"""What a captured graph writes, and whether it may raise because of its inputs' data.

Place in the pipeline: asked of the graph under construction by the values that record operators,
and of the whole graph by `compiler` and `replacement/reruns.py`. If an operator raises, the frame
runs eagerly from its start, so what was written before must be undone (`runtime/restoring.py`)::

    running.mul_(0.9)         # writes an input early: `writes_of(graph).early` names it
    rows = table[places]      # may raise
    count.add_(1)             # late: nothing can raise any more
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, final

import torch
from torch import fx

from weft._torch import assert_async
from weft.capture.core.breaks import graph_break
from weft.capture.core.graph import is_of_torch, nodes_of_subgraphs, runs_unseen_code
from weft.runtime.data_checks import is_check
from weft.shapes.fakes.operator_effects import OperatorNotes
from weft.shapes.fakes.wrappers import is_wrapper
from weft.shapes.graph_facts import captured_facts

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter

_NEVER_RAISE: Final = frozenset({
    operator.add, operator.sub, operator.mul, operator.neg, operator.getitem, operator.eq,
    operator.ne, operator.lt, operator.le, operator.gt, operator.ge, operator.and_, operator.or_,
    torch.sym_not, torch.sym_float, torch.sym_max, torch.sym_min,
})
"""Functions of numbers that raise for none."""


def may_refuse_data(graph: fx.Graph) -> bool:
    """Whether the graph could raise because of its inputs' data (and not only for lack of memory).

    If so, the frame's arguments are kept until it has run.
    """
    return any(map(_may_refuse, graph.nodes))


def _may_refuse(node: fx.Node) -> bool:
    if node.op not in ("call_function", "call_method"):
        return False
    notes = captured_facts(node).notes
    if notes is not None and is_of_torch(node):
        return bool(notes.refuses) or runs_unseen_code(node)
    of_numbers = isinstance(node.meta.get("example_value"), (torch.SymInt, torch.SymFloat))
    if of_numbers and node.op == "call_function" and node.target not in _NEVER_RAISE:
        return True  # a root of a negative number
    if is_check(node.target) or not is_of_torch(node):
        return True
    return any(map(_may_refuse, nodes_of_subgraphs(node)))


def has_checks(graph: fx.Graph) -> bool:
    """Whether the graph checks conditions on data."""
    return any(map(_checks, graph.nodes))


def _checks(node: fx.Node) -> bool:
    return is_check(node.target) or any(map(_checks, nodes_of_subgraphs(node)))


@final
@dataclass(frozen=True, slots=True)
class Writes:
    """What a graph does to its inputs: the positions of those that it may have written when one of
    its operators raises because of data, and those that it writes only after the last such one."""

    early: tuple[int, ...]
    late: tuple[int, ...]
    can_undo: bool
    """Whether all that is written early can be undone: it is no more than contents and layouts, and
    autograd does not see it."""


def writes_of(graph: fx.Graph) -> Writes:
    """The writes to inputs, in the order of the graph's nodes."""
    nodes = list(graph.nodes)
    inputs = [node for node in nodes if node.op == "placeholder"]
    of_memory: dict[int, list[int]] = {}
    for i, node in enumerate(inputs):
        of_memory.setdefault(_memory(node) or -1, []).append(i)
    last = max((at for at, node in enumerate(nodes) if _may_refuse(node)), default=-1)
    early: set[int] = set()
    late: set[int] = set()
    unknown = False
    for at, node in enumerate(nodes):
        unknown |= at <= last and _writes_unknown(node)
        for storage in _written_memory(node):
            (early if at <= last else late).update(of_memory.get(storage, ()))
    can_undo = not unknown and all(_can_restore(inputs[i]) for i in early)
    return Writes(tuple(sorted(early)), tuple(sorted(late - early)), can_undo)


def can_undo(graph: fx.Graph) -> bool:
    """Whether all writes of the graph so far could be undone."""
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    written: set[int] = set().union(*map(_written_memory, graph.nodes))
    return not any(map(_writes_unknown, graph.nodes)) and all(
        map(_can_restore, (node for node in inputs if _memory(node) in written)))


def _written_memory(node: fx.Node) -> set[int]:
    notes = captured_facts(node).notes
    memory = set() if notes is None else set(notes.written)
    return memory.union(*map(_written_memory, nodes_of_subgraphs(node)))


def _writes_unknown(node: fx.Node) -> bool:
    """Whether the node could change something that no operator's schema tells."""
    if any(map(_writes_unknown, nodes_of_subgraphs(node))):
        return True
    facts = captured_facts(node)
    if not facts.has_effect or not node.all_input_nodes:
        return False
    return facts.notes is None and not (
        is_check(node.target) or node.target is assert_async)


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
    seen = example.grad_fn is not captured_facts(node).grad_fn
    return _memory(node) is not None and not seen and not example.is_quantized


def note_refusal(tx: Interpreter, notes: OperatorNotes) -> None:
    """Note that an operator, about to be recorded, may fail because of data. Ends the graph before
    it if what was written so far could not be undone."""
    if not notes.refuses:
        return
    frame = tx.frame
    while frame is not None:
        tx.data.catches_refusals |= frame.program.handler_of(frame.current.index) is not None
        frame = frame.caller
    graph = tx.builder.graph
    if tx.policy.ends_before_refusals and not can_undo(graph):
        raise graph_break("operator-failed", "an operator that may fail, after writes that could "
                          "not be undone")
