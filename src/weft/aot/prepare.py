"""The steps between tracing and the compiler, for every ATen graph.

Place in the pipeline: `pipeline.py` (inference) and `training/compile.py` share these steps::

    gm = optimize(graph, lowered)     # decompositions, passes
    gm = finish(gm)                   # outputs own their memory; verified
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Graph, Node

from weft.aot import graph as aten_graph
from weft.aot.global_state import Boxed
from weft.aot.graph import AtenGraph, memory_owner
from weft.aot.rewrites.complex_pairs import split_complex
from weft.aot.rewrites.expand import Lowered, expand
from weft.aot.rewrites.scan_gradients import use_library_gradients
from weft.aot.rewrites.written_pieces import join_written_pieces
from weft.config import config
from weft.diagnostics import events
from weft.passes import framework, standard  # noqa: F401  (registers the built-in passes)
from weft.passes.eliminate_dead_code import eliminate_dead_code, keep_errors
from weft.shapes.graph_facts import graph_facts, note_graph
from weft.shapes.graph_nodes import add_node
from weft.shapes.guard import ShapeGuard

Compiler = Callable[[AtenGraph], Boxed]
aten = torch.ops.aten


def optimize(graph: Graph, lowered: Lowered | None) -> AtenGraph:
    """A traced graph after decomposition and passes."""
    with events.stage("passes"):
        gm = aten_graph.make(graph)
        keep_errors(gm)
        eliminate_dead_code(gm)
        if lowered is not None:
            expand(graph, lowered)
            use_library_gradients(graph)
            split_complex(graph)  # kernels know real numbers only
        join_written_pieces(graph)
        check = aten_graph.verify if config.strict else None
        gm = framework.run_pipeline(gm, framework.registered("aten"), verify=check)
        eliminate_dead_code(gm)  # what passes left behind
        return gm


def finish(
    gm: AtenGraph, written: Sequence[int] = (), asserts: Sequence[ShapeGuard] = ()
) -> AtenGraph:
    """Make a graph ready for a compiler.

    `asserts`: the conditions on data that the graph checks (a backward has none: its forward has
    checked them). `written`: the inputs whose new values are the first outputs. The compiler finds
    them in the graph's facts as (output, input) pairs: it may write such an output into the
    input's own memory, after the input's last use, and return the input itself.
    """
    protect_outputs(gm.graph)
    pairs = tuple(enumerate(written))
    note_graph(gm, replace(graph_facts(gm), written=pairs, asserts=tuple(asserts)))
    if config.strict:
        aten_graph.verify(gm)
    events.record("aot", gm=gm)
    return gm


def protect_outputs(graph: Graph) -> None:
    """Give every output its own memory: no output is an input, a view of one, or returned twice."""
    node = graph.output_node()
    taken: set[Node] = set()
    results: list[Any] = []
    for value in node.args[0]:  # type: ignore[union-attr]
        if isinstance(value, Node) and not isinstance(value.meta["val"], torch.SymInt):
            value = _with_own_memory(graph, node, value, taken)
        results.append(value)
    node.args = (tuple(results),)


def _with_own_memory(graph: Graph, output: Node, value: Node, taken: set[Node]) -> Node:
    """`value`, or a copy of it if its memory belongs to something else."""
    owner = memory_owner(value)
    if owner.op != "placeholder" and owner not in taken:
        taken.add(owner)
        return value
    with graph.inserting_before(output):
        copy = add_node(graph, aten.clone.default, (value,), {}, value.meta)
    taken.add(copy)
    return copy
