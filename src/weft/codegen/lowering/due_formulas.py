"""Formulas that free more memory than they take are computed before the next library call.

Place in the pipeline: used by `graph.py` while it lowers. A formula is usually evaluated in its
reader's kernel. The gradients of a weight that is used at every step of a loop would then all be
kept until the last one exists::

    sum1 = g1 + g2;  g3 = mm(...);  sum2 = sum1 + g3;  g4 = mm(...);  sum3 = sum2 + g4

Here `sum1` is due before `g3` is computed: it takes the memory of one gradient and frees two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, final

from torch.fx import Node

from weft.codegen.values import Strided, Value, estimated_bytes

_DEPTH: Final = 8
"""Operators of a formula that are looked through."""

_NEAR: Final = 2
_FEW: Final = 2
"""A formula is worth a kernel of its own if its reader is more than `_NEAR` library calls away, or
if it frees more than `_FEW` times the bytes that it takes."""


def is_due(freed: int, allocated: int, calls: int) -> bool:
    """Whether a formula that frees and allocates so many bytes should be computed `calls` before
    its reader."""
    return freed > allocated and (calls > _NEAR or freed > _FEW * allocated)


@final
@dataclass(slots=True)
class _Waiting:
    value: Value
    freed: int
    allocated: int
    calls: int = 0


@final
class DueFormulas:
    """Formulas that were not read yet and whose operands have no other readers."""

    def __init__(self) -> None:
        self._waiting: dict[Node, _Waiting] = {}

    def read_by(self, node: Node) -> None:
        """Record that the operands of `node` are part of its formula."""
        if self._waiting:
            for operand in node.all_input_nodes:
                self._waiting.pop(operand, None)

    def add(self, node: Node, value: Value, environment: Mapping[Node, object]) -> None:
        """Record the formula of `node` if it frees more than it takes."""
        if len(node.users) == 1 and not isinstance(value.impl, Strided):
            freed, allocated = _freed_bytes(node, environment, _DEPTH), estimated_bytes(value)
            if freed > allocated:
                self._waiting[node] = _Waiting(value, freed, allocated)

    def before_call(self) -> None:
        """Realise the formulas that are due before a library call."""
        for node, waiting in list(self._waiting.items()):
            waiting.calls += 1
            if is_due(waiting.freed, waiting.allocated, waiting.calls):
                del self._waiting[node]
                waiting.value.realize()


def _freed_bytes(node: Node, environment: Mapping[Node, object], depth: int) -> int:
    """The bytes computed by the graph that only the formula of `node` reads."""
    freed = 0
    for operand in node.all_input_nodes if depth else ():
        value = environment[operand]
        if len(operand.users) > 1 or operand.op != "call_function" or not isinstance(value, Value):
            continue
        if isinstance(value.impl, Strided) and not _is_view(operand, value, environment):
            freed += estimated_bytes(value)
        else:
            freed += _freed_bytes(operand, environment, depth - 1)
    return freed


def _is_view(node: Node, value: Value, environment: Mapping[Node, object]) -> bool:
    """Whether it is a view of an operand's memory."""
    operands = (environment[operand] for operand in node.all_input_nodes)
    return any(isinstance(o, Value) and o.buffer() is value.buffer() for o in operands)
