"""What the user's functions and hooks in a captured graph read, when they run in the backward.

Place in the pipeline: capture says it, in the `ProgramFunction` that a node calls, or for an
operator in the node's facts (contract 3). Their code is traced when the graph is compiled. If a
variable that a backward reads has changed when it runs, the captured graph runs instead, by
autograd, and so does their own code.
"""

from __future__ import annotations

from contextlib import ExitStack

from torch.fx import GraphModule, Node

from weft.shapes.graph_facts import LateReads, captured_facts, program_function


def late_reads_of(gm: GraphModule) -> tuple[LateReads, ...]:
    """Those of all functions in the graph."""
    graphs = [m.graph for m in gm.modules() if isinstance(m, GraphModule)]
    of_nodes = (_of_node(node) for graph in graphs for node in graph.nodes)
    return tuple(dict.fromkeys(reads for reads in of_nodes if reads is not None))


def _of_node(node: Node) -> LateReads | None:
    function = program_function(node)
    return captured_facts(node).late_reads if function is None else function.late_reads


def all_hold(reads: tuple[LateReads, ...]) -> bool:
    """Whether the backward would read what it read when it was traced."""
    return all([r.hold() for r in reads])  # noqa: C419  in every backward


def as_in_forward(reads: tuple[LateReads, ...]) -> ExitStack:
    """A context in which the captured graph repeats its forward."""
    stack = ExitStack()
    for late in reads:
        stack.enter_context(late.as_in_forward())
    return stack
