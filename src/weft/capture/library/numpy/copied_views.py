"""Results that are views in NumPy and copies in the graph, such as a reversed array.

Place in the pipeline: beside `numpy_arrays`; asked by `early_ends` once the graph is complete. Most
such copies are read only, before their origin changes::

    y = x[::-1].cumsum()          # a copy serves as well
    x[::-1][0] = 1                # the graph ends before this step
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import TYPE_CHECKING, final

import torch
from torch import fx

from weft.capture.core.base import Args
from weft.capture.core.graph import storages, version_of
from weft.capture.library.tensors.tensor import TensorValue
from weft.shapes.graph_facts import captured_facts

if TYPE_CHECKING:
    from weft.capture.core.protocols import Emitter, Interpreter


@final
class CopiedView:
    """A result that is a view in NumPy and a copy in the graph, such as a reversed array."""

    def __init__(self, step: int, taken: list[torch.Tensor], copies: list[torch.Tensor]) -> None:
        self.step = step
        self._taken, self._copies = taken, copies
        self._versions = self._now()

    def _now(self) -> list[int]:
        return [version_of(tensor) for tensor in (*self._taken, *self._copies)]

    def _differs(self, nodes: Iterable[fx.Node]) -> bool:
        """Whether the copy is written to, or used after a write to what it is a copy of."""
        taken, copies, stale = storages(self._taken), storages(self._copies), False
        for node in itertools.dropwhile(
                lambda node: not storages([node.meta.get("example_value")]) & copies, nodes):
            memories = [storages([n.meta.get("example_value")]) for n in node.all_input_nodes]
            read = any(memory & copies for memory in memories)
            if captured_facts(node).has_effect:
                stale = stale or any(memory & taken for memory in memories[:1])
                if memories and memories[0] & copies:
                    return True
            elif read and stale:
                return True
        return False

    def shows(self, tx: Interpreter, emit: Emitter) -> bool:
        """Whether the difference can be noticed: one of the two was written to, or both outlive the
        graph."""
        if self._now() != self._versions and self._differs(tx.builder.graph.nodes):
            return True
        left = storages(node.meta.get("example_value") for node in emit.outputs)
        before = storages(read.node.meta.get("example_value") for read in tx.builder.inputs)
        return bool(storages(self._copies) & left and storages(self._taken) & (left | before))


def note_copy(tx: Interpreter, args: Args, results: list[torch.Tensor]) -> None:
    """Record that an operation made copies where NumPy makes views."""
    taken = [a.example for a in args if isinstance(a, TensorValue)]
    copies = [result for result in results if not storages([result]) <= storages(taken)]
    if copies:
        tx.early_ends.copied_views.append(CopiedView(tx.breaking_step(), taken, copies))
