"""Gradients that are tangents, or parts of what a backward graph computes, without a copy.

Place in the pipeline: used by `backwards.py` around the compiler. As in eager, the gradient of
`x` in `x + y` is the tangent itself, and those of `torch.cat([x, y])` are views of one tensor::

    backward(tangent) = threshold_backward(tangent, ...)     # what is compiled
    gradients: slice of output 0, slice of output 0          # two `Source`s
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, final

import torch
from torch.fx import Graph, Node

from weft.aot.global_state import Boxed
from weft.aot.graph import memory_owner
from weft.aot.training.backward_stages import Stages
from weft.graph_call import GraphCall
from weft.storable import storable

aten = torch.ops.aten


@storable
@final
@dataclass(frozen=True, slots=True)
class Source:
    """Where a gradient comes from: a tangent (by the number of the input) or an output of the
    graph, or a piece of it (of `torch.cat`'s gradient, as in eager)."""

    kind: str  # "tangent" or "output"
    number: int
    piece: tuple[Any, Sequence[Any]] | None = None  # a view and its further arguments

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The gradient, given the tangent or output."""
        if self.piece is None:
            return tensor
        view, args = self.piece
        gradient: torch.Tensor = view(tensor, *args)
        return gradient


def gradient_sources(
    graph: Graph, tangents: list[Node], stages: Stages
) -> list[Source | None]:
    """The source of each gradient; the graph keeps only outputs that it computes."""
    node = graph.output_node()
    n_placeholders = sum(n.op == "placeholder" for n in graph.nodes)
    first = n_placeholders - len(tangents)
    outputs: dict[Node, int] = {}
    gradients: Any = node.args[0]
    shared = _shared(gradients, tangents, stages)
    sources: list[Source | None] = []
    for gradient in gradients:
        whole, piece = gradient, None
        if gradient in shared:
            whole, piece = gradient.args[0], (gradient.target, gradient.args[1:])
        if not isinstance(whole, Node):
            sources.append(None)
        elif whole in tangents:
            sources.append(Source("tangent", first + tangents.index(whole), piece))
        else:
            sources.append(Source("output", outputs.setdefault(whole, len(outputs)), piece))
    node.args = (tuple(outputs),)
    return sources


def _shared(gradients: Sequence[Any], tangents: list[Node], stages: Stages) -> set[Node]:
    """The gradients that may be pieces of one tensor: no two overlap, and one stage has them."""
    stage_of = {k: number for number, stage in enumerate(stages) for k in stage}
    shared: set[Node] = set()
    for whole, places in _pieces(gradients).items():
        pieces = [gradients[k] for k in places]
        owned = whole in tangents or (whole.op != "placeholder" and memory_owner(whole) is whole)
        alone = whole not in gradients and len({stage_of.get(k) for k in places}) == 1
        if owned and alone and _are_apart(pieces):
            shared.update(pieces)
    return shared


def _pieces(gradients: Sequence[object]) -> dict[Node, list[int]]:
    """The gradients (by position) that are pieces of some value along one dimension."""
    places: dict[Node, list[int]] = defaultdict(list)
    for k, gradient in enumerate(gradients):
        if isinstance(gradient, Node) and gradient.target in _PIECES and not gradient.kwargs:
            whole: Any = gradient.args[0]
            if all(type(n) is int for n in (*gradient.args[1:], *whole.meta["val"].shape)):
                places[whole].append(k)
    return places


_PIECES: Final[dict[Any, Callable[..., range]]] = {
    aten.slice.Tensor: lambda size, start=0, end=None, step=1: range(size)[start:end:step],
    aten.select.int: lambda size, at: range(size)[at : at + 1 or None],
}
"""Views of a part of one dimension: the places that they show."""


def _are_apart(pieces: Sequence[Node]) -> bool:
    """Whether no element is in two pieces of a value, which are all cut along one dimension."""
    parts: list[range] = []
    dims: set[int] = set()
    for piece in pieces:
        arguments: Any = piece.args
        whole, (dim, *numbers) = arguments[0], arguments[1:] or (0,)
        shape = whole.meta["val"].shape
        dims.add(dim % len(shape))
        parts.append(_PIECES[piece.target](shape[dim], *numbers))
    parts.sort(key=lambda part: part.start)
    return len(dims) == 1 and all(a.stop <= b.start for a, b in pairwise(parts))


def stages_of_outputs(sources: list[Source | None], stages: Stages) -> Stages:
    """The outputs of each stage; () if there is one stage, or if two have the same output."""
    outputs = tuple(
        tuple(dict.fromkeys(s.number for k in stage if (s := sources[k]) and s.kind == "output"))
        for stage in stages
    )
    numbers = [number for stage in outputs for number in stage]
    several = sum(map(bool, outputs)) > 1
    return outputs if several and len(set(numbers)) == len(numbers) else ()


@storable
def with_sources(backward: GraphCall, sources: list[Source | None], stages: Stages) -> Boxed:
    """`backward` with all gradients at their places."""
    tangents = {s.number for s in sources if s is not None and s.kind == "tangent"}
    run = backward.call
    if backward.in_stages:
        return _staged(run, sources, tangents, stages)
    if sources == [Source("output", i) for i in range(len(sources))]:
        return run

    def call(inputs: Sequence[object]) -> list[Any]:
        kept = {i: inputs[i] for i in tangents}
        return _at_places(sources, kept, run(inputs))

    return call


def _at_places(
    sources: Sequence[Source | None], tangents: Mapping[int, Any],
    outputs: Mapping[int, Any] | Sequence[Any],
) -> list[object]:
    """Gradients from their sources, given the values of tangents and outputs by number."""
    return [
        None if s is None else s.of((tangents if s.kind == "tangent" else outputs)[s.number])
        for s in sources
    ]


@storable
def _staged(
    backward: Boxed, sources: list[Source | None], tangents: set[int], stages: Stages
) -> Boxed:
    """`backward`, which yields its outputs with their numbers as they are computed, with gradients
    at their places."""

    def call(inputs: list[Any]) -> Any:
        kept = {i: inputs[i] for i in tangents}
        outputs: Any = backward(inputs)
        for stage in stages:  # no name holds its outputs while this generator waits
            yield _at_places([sources[k] for k in stage], kept, dict(next(outputs)))

    return call
