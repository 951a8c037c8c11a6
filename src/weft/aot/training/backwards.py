"""The compiled backwards of one training graph: one for each pattern of tangents that occurs.

Place in the pipeline: made by `compile.py`, used by `autograd_function.py` at every backward. A
graph with one result has its backward compiled at once. Which of several results get a tangent is
only known when the backward runs, so it is compiled then, for exactly these. The same holds for
gradients that are not needed (`torch.autograd.grad(loss, x)` with parameters that require
gradients, too)::

    loss, logits = compiled(x)
    loss.backward()          # compiles the backward without the tangent of `logits`
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from contextlib import AbstractContextManager, nullcontext
from inspect import isgeneratorfunction
from typing import Any, Protocol, final

from torch.fx import Graph, GraphModule, Node

from weft._torch import DisableAutocast, DisableTorchFunction
from weft.aot import graph as aten_graph
from weft.aot.global_state import Boxed
from weft.aot.prepare import Compiler, finish
from weft.aot.python_code import compile_calls
from weft.aot.tracing.arrivals import remove_marks
from weft.aot.training.absent_tangents import remove_tangents
from weft.aot.training.backward_stages import Stages
from weft.aot.training.gradient_sources import (
    gradient_sources,
    stages_of_outputs,
    with_sources,
)
from weft.compiling import compiling
from weft.config import config
from weft.diagnostics.failures import handle
from weft.diagnostics.trace_files import traced
from weft.passes.eliminate_dead_code import eliminate_dead_code
from weft.shapes.graph_facts import GraphFacts, note_graph
from weft.shapes.graph_nodes import copied_graph
from weft.storable import storable

Indices = frozenset[int]

@storable
@final
class Backward:
    """A compiled backward: the values whose tangents it takes, and whether it uses zeros for
    others.

    reads: the positions of the inputs that it reads.
    is_other: a user's function takes another way for such tangents than the compiled one.
    in_stages: `call` returns an iterator of the gradients of each stage.
    """

    __slots__ = ("call", "in_stages", "is_other", "present", "reads", "with_zeros")

    def __init__(
        self, call: Boxed, present: Indices | None, reads: Indices, with_zeros: bool, is_other: bool
    ) -> None:
        self.call = call
        self.reads = reads
        self.is_other = is_other
        self.in_stages = isgeneratorfunction(call)
        self.present = present  # None: all
        self.with_zeros = with_zeros


class StoredGraph(Protocol):
    """A graph of an earlier process, made when it is asked for."""

    @property
    def graph(self) -> Graph:
        """The graph."""

    @property
    def module(self) -> GraphModule:
        """A module of the graph."""

    def forward(self, *inputs: Any) -> Any:
        """Run a captured graph."""

    def on_disk(self, backwards: Backwards) -> OnDisk:
        """The backwards that were compiled from this one."""


class OnDisk(Protocol):
    """A backward graph that is kept on disk, and the backwards that were compiled from it."""

    @property
    def graph(self) -> StoredGraph:
        """The graph."""

    def shared(self, present: Indices | None, wanted: Indices | None
               ) -> AbstractContextManager[Backward | None]:
        """The backward of an earlier process or of another rank; None: the block compiles it."""

    def keep(self, present: Indices | None, wanted: Indices | None, backward: Backward) -> None:
        """Keep a new one for other processes."""


@final
class Backwards:
    """The backward graph, and the backwards that have been compiled from it.

    `tangents`: the values whose tangents are its last placeholders. `stages`: the stages in which
    it returns its gradients. `patterns`: it is compiled for some tangents and gradients only in at
    most so many ways; further ones get zeros for absent tangents.
    """

    def __init__(
        self, graph: Graph | None, tangents: list[int], stages: Stages, compiler: Compiler, *,
        patterns: int = 8,
    ) -> None:
        self._graph = graph
        self.on_disk: OnDisk | None = None
        self.stages = stages
        self.tangents = tangents
        self.compiler = compiler
        self.patterns = patterns
        self.settings = {**dict(config.cache_key()), "trace": config.trace}
        self.compiled: dict[tuple[Indices | None, Indices | None], Backward] = {}
        self._by_aten: dict[tuple[Indices | None, Indices | None], Backward] = {}
        if graph is not None and len(tangents) == 1:
            self.compiled[None, None] = self._compile(None, None, compiler)

    @staticmethod
    def stored(
        graph: StoredGraph, tangents: list[int], stages: Stages,
        compiler: Compiler, patterns: int,
    ) -> Backwards:
        """Those of an earlier process: loaded when they run."""
        backwards = Backwards(None, tangents, stages, compiler, patterns=patterns)
        backwards.on_disk = graph.on_disk(backwards)
        return backwards

    def remade(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """What another process makes them of."""
        return Backwards.stored, (
            self.graph, self.tangents, self.stages, self.compiler, self.patterns)

    @property
    def graph(self) -> Graph:
        """The graph of which they are compiled."""
        if self._graph is None:
            assert self.on_disk is not None
            self._graph = self.on_disk.graph.graph
        return self._graph

    def of(self, present: Indices | None, wanted: Indices | None) -> Backward:
        """The backward for the tangents of the values `present` and the gradients `wanted`
        (positions).

        None: all.
        """
        backward = self.compiled.get((present, wanted))
        if backward is None:
            with compiling(), config.patch(self.settings), traced():
                backward = self.compiled.get((present, wanted))
                backward = backward or self._compile_or_fall_back(present, wanted)
        return backward

    def by_aten(self, present: Indices | None, wanted: Indices | None) -> Backward:
        """The same for tangents that are made of tensors, which kernels cannot read."""
        backward = self._by_aten.get((present, wanted))
        if backward is None:
            with compiling(), DisableAutocast(), DisableTorchFunction():
                backward = self._compile(present, wanted, compile_calls)
            self._by_aten[present, wanted] = backward
        return backward

    def _compile_or_fall_back(self, present: Indices | None, wanted: Indices | None) -> Backward:
        with nullcontext() if self.on_disk is None else self.on_disk.shared(
                present, wanted) as loaded:
            if loaded is not None:
                self.compiled[present, wanted] = loaded
                return loaded
            return self._compile_here(present, wanted)

    def _compile_here(self, present: Indices | None, wanted: Indices | None) -> Backward:
        full = len(self.compiled) >= self.patterns
        if full and (present, wanted) != (None, None):
            return self.of(None, None)
        with DisableAutocast(), DisableTorchFunction():
            try:
                backward = self._compile(present, wanted, self.compiler)
                if self.on_disk is not None:
                    self.on_disk.keep(present, wanted, backward)
            except Exception as error:  # noqa: BLE001  the documented boundary: ATen instead
                handle(error, during="compiling a backward")
                backward = self._compile(present, wanted, compile_calls)
        self.compiled[present, wanted] = backward
        return backward

    def _compile(
        self, present: Indices | None, wanted: Indices | None, compiler: Compiler
    ) -> Backward:
        graph = copied_graph(self.graph)
        tangents = tangent_nodes(graph, self.tangents)
        absent = [n for k, n in tangents.items() if present is not None and k not in present]
        with_zeros = remove_tangents(graph, absent)
        if wanted is not None:
            _keep_gradients(graph, wanted)
        gm = aten_graph.make(graph)
        eliminate_dead_code(gm)
        is_other = remove_marks(graph)
        eliminate_dead_code(gm)
        inputs = [n for n in graph.nodes if n.op == "placeholder"]
        reads = frozenset(i for i, n in enumerate(inputs) if n.users)
        arriving = [n for n in tangents.values() if n not in absent]
        sources = gradient_sources(graph, arriving, self.stages)
        note_graph(gm, GraphFacts(stages=stages_of_outputs(sources, self.stages)))
        call = with_sources(compiler(finish(gm)), sources, self.stages)
        return Backward(call, present, reads, not all(n._erased for n in with_zeros), is_other)


def tangent_nodes(graph: Graph, tangents: Sequence[int]) -> dict[int, Node]:
    """The placeholders of tangents, which are a backward graph's last ones, by value."""
    placeholders = [n for n in graph.nodes if n.op == "placeholder"]
    return dict(zip(tangents, placeholders[len(placeholders) - len(tangents) :], strict=True))


def with_tangents_of(graph: Graph, tangents: Sequence[int], values: Container[int]) -> Graph:
    """A backward graph that takes the tangents of some values only."""
    graph = copied_graph(graph)
    absent = [n for k, n in tangent_nodes(graph, tangents).items() if k not in values]
    remove_tangents(graph, absent)
    eliminate_dead_code(aten_graph.make(graph))
    return graph


def _keep_gradients(graph: Graph, wanted: Indices) -> None:
    output = graph.output_node()
    results: Any = output.args[0]
    output.args = (tuple(r if i in wanted else None for i, r in enumerate(results)),)
