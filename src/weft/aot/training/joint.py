"""Joint graph for training: the backward is recorded after the forward, in one graph.

Place in the pipeline: after `trace`, if an output needs a gradient. The autograd graph that the
fake forward built is run on fake tangents, still inside the recorder. Its operators become part of
the same ATen graph, marked as `BACKWARD` and the source lines of the forward
operators::

    tracer, traced = trace(gm, inputs)
    joint = trace_backward(tracer, traced)
    joint.graph       # (inputs, lifted, tangents) -> (values..., gradients..., those of `inner`)
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, final

import torch
from torch.fx import Graph, Node

from weft._torch import (
    DisableAutocast,
    FakeTensor,
    current_autograd_node,
    engine_gradients,
    tree_flatten,
)
from weft.aot.autograd_graph import nodes_behind
from weft.aot.evaluate import Evaluator
from weft.aot.tracing.arrivals import mark_functions
from weft.aot.tracing.functionalize import Base
from weft.aot.tracing.trace import Traced, Tracer
from weft.aot.training.independent import Groups, independent_groups
from weft.aot.views import Unsupported
from weft.shapes.algebra.layout import dense_strides
from weft.shapes.fakes.wrappers import is_wrapper
from weft.shapes.graph_facts import BACKWARD, graph_facts, note
from weft.shapes.tensor_layouts import memory_order


@final
@dataclass(frozen=True, slots=True)
class JointGraph:
    """A graph of forward and backward, and the meaning of its outputs and extra inputs."""

    graph: Graph
    n_values: int  # outputs of the forward; gradients follow, then those of `inner`
    tangents: list[Node]  # placeholders, one per differentiable value, then those of views
    tangent_values: list[int]  # what each tangent belongs to: a value, or `~k` as in `inner`
    gradient_inputs: list[int]  # index of the input that each gradient belongs to
    unreached: frozenset[int]  # inputs that require gradients, but no value leads to them
    groups: Groups  # values whose backwards may run one after the other
    freeing: frozenset[int]  # values whose backward frees saved tensors in eager
    inner: list[int]
    """What the caller gets and values depend on: values, by index, or `~k` for output k, a view of
    a value or an input that the wrapper makes. (Tangents of views come with those of values.)"""

    @property
    def values(self) -> list[int]:
        """The differentiable values."""
        return [k for k in self.tangent_values if k >= 0]


def trace_backward(tracer: Tracer, traced: Traced) -> JointGraph | None:
    """Record the backward of `traced` and close its graph; None if nothing needs a gradient."""
    primals = {  # (an input that is no leaf got its gradient by a write)
        i: p for i, p in enumerate(tracer.primals)
        if p is not None and p.requires_grad and p.is_leaf
    }
    if not traced.differentiable:
        traced.runs_below_autograd = bool(primals) and torch.is_grad_enabled()
        traced.close()
        return None
    if not primals:
        raise Unsupported("a gradient of something that is made inside the graph")
    groups, freeing = independent_groups(traced.differentiable)
    viewed = _read_views(traced)
    visible = {**_visible(traced), **viewed}
    values = {**traced.differentiable, **viewed}
    placeholders, tangents = _add_tangents(tracer, traced, values)
    ends = [*primals.values(), *visible.values()]
    seen = _versions_seen(tracer)
    reached = _leaves_behind(values.values())
    gradients = run_backward(tracer, list(values.values()), ends, tangents)
    if any(version != seen.get(base, 0) for base, version in _versions_seen(tracer).items()):
        raise Unsupported("a backward that writes to tensors which the caller has")
    if any(is_wrapper(type(g)) for g in gradients):
        raise Unsupported("a gradient of a plain tensor that is a wrapped one")
    of_values = {k: tracer.recorder.node(g)
                 for k, g in zip(visible, gradients[len(primals) :], strict=True) if g is not None}
    inner = {k: node for k, node in of_values.items() if node not in placeholders}
    if graph_facts(tracer.gm).reaches_all:
        reached.update(map(id, primals.values()))
        gradients = [_zeros(p, tracer) if g is None else g
                     for p, g in zip(primals.values(), gradients, strict=False)]
    wanted = [(i, g) for i, g in zip(primals, gradients, strict=False) if g is not None]
    n_values = len(traced.values)
    traced.values += [tracer.recorder.node(g) for _, g in wanted]
    traced.values += inner.values()
    traced.close()
    return JointGraph(
        traced.graph, n_values, placeholders, list(values),
        [i for i, _ in wanted], frozenset(i for i, p in primals.items() if id(p) not in reached),
        groups, freeing, list(inner),
    )


def _leaves_behind(values: Iterable[torch.Tensor]) -> set[int]:
    """The ids of the leaves that the autograd graph of these values leads to."""
    behind = nodes_behind(x.grad_fn for x in values)
    return {id(getattr(node, "variable", None)) for node in behind}


def _versions_seen(tracer: Tracer) -> dict[Base, int]:
    """The storages that the caller has, and how often they were written."""
    results = tree_flatten(tracer.result)[0]
    tensors = [x for x in (*tracer.primals, *results) if isinstance(x, torch.Tensor)]
    bases = [tracer.tensors.alias(tracer.recorder.live(x)).base for x in tensors]
    return {base: base.version for base in bases}


def _visible(traced: Traced) -> dict[int, torch.Tensor]:
    """The differentiable values that the caller gets as they are, if there are several values."""
    unviewed = {spec.index for spec in traced.outputs
                if spec.kind == "value" and not (spec.steps or spec.detached)}
    several = len(traced.differentiable) > 1
    return {k: x for k, x in traced.differentiable.items() if several and k in unviewed}


def _read_views(traced: Traced) -> dict[int, torch.Tensor]:
    """The views made by the wrapper that differentiable values depend on, as `~output`."""
    if not traced.views:
        return {}
    reached = nodes_behind(x.grad_fn for x in traced.differentiable.values())
    return {
        ~k: x for k, x in traced.views.items()
        if x.grad_fn in reached and not (
            traced.outputs[k].kind == "input" and traced.outputs[k].index in traced.mutated)
    }


def _add_tangents(
    tracer: Tracer, traced: Traced, values: Mapping[int, torch.Tensor]
) -> tuple[list[Node], list[torch.Tensor]]:
    """A placeholder and a fake for each differentiable value, in its memory order, without gaps.

    `TangentLayout` brings the tangents of a call into that form.
    """
    tensors, evaluator = tracer.tensors, tracer.evaluator
    placeholders: list[Node] = []
    fakes: list[torch.Tensor] = []
    for k, live in values.items():
        shape: Any = live if k < 0 else traced.values[k].meta["val"]
        value = _dense(shape, evaluator)
        with tracer.at_inputs():
            node = tensors.placeholder(f"tangent_{k}" if k >= 0 else f"tangent_view_{~k}", value)
        note(node, BACKWARD)
        fake = evaluator.like(value)
        tensors.add_base(fake, node)
        tracer.last_placeholder = node
        placeholders.append(node)
        fakes.append(fake)
    return placeholders, fakes


def _dense(value: FakeTensor, evaluator: Evaluator) -> FakeTensor:
    """Metadata of a tensor like `value` that has no gaps and no overlap."""
    strides = dense_strides(value.size(), reversed(memory_order(value.stride()).order))
    return evaluator.exemplar(value.size(), strides, value.dtype, value.device)


def run_backward(
    tracer: Tracer, values: list[torch.Tensor], ends: list[torch.Tensor],
    tangents: list[torch.Tensor], keep_graph: bool = False,
) -> list[torch.Tensor | None]:
    """The recorded gradients of `ends`. Autocast is off, because programs leave it before the
    backward; and so is anomaly mode, which looks for NaN in gradients, as fakes have no data."""
    tracer.tensors.side = BACKWARD
    if len(values) > 1:
        mark_functions(nodes_behind(x.grad_fn for x in values))
    tracer.recorder.locate = _Locator(tracer)
    try:
        with DisableAutocast(), torch.autograd.set_detect_anomaly(False), tracer.recorder:
            gradients = engine_gradients(values, tangents, ends, keep_graph)
    except RuntimeError as error:  # eager would raise only when the backward runs
        raise Unsupported(f"the backward fails: {error}") from error
    return list(gradients)


def _zeros(primal: torch.Tensor, tracer: Tracer) -> torch.Tensor:
    """The gradient of a primal that the values do not depend on."""
    with torch.no_grad(), tracer.recorder:
        return torch.zeros_like(primal)


@final
class _Locator:
    """Gives backward operators the source lines of their forward operators.

    Autograd numbers its nodes in the order in which the forward makes them.
    """

    def __init__(self, tracer: Tracer) -> None:
        self.tensors = tracer.tensors
        self.numbers = [number for number, _ in tracer.sequence]
        self.stacks: list[Any] = [stack for _, stack in tracer.sequence]

    def __call__(self) -> None:
        node = current_autograd_node()
        if node is None:
            return
        at = bisect_left(self.numbers, node._sequence_nr() + 1)
        if at < len(self.stacks):
            self.tensors.stack = self.stacks[at]
