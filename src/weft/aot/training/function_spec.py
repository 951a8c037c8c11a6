"""What is known of a compiled forward and backward before any call.

Place in the pipeline: filled in by `compile.py`, read by `autograd_function.py` and by the forward
that `forward_code.py` writes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import torch

from weft.aot.global_state import Boxed, RandomState
from weft.aot.symbols import SymbolSource
from weft.aot.training.backwards import Indices
from weft.aot.training.cuts import Cuts
from weft.aot.training.forward_inputs import ForwardInputs
from weft.aot.training.independent import Groups
from weft.aot.training.input_gradients import InputGradients
from weft.aot.training.layers import Inner
from weft.aot.training.tangents import TangentLayout
from weft.shapes.graph_facts import LateReads
from weft.storable import storable


@storable
@final
@dataclass(frozen=True, slots=True)
class ForwardOutputs:
    """What a compiled forward returns: the graph's values, and behind them what is only saved."""

    n_values: int
    numbers: frozenset[int]  # values that are no tensors
    views: tuple[int, ...]  # values that a view operator computes
    saved: tuple[int, ...]  # what the backward takes, by index; -1: nothing, it is a part's
    symbols: tuple[SymbolSource, ...]  # sizes that the backward computes with


@storable
@final
@dataclass(frozen=True, slots=True)
class NodePlan:
    """The autograd nodes around a compiled graph (docs/architecture/training.md)."""

    inner: Inner = Inner()  # noqa: RUF009  frozen: values that others depend on, with nodes between
    groups: Groups = ()  # values with independent backwards; () if there is one group
    freeing: Indices = frozenset()  # values with one backward only, unless the graph is retained
    parts: tuple[FunctionSpec, ...] = ()  # a node for each group, if one for all reaches too much
    watched: int | None = None
    """A leaf input, if there are several stages: its `.grad` tells if gradients are added up, for
    which each stage has a node."""


@storable
@final
@dataclass(frozen=True, slots=True)
class FunctionSpec:
    """The description of a compiled forward and backward."""

    region: str  # how profiles name the graph; "" if there is no name
    forward: Boxed
    inputs: ForwardInputs
    outputs: ForwardOutputs
    layouts: dict[int, TangentLayout]  # of the differentiable values, by index
    gradients: InputGradients
    detached_inputs: tuple[int, ...]  # they require gradients and get none
    nodes: NodePlan
    random_devices: frozenset[torch.device]  # devices whose generators the forward uses
    late: tuple[LateReads, ...]  # what users' functions read in the backward
    differentiable: bool  # autograd can differentiate the backward itself
    droppable: tuple[int, ...]  # saved tensors that the forward could compute again
    redo: Callable[
        [list[Any], dict[int, torch.Tensor], RandomState | None, Indices | None,
         Cuts | None, dict[int, torch.Tensor]],
        list[torch.Tensor | None],
    ]

    @property
    def n_saved(self) -> int:
        """How many tensors the autograd node saves."""
        return len(self.inputs.saved) + len(self.outputs.saved)
