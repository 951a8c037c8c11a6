"""The steps between tracing and the compiler, for every ATen graph.

Place in the pipeline: `pipeline.py` (inference) and `training/compile.py` share these steps::

    gm = optimize(graph, GraphFacts(lowered=lowered))     # the passes of the joint stage
    gm = finish(gm)                                       # those of the split stage; verified
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch.fx import Graph

from weft.aot import graph as aten_graph
from weft.aot import standard_passes  # noqa: F401  (registers them)
from weft.aot.graph import AtenGraph
from weft.aot.rewrites.new_nodes import PassOfUser
from weft.config import config
from weft.diagnostics import events
from weft.graph_call import GraphCall
from weft.passes.framework import Stage, run_stage
from weft.shapes.graph_facts import GraphFacts, graph_facts, note_graph
from weft.shapes.guard import ShapeGuard

Compiler = Callable[[AtenGraph], GraphCall]


def optimize(graph: Graph, facts: GraphFacts) -> AtenGraph:
    """A traced graph, of which these facts are known, after decomposition and passes."""
    gm = aten_graph.make(graph)
    note_graph(gm, facts)
    with events.stage("passes"):
        return _after("joint", gm)


def finish(
    gm: AtenGraph, written: Sequence[tuple[int, int]] = (), asserts: Sequence[ShapeGuard] = ()
) -> AtenGraph:
    """Make a graph ready for a compiler.

    `asserts`: the conditions on data that the graph checks (a backward has none: its forward has
    checked them). `written`: (output, input) pairs, new values of inputs. The compiler may write
    such an output into the input's own memory, after the input's last use, and return the input
    itself.
    """
    note_graph(gm, replace(graph_facts(gm), written=tuple(written), asserts=tuple(asserts)))
    gm = _after("split", gm)
    if config.strict:
        aten_graph.verify(gm)
    events.record("aot", gm=gm)
    return gm


def _after(stage: Stage, gm: AtenGraph) -> AtenGraph:
    """An ATen graph after the passes of a stage."""
    check = aten_graph.verify if config.strict else None
    return run_stage(stage, gm, watch=lambda gm: PassOfUser(gm).complete, verify=check)
