"""What runs a graph, and how it takes its inputs.

Place in the pipeline: what backends give (contract 3), compilers of ATen graphs (contract 4), and
whatever wraps one. Generated code that runs at every call gets the `call` inside::

    run = GraphCall(call, boxed=True)
    run([x, w])
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, final

import torch

Packing: TypeAlias = Callable[[torch.Tensor], torch.Tensor]
"""Lays out a weight as a library wants it."""


@final
@dataclass(frozen=True, slots=True)
class GraphCall:
    """A callable that runs a graph."""

    call: Callable[..., Any]
    boxed: bool = False
    """It takes one list of inputs, which it may clear so that they die early."""
    restores: bool = False
    """If it raises, the graph's inputs hold what they held before."""
    in_stages: bool = False
    """It gives an iterator of (number, output) pairs for each of `GraphFacts.stages`."""
    weights: tuple[tuple[int, Packing], ...] = ()
    """Inputs that are only weights of oneDNN's calls, and how they are packed: a packed weight will
    do as well."""
    source: str = ""
    """The code of `call`, if that is generated."""

    def __call__(self, *inputs: object) -> object:
        return self.call(*inputs)

    def taking_inputs(self) -> Callable[..., object]:
        """The call by the inputs themselves."""
        return TakingInputs(self) if self.boxed else self.call

    def taking_list(self) -> Callable[[list[Any]], Any]:
        """The call by a list of the inputs."""
        call = self.call
        return call if self.boxed else lambda inputs: call(*inputs)


@final
@dataclass(frozen=True, slots=True)
class TakingInputs:
    """A boxed graph called by its inputs; who can pass a list, so that they die early, does."""

    boxed: GraphCall

    def __call__(self, *inputs: object) -> object:
        return self.boxed.call(list(inputs))


def graph_call(result: Callable[..., object]) -> GraphCall:
    """What a backend gave. Those of users say by an attribute `boxed` that they take a list."""
    if isinstance(result, GraphCall):
        return result
    if isinstance(result, TakingInputs):
        return result.boxed
    return GraphCall(result, boxed=bool(getattr(result, "boxed", False)))
