"""Which backward graphs can be differentiated as they are, where an input of the forward is gone.

Place in the pipeline: `compile.py` asks once for each graph; `autograd_function.py` then lets
autograd run the backward's operators if `double_backward.py` cannot run the captured graph again.
It is what a user's function does that saves its result, and needs the same: all that the backward
reads has an autograd node of its own, or does not depend on what gradients are taken for::

    y = tanh(x)                  # saved: y, whose node is the compiled function's
    backward: t * (1 - y * y)    # differentiable for t and, through y, for x
"""

from __future__ import annotations

import operator
from collections.abc import Container, Iterable
from typing import Any

import torch
from torch.fx import Graph, Node

from weft._torch import FakeTensor, OpOverload
from weft.aot.training.partition import Partition
from weft.shapes.graph_nodes import results_of


def is_differentiable(parts: Partition, trained: Container[int], own: Container[int]) -> bool:
    """Whether autograd differentiates the backward as the forward's second derivative.

    trained: the inputs that get gradients. own: the values that have the function's autograd node.
    """
    if not all(map(_has_formula, parts.backward.nodes)):
        return False
    results = results_of(parts.forward)
    depends = _depending(parts.forward, trained)
    return all(k in own or results[k] not in depends for k in parts.saved_values if k >= 0)


def _has_formula(node: Node) -> bool:
    """Whether autograd knows the operator."""
    target = node.target
    if node.op != "call_function" or target is operator.getitem:
        return True
    return not isinstance(target, OpOverload) or target.namespace == "aten"


def _depending(graph: Graph, trained: Container[int]) -> set[Node]:
    """The nodes through which gradients flow to these inputs."""
    inputs = [n for n in graph.nodes if n.op == "placeholder"]
    depending = {n for i, n in enumerate(inputs) if i in trained}
    for node in graph.nodes:
        if node.op == "call_function" and not depending.isdisjoint(node.all_input_nodes) and (
                _may_have_gradient(node.meta["val"])):
            depending.add(node)
    return depending


def _may_have_gradient(value: object) -> bool:
    values: Iterable[Any] = value if isinstance(value, (tuple, list)) else (value,)
    return any(isinstance(v, FakeTensor) and _is_continuous(v.dtype) for v in values)


def _is_continuous(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point or dtype.is_complex
