"""Gradients of gradients: the captured graph runs again through autograd, with `create_graph=True`.

Place in the pipeline: called by the compiled function's backward if it must be differentiable::

    double = DoubleBackward(gm, traced, gradient_inputs, inner, stale)
    double(inputs, {0: tangent}, None, None, None)   # one gradient (or None) per gradient input
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import cached_property
from typing import Any, final

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from weft._torch import tree_flatten
from weft.aot.autograd_function import DoubleBackwardError
from weft.aot.backwards import Indices
from weft.aot.global_state import AutocastState, RandomState
from weft.aot.trace import Traced


@final
class DoubleBackward:
    """Runs the captured graph again and differentiates it."""

    def __init__(self, gm: GraphModule, traced: Traced, gradient_inputs: Sequence[int],
                 inner: Sequence[int], stale: set[int]) -> None:
        self.gm = gm
        self.mutated = traced.mutated
        self.n_inputs = traced.n_inputs
        self.gradient_inputs = gradient_inputs
        self.inner = inner  # results that others depend on
        self.stale = stale  # overwritten inputs whose old value the outputs need
        self.autocast = AutocastState.current()
        self.position = _positions(traced)

    def __call__(
        self, inputs: list[Any], tangents: dict[int, torch.Tensor], random: RandomState | None,
        wanted: Indices | None, is_cut: bool,
    ) -> list[torch.Tensor | None]:
        """The `wanted` gradients (None: all), differentiable if gradients are enabled.

        `is_cut`: gradients end at inner results, and those of the inner results follow.
        """
        create_graph = torch.is_grad_enabled()
        count = len(self.gradient_inputs) + len(self.inner) * is_cut
        chosen = [k for k in range(count) if wanted is None or k in wanted]
        gradients: list[torch.Tensor | None] = [None] * count
        if not tangents or not chosen:
            return gradients
        self._check(tangents)
        replay = nullcontext() if random is None else random.replayed()
        with torch.enable_grad(), replay:
            given = list(inputs)
            for i in self.mutated:
                given[i] = given[i].clone()
            flat, cuts = self._run(given[: self.n_inputs], is_cut)
            values = [self._value(flat, k, tangent) for k, tangent in tangents.items()]
            ends = [inputs[i] for i in self.gradient_inputs]
            ends += [cuts.tensors[k] for k in self.inner] if is_cut else []
            with cuts:
                found = torch.autograd.grad(
                    values, [ends[k] for k in chosen], list(tangents.values()),
                    create_graph=create_graph, allow_unused=True,
                )
        for k, gradient in zip(chosen, found, strict=True):
            gradients[k] = gradient
        return gradients

    def _run(self, inputs: list[Any], is_cut: bool) -> tuple[list[Any], Cuts]:
        """The results of the captured graph, and its cuts at inner ones."""
        cuts = Cuts()
        with self.autocast:
            result = self.cut_graph(cuts, *inputs) if is_cut else self.gm.forward(*inputs)
        return tree_flatten(result)[0], cuts

    @cached_property
    def cut_graph(self) -> GraphModule:
        """The captured graph with a cut behind each inner result."""
        results = tree_flatten(self.gm.graph.output_node().args[0])[0]
        at = {results[self.position[k][0]]: k for k in self.inner}
        last = {_last_write(node): node for node in at}
        graph = Graph()
        cuts, env, uncut = graph.placeholder("cuts"), dict[Node, Node](), dict[Node, Node]()
        for node in self.gm.graph.nodes:
            if node.op == "output":
                graph.output(map_arg(node.args[0], lambda n: uncut.get(n) or env[n]))
                continue
            env[node] = graph.node_copy(node, env.__getitem__)
            if result := last.get(node):
                uncut[result] = env[result]
                env[result] = graph.call_function(Cuts.add, (cuts, at[result], env[result]))
        return GraphModule(self.gm, graph)

    def _check(self, tangents: dict[int, torch.Tensor]) -> None:
        """Refuse inputs with which the graph would not repeat the forward's computation."""
        if self.stale:
            raise _refused("an input that the compiled graph overwrote")
        if any(k not in self.position for k in tangents):
            raise _refused("outputs that share memory")

    def _value(self, flat: list[Any], k: int, tangent: torch.Tensor) -> torch.Tensor:
        """Value `k` of the forward: an output, or what an output is a view of."""
        position, is_view = self.position[k]
        found = flat[position]._base if is_view else flat[position]
        if found is None or found.size() != tangent.size():
            raise _refused("outputs that share memory")
        return found  # type: ignore[no-any-return]


@final
class Cuts:
    """Copies of tensors at which gradients end within a block. Gradients of gradients, taken after
    it, do not end there."""

    def __init__(self) -> None:
        self.tensors: dict[int, torch.Tensor] = {}
        self.is_active = False

    def add(self, key: int, tensor: torch.Tensor) -> torch.Tensor:
        """A cut behind `tensor`."""
        made: torch.Tensor = _Cut.apply(self, tensor)  # type: ignore[no-untyped-call]
        self.tensors[key] = made
        return made

    def __enter__(self) -> None:
        self.is_active = True

    def __exit__(self, *error: object) -> None:
        self.is_active = False


class _Cut(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, cuts: Cuts, tensor: torch.Tensor) -> torch.Tensor:
        ctx.cuts = cuts
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *tangents: Any) -> Any:
        return None, None if ctx.cuts.is_active else tangents[0]


def _last_write(node: Node) -> Node:
    """The last operator that writes to the result of a node, or the node itself."""
    writes = [n for n in node.graph.nodes if n in node.users and "effect" in n.meta]
    return writes[-1] if writes else node


def _refused(reason: str) -> DoubleBackwardError:
    return DoubleBackwardError(
        f"create_graph=True through this compiled graph would need {reason}",
        do="exclude the function that needs gradients of gradients with weft.disable",
    )


def _positions(traced: Traced) -> dict[int, tuple[int, bool]]:
    """For each value of the forward, the output of the captured graph that is that value, or (True)
    a view of it."""
    found: dict[int, tuple[int, bool]] = {}
    for position, spec in enumerate(traced.outputs):
        if spec.kind == "value" and not spec.steps:
            found[spec.index] = position, False
        elif spec.kind == "value" and not spec.detached:
            found.setdefault(spec.index, (position, True))
    return found
