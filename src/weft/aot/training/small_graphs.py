"""Graphs that PyTorch runs in less time than compiled code: small training graphs, library calls.

Place in the pipeline: asked by `pipeline.py` when a graph has been traced. A compiled training
graph has an autograd node in Python, which costs as much as two or three of eager's; views and
decompositions are made by PyTorch anyway. So the captured graph itself runs, which for such a graph
is eager::

    def f(x):                      # x: (4, 64), needs gradients
        return x.softmax(-1)       # runs as it is

It pays where the call's fixed cost is most of its time: for a few thousand elements.
"""

from __future__ import annotations

import math
import operator
from typing import Any, Final

import torch
from torch.fx import Graph, GraphModule, Node

from weft._torch import OpOverload
from weft.aot.graph import is_view, result_tensors
from weft.aot.operators import Kind, facts
from weft.aot.rewrites.decompositions import find
from weft.aot.rewrites.expand import Lowered
from weft.aot.tracing.trace import Traced
from weft.aot.training.joint import JointGraph
from weft.config import config
from weft.shapes.graph_facts import CapturedFacts, aten_facts, captured_facts, graph_facts

aten = torch.ops.aten

MOST_WORK: Final = 1 << 14
"""Operators times elements of the largest tensor: some ten microseconds."""
MOST_CALLS: Final = 2
"""Operators of a graph of several calls; more are faster as one autograd node."""
MOST_IN_ONE: Final = 4
"""Operators that a single call of PyTorch consists of."""
MOST_NODES: Final = 300
"""Of the graph of a single call: more are a loop over elements that PyTorch writes out."""
_NO_WORK: Final = frozenset({aten.empty_like.default, aten.empty.memory_format})


def runs_as_it_is(
    gm: GraphModule, traced: Traced, joint: JointGraph | None, lowered: Lowered
) -> bool:
    """Whether a captured graph is best run by PyTorch's own nodes."""
    if not config.small_graphs_by_autograd or config.passes or config.check_numerics:
        return False
    if not _is_plain(gm) or _has_effects(traced):
        return False
    graph = traced.graph if joint is None else joint.graph
    n_calls = len([n for n in gm.graph.nodes if _is_call(n)])
    if n_calls == 1 and len(graph.nodes) > MOST_NODES:
        return True
    if _calls_libraries(graph, lowered):
        return True
    return joint is not None and _is_small(graph, n_calls)


def _is_plain(gm: GraphModule) -> bool:
    """Whether the graph consists of calls of PyTorch, and nothing else is known of it."""
    graph = graph_facts(gm)
    if graph.is_part or graph.is_on_parts or graph.restored or graph.is_irreversible:
        return False
    return all(n.op in ("placeholder", "output") or _is_pytorchs(n) for n in gm.graph.nodes)


def _is_call(node: Node) -> bool:
    """Whether a captured node is more than an item of a tuple."""
    if node.op in ("placeholder", "output"):
        return False
    of: Any = node.args[0] if node.args else None
    is_tuple = isinstance(of, Node) and isinstance(of.meta.get("example_value"), (tuple, list))
    return not (node.target is operator.getitem and is_tuple)


def _is_pytorchs(node: Node) -> bool:
    if node.op == "call_method":
        return _is_ordinary(captured_facts(node))
    module = getattr(node.target, "__module__", None) or ""
    is_own = module.startswith(("torch", "_operator")) or isinstance(node.target, OpOverload)
    return node.op == "call_function" and is_own and _is_ordinary(captured_facts(node))


def _is_ordinary(noted: CapturedFacts) -> bool:
    return not (noted.has_effect or noted.by_python or noted.answers or noted.carries_floats
                or noted.late_reads)


def _has_effects(traced: Traced) -> bool:
    return bool(traced.mutated or traced.lifted or traced.counts or traced.numbers
                or traced.asserts)


def _calls_libraries(graph: Graph, lowered: Lowered) -> bool:
    """Whether nothing becomes a kernel, on CPUs."""
    return all(_is_library_call(n, lowered) for n in graph.nodes if _computes(n)) and all(
        t.device.type == "cpu" for n in graph.nodes for t in result_tensors(n))


def _is_library_call(node: Node, lowered: Lowered) -> bool:
    op: Any = node.target
    is_known = lowered(op) or find(op) is not None or facts(op).kind is Kind.COLLECTIVE
    return op.namespace == "aten" and not is_known


def _is_small(graph: Graph, n_calls: int) -> bool:
    """Whether the joint graph has few operators, on few elements each, on CPUs."""
    forward = [n for n in graph.nodes if _computes(n) and aten_facts(n).phase == "forward"]
    sizes = [_elements(t) for n in graph.nodes for t in result_tensors(n)]
    most = MOST_IN_ONE if n_calls == 1 else MOST_CALLS
    return len(forward) <= most and max(sizes) * len(forward) <= MOST_WORK


def _computes(node: Node) -> bool:
    """Whether a traced node stands for work: no view, no new memory."""
    if not isinstance(node.target, OpOverload) or node.target in _NO_WORK:
        return False
    return not is_view(node) and facts(node.target).kind is not Kind.VIEW


def _elements(tensor: torch.Tensor) -> float:
    """How many there are; too many on other devices, or if nobody knows."""
    is_known = tensor.device.type == "cpu" and all(type(n) is int for n in tensor.shape)
    return tensor.numel() if is_known else math.inf
