"""Loop nests: the runs over a kernel's inner loops, and what each of them completes.

Place in the pipeline: the writers of `cpp/` and `triton/` print one loop nest after the other. Nest
0 needs no reduction, nest 1 needs those of nest 0, and so on; softmax over rows has three::

    nest 0: max over the row;  nest 1: sum of exp(x - max);  nest 2: stores exp(x - max) / sum

What an earlier nest has computed at inner level is computed again, unless the target keeps it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import final

from weft.codegen.ir.loop_ir import Kernel, Node, Reduce, Store, operands


@final
@dataclass
class LoopNest:
    """One run over the inner loops: the nodes that it computes, in order, and what it is for."""

    nodes: list[Node] = field(default_factory=list)
    reductions: list[Reduce] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    kept: list[Node] = field(default_factory=list)  # put into row buffers here
    reused: list[Node] = field(default_factory=list)  # read from row buffers here

    def roots(self) -> list[Node]:
        """What is reduced, stored or kept."""
        return [*(r.value for r in self.reductions),
                *(node for store in self.stores for node in store.operands()), *self.kept]

    def needed(self, kernel: Kernel) -> list[Node]:
        """The nodes that `roots` are computed from, unless they are reused."""
        needed = inner_nodes(self.roots(), {node.id for node in self.reused})
        return [node for node in kernel.nodes if node.id in needed]


def loop_nests(kernel: Kernel, depths: Mapping[int, int]) -> list[LoopNest]:
    """The nests of a kernel, by the `reduction_depths` of its nodes."""
    reductions = [(depths[n.value.id], n) for n in kernel.nodes if isinstance(n, Reduce)]
    stores = [(max(depths[n.id] for n in store.operands()), store)
              for store in kernel.stores if store.inner]
    count = max((number for number, _ in (*reductions, *stores)), default=-1) + 1
    nests = [LoopNest() for _ in range(count)]
    for number, reduction in reductions:
        nests[number].reductions.append(reduction)
    for number, store in stores:
        nests[number].stores.append(store)
    for nest in nests:
        nest.nodes = nest.needed(kernel)
    return nests


def inner_nodes(roots: Iterable[Node], known: Collection[int] = ()) -> dict[int, Node]:
    """The inner-level nodes, by id, that `roots` are computed from, up to the `known` ids."""
    needed: dict[int, Node] = {}
    pending = list(roots)
    while pending:
        node = pending.pop()
        if node.inner and node.id not in needed and node.id not in known:
            needed[node.id] = node
            pending.extend(operands(node))
    return needed
