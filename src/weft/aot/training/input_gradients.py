"""The gradients of a graph's inputs: who asks for them, what computes them, where they go.

Place in the pipeline: made by `compile.py`, used by `autograd_function.py` at every backward::

    wanted = gradients.wanted(ctx, linked)             # None: all; else positions
    computed = gradients.backwards.of(present, wanted).call(saved)
    return gradients.placed(computed, present)         # one item for each input of the graph
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

from torch.fx import Graph

from weft.aot.training.backward_stages import Gradients, in_stages, is_linked, nodes_of
from weft.aot.training.backwards import Backwards, Indices, StoredGraph
from weft.aot.training.layers import cut_at
from weft.aot.training.requests import Requests
from weft.compiling import compiling
from weft.shapes.graph_nodes import results_of
from weft.storable import storable


@final
class CutBackwards:
    """The backwards of a graph that end at inner results: made when one is needed.

    `graph` returns the gradients of the `inner` results last; `tangents` are the values (below 0:
    results that are views) whose tangents it takes.
    """

    def __init__(
        self, backwards: Backwards, graph: Graph | StoredGraph, tangents: Sequence[int],
        inner: Sequence[int],
    ) -> None:
        self._backwards = backwards
        self._graph = graph
        self._tangents = tangents
        self._inner = inner

    def remade(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """What another process makes them of."""
        graph = self._graph if self._inner else None
        return CutBackwards, (self._backwards, graph, self._tangents, self._inner)

    def __call__(self) -> Backwards:
        return self._made

    @cached_property
    def _made(self) -> Backwards:
        whole, graph = self._backwards, self._graph
        if not isinstance(graph, Graph):
            graph = graph.graph
        with compiling():
            cut = cut_at(graph, self._tangents, self._inner)
        at_once = (tuple(range(len(results_of(cut)))),)
        patterns = whole.patterns + 2 * len(whole.tangents)
        return Backwards(cut, whole.tangents, at_once, whole.compiler, patterns=patterns)


@storable
@final
@dataclass(frozen=True, slots=True)
class InputGradients:
    """The gradients that a graph has, by position among them."""

    count: int
    """The number of the graph's inputs."""
    inputs: tuple[int, ...]
    """For each gradient, its input."""
    edges: Sequence[int]
    """For each gradient, the edge of the autograd node that it leaves by."""
    depends_on: tuple[Indices, ...]
    """For each gradient, the values whose tangents it depends on."""
    requests: Requests
    """Which of them a backward is asked for."""
    backwards: Backwards
    """What computes them."""
    cut: Callable[[], Backwards]
    """The backwards cut at inner values (`layers.py`), whose gradients come last."""

    def wanted(self, ctx: object, linked: bool) -> Indices | None:
        """The gradients that the running backward should compute (`torch.autograd.grad` of some
        inputs); None: all."""
        return self.requests.of(*self._nodes_behind(ctx, linked))

    def is_plain(self, ctx: object) -> bool:
        """Whether it is certain that a plain `backward()` runs, which returns no gradients."""
        return self.requests.is_plain(*self._nodes_behind(ctx, is_linked(ctx)))

    def _nodes_behind(self, ctx: Any, linked: bool) -> tuple[Any, Sequence[int]]:
        """The autograd nodes that a compiled function leads to; of each gradient, the one it goes
        to."""
        if not linked:
            return ctx.next_functions, self.edges
        return nodes_of(ctx.next_functions, self.backwards.stages), range(len(self.edges))

    def by_stage(
        self, gradients: Gradients | Iterator[Gradients], present: Indices | None
    ) -> Iterator[Gradients]:
        """The gradients stage by stage; None if no present tangent reaches one."""
        stages = self.backwards.stages
        pieces = gradients if isinstance(gradients, Iterator) else in_stages(stages, gradients)
        if present is None:
            return pieces

        def reached(stage: Sequence[int], piece: Gradients) -> Gradients:
            return [
                g if self.depends_on[k] & present else None
                for k, g in zip(stage, piece, strict=True)
            ]

        return map(reached, stages, pieces)

    def placed(self, gradients: Sequence[Any], present: Indices | None) -> tuple[Any, ...]:
        """Gradients at the positions of their inputs; None if no present tangent reaches one (as in
        eager).

        `present`: the values that have a tangent, or None if all have.
        """
        result = [None] * self.count
        if present is None:
            for i, gradient in zip(self.inputs, gradients, strict=True):
                result[i] = gradient
            return tuple(result)
        for i, gradient, values in zip(self.inputs, gradients, self.depends_on, strict=True):
            if values & present:
                result[i] = gradient
        return tuple(result)
