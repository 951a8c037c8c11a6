"""A compiled backward that returns gradients as they are computed, through several autograd nodes.

Place in the pipeline: `compile.py` asks for the stages of a backward graph; `autograd_function.py`
links the nodes. An autograd node returns all its gradients at once. With one node for a model, all
new gradients are alive together, in addition to those that they are added to (accumulation over
batches), or that an optimizer in a hook would have used up; eager has one at a time. And DDP could
send none before all are computed. Where that matters, the gradients of later stages belong to nodes
of their own, which autograd runs next::

    values -- CompiledFunction --+-- AccumulateGrad (gradients of the first stage)
                                 +-- Later --+-- AccumulateGrad (of the second)
                                             +-- Later -- ...

All nodes take their gradients from one generator: the compiled backward, which pauses between
stages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, Final, final

import torch
from torch.fx import Graph, Node

from weft.aot.global_state import no_autocast
from weft.aot.training.memory_budget import numel
from weft.shapes.graph_nodes import results_of

Stages = tuple[tuple[int, ...], ...]
"""Positions of gradients, stage by stage."""
Gradients = Sequence[torch.Tensor | None]

_PARTS: Final = 16
_LEAST: Final = {"cpu": 1 << 19}
_LEAST_ELSEWHERE: Final = 1 << 24
"""The least bytes of a stage, and its least share of all gradients, because each stage costs some
microseconds. (Otherwise it has about as many bytes as the largest gradient.)"""
_SMALL: Final = 64
"""Gradients smaller than this part of a stage come last: the kernels that sum them up run late."""


def stages_of(graph: Graph, kept: Sequence[bool]) -> Stages:
    """The stages in which a backward graph returns its gradients.

    `kept`: which of them are stored in leaves; others are freed soon.
    """
    gradients: Sequence[Any] = results_of(graph)
    place = {node: i for i, node in enumerate(graph.nodes)}
    order = sorted(range(len(gradients)), key=lambda k: place.get(gradients[k], -1))
    size = [_bytes(g) if is_kept else 0 for g, is_kept in zip(gradients, kept, strict=True)]
    devices = {g.meta["val"].device.type for g in gradients if isinstance(g, Node)}
    least = max(_LEAST.get(d, _LEAST_ELSEWHERE) for d in devices or {"cpu"})
    most = max(*size, sum(size) // _PARTS, least)
    stages: list[list[int]] = [[]]
    held = 0
    for k in order:
        if size[k] * _SMALL >= most:
            held += size[k]
            if stages[-1] and held > most:
                stages.append([])
                held = size[k]
            stages[-1].append(k)
    stages[-1] += [k for k in order if size[k] * _SMALL < most]
    return tuple(map(tuple, stages))


def _bytes(gradient: object) -> int:
    if not isinstance(gradient, Node):
        return 0
    value = gradient.meta["val"]
    return numel(value) * int(value.element_size())


@final
class Pieces:
    """The gradients of one backward, stage by stage."""

    __slots__ = ("_gradients",)

    def __init__(self) -> None:
        self._gradients: Iterator[Gradients] = iter(())

    def begin(self, gradients: Iterator[Gradients]) -> None:
        """Start another backward."""
        self._gradients = gradients

    def next(self) -> Gradients:
        """The gradients of the next stage."""
        with no_autocast():
            return next(self._gradients)


def linked_call(
    first: Callable[..., Any], stages: Sequence[Sequence[int]], inputs: list[Any]
) -> Sequence[object]:
    """Call `first(inputs, pieces, *own inputs, link)`, with a node for each later stage behind it.

    `stages`: the positions of the inputs whose gradients each stage has.
    """
    pieces = Pieces()
    link: tuple[torch.Tensor, ...] = ()
    for own in reversed(stages[1:]):
        link = (_later(pieces, bool(link), *[inputs[i] for i in own], *link),)
    values: Sequence[Any] = first(inputs, pieces, *[inputs[i] for i in stages[0]], *link)
    return values


def is_linked(ctx: object) -> bool:
    """Whether an autograd node is the first of linked ones."""
    return hasattr(ctx, "pieces")


def nodes_of(following: Sequence[Any], stages: Stages) -> list[object]:
    """The nodes behind those that `linked_call` made, for each gradient.

    `following`: the first one's `next_functions`.
    """
    edges: list[Any] = [(None, 0)] * sum(map(len, stages))
    for stage in stages:
        for k, edge in zip(stage, following, strict=False):
            edges[k] = edge
        if len(following) > len(stage):
            following = following[-1][0].next_functions
    return edges


def in_stages(stages: Stages, gradients: Gradients) -> Iterator[Gradients]:
    """Split gradients that were computed together into stages."""
    for stage in stages:
        yield [gradients[k] for k in stage]


def join_stages(stages: Stages, pieces: Iterator[Gradients]) -> Gradients:
    """All gradients, in order."""
    gradients: list[torch.Tensor | None] = [None] * sum(map(len, stages))
    for stage, piece in zip(stages, pieces, strict=True):
        for k, gradient in zip(stage, piece, strict=True):
            gradients[k] = gradient
    return gradients


@cache
def link_tensor(device: torch.device) -> torch.Tensor:
    """The empty tensor that links the nodes; its device decides the thread that runs them."""
    return torch.empty(0, device=device)


class _Later(torch.autograd.Function):
    """The node of a later stage."""

    @staticmethod
    def forward(
        ctx: Any, pieces: Pieces, goes_on: bool, *inputs: torch.Tensor
    ) -> torch.Tensor:
        ctx.pieces = pieces
        ctx.set_materialize_grads(False)
        link = link_tensor(inputs[-1].device)
        ctx.link = link if goes_on else None
        return link.clone()

    @staticmethod
    def backward(ctx: Any, *grads: object) -> Any:
        return (None, None, *ctx.pieces.next(), ctx.link)


_later: Final[Callable[..., torch.Tensor]] = super(torch.autograd.Function, _Later).apply
