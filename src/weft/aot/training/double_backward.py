"""Gradients of gradients: the captured graph runs again through autograd, with `create_graph=True`.

Place in the pipeline: called by the compiled function's backward if it must be differentiable::

    double = DoubleBackward(gm, traced, gradient_inputs, inner, stale)
    double(inputs, {0: tangent}, None, None, None)   # one gradient (or None) per gradient input
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import cached_property
from typing import Any, Final, final

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from weft._torch import functorch, tree_flatten
from weft.aot.global_state import AutocastState, RandomState
from weft.aot.late_reads import as_in_forward, late_reads_of
from weft.aot.tracing.trace import Traced
from weft.aot.training.backwards import Indices, StoredGraph
from weft.aot.training.cuts import Cuts, views
from weft.aot.training.forward_inputs import DoubleBackwardError
from weft.aot.training.replaced_inputs import as_it_was
from weft.shapes.graph_facts import captured_facts
from weft.shapes.graph_nodes import results_of
from weft.storable import storable


@storable
@final
class DoubleBackward:
    """Runs the captured graph again and differentiates it."""

    def __init__(self, gm: GraphModule, traced: Traced, gradient_inputs: Sequence[int],
                 inner: Sequence[int], stale: set[int]) -> None:
        self.gm: GraphModule | StoredGraph = gm
        self.mutated = traced.mutated
        self.n_inputs = traced.n_inputs
        self.gradient_inputs = gradient_inputs
        self.inner = inner  # results that others depend on
        self.stale = stale  # overwritten inputs whose old value the outputs need
        self.autocast = AutocastState.current()
        self.position = _positions(traced)
        self.late = late_reads_of(gm)

    def __call__(
        self, inputs: list[Any], tangents: dict[int, torch.Tensor], random: RandomState | None,
        wanted: Indices | None, cuts: Cuts | None, replaced: dict[int, torch.Tensor],
    ) -> list[torch.Tensor | None]:
        """The `wanted` gradients (None: all), differentiable if gradients are enabled.

        `cuts`: gradients end at inner results, and those of the inner results follow. `replaced`:
        what inputs were in the forward that have other memory now.
        """
        create_graph = torch.is_grad_enabled()
        count = len(self.gradient_inputs) + (0 if cuts is None else len(self.inner))
        chosen = [k for k in range(count) if wanted is None or k in wanted]
        gradients: list[torch.Tensor | None] = [None] * count
        if not tangents or not chosen:
            return gradients
        self._check(tangents)
        replay = nullcontext() if random is None else random.replayed()
        with torch.enable_grad(), replay:
            flat, ends = self._run(inputs, cuts, replaced)
            values = [self._value(flat, k, tangent) for k, tangent in tangents.items()]
            with nullcontext() if cuts is None else cuts:
                partials = torch.autograd.grad(
                    values, [ends[k] for k in chosen], list(tangents.values()),
                    create_graph=create_graph, allow_unused=True,
                )
        for k, gradient in zip(chosen, partials, strict=True):
            gradients[k] = gradient
        return gradients

    def _run(
        self, inputs: list[Any], cuts: Cuts | None, replaced: dict[int, torch.Tensor]
    ) -> tuple[list[object], Sequence[torch.Tensor]]:
        """The results of the captured graph, and what gradients are taken for."""
        if cuts is not None and cuts.run is not None:
            return cuts.run
        args = list(inputs)
        for i, old in replaced.items():
            args[i] = as_it_was(inputs[i], old)
        ends = (views if cuts is None else cuts.inputs)([args[i] for i in self.gradient_inputs])
        for i, x in zip(self.gradient_inputs, ends, strict=True):
            args[i] = x
        for i in self.mutated:
            args[i] = args[i].clone()
        args = args[: self.n_inputs]
        with self.autocast, as_in_forward(self.late):
            result = (self.gm.forward(*args) if cuts is None  # a call of a module is captured
                      else self.cut_graph.forward(cuts, *args))
        for i in replaced:  # what autograd saved of them is what they are now
            args[i].data = inputs[i].data
        if cuts is None:
            return tree_flatten(result)[0], ends
        cuts.run = tree_flatten(result)[0], [*ends, *(cuts.tensors[k] for k in self.inner)]
        return cuts.run

    @cached_property
    def cut_graph(self) -> GraphModule:
        """The captured graph with a cut behind each inner result, outside of transforms."""
        results = tree_flatten(results_of(self.gm.graph))[0]
        at = {results[~k if k < 0 else self.position[k][0]]: k for k in self.inner}
        last = {_last_write(node): node for node in at}
        waiting: list[Node] = []
        depth = 0
        graph = Graph()
        cuts, env, uncut = graph.placeholder("cuts"), dict[Node, Node](), dict[Node, Node]()
        for node in self.gm.graph.nodes:
            if node.op == "output":
                graph.output(map_arg(node.args[0], lambda n: uncut.get(n) or env[n]))
                continue
            env[node] = graph.node_copy(node, env.__getitem__)
            depth += _NESTING.get(node.target, 0)
            waiting += [last[node]] if node in last else []
            while waiting and not depth:
                result = waiting.pop()
                uncut[result] = env[result]
                env[result] = graph.call_function(Cuts.add, (cuts, at[result], env[result]))
        return GraphModule(self.gm if isinstance(self.gm, GraphModule) else self.gm.module, graph)

    def _check(self, tangents: dict[int, torch.Tensor]) -> None:
        """Refuse inputs with which the graph would not repeat the forward's computation."""
        if self.stale:
            raise _refused("an input that the compiled graph overwrote")
        if any(k not in self.position for k in tangents):
            raise _refused("outputs that share memory")

    def _value(self, flat: list[Any], k: int, tangent: torch.Tensor) -> torch.Tensor:
        """Value `k` of the forward: an output, or what an output is a view of."""
        position, is_view = self.position[k]
        value: torch.Tensor | None = flat[position]._base if is_view else flat[position]
        if value is None or value.size() != tangent.size():
            raise _refused("outputs that share memory")
        return value


_NESTING: Final[dict[Any, int]] = {
    getattr(functorch, f"_{transform}_{change}_nesting"): step
    for transform in ("grad", "jvp", "vmap")
    for change, step in (("increment", 1), ("decrement", -1))
}
"""What enters and leaves a transform of torch.func, where autograd functions need rules for it."""


def _last_write(node: Node) -> Node:
    """The last operator that writes to the result of a node, or the node itself."""
    writes = [n for n in node.graph.nodes if n in node.users and captured_facts(n).has_effect]
    return writes[-1] if writes else node


def _refused(reason: str) -> DoubleBackwardError:
    return DoubleBackwardError(
        f"create_graph=True through this compiled graph would need {reason}",
        do="exclude the function that needs gradients of gradients with weft.disable",
    )


def _positions(traced: Traced) -> dict[int, tuple[int, bool]]:
    """For each value of the forward, the output of the captured graph that is that value, or (True)
    a view of it."""
    positions: dict[int, tuple[int, bool]] = {}
    for position, spec in enumerate(traced.outputs):
        if spec.kind == "value" and not spec.steps:
            positions[spec.index] = position, False
        elif spec.kind == "value" and not spec.detached:
            positions.setdefault(spec.index, (position, True))
    return positions
