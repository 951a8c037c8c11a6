"""Results that other results depend on: autograd nodes between them, around one compiled graph.

Place in the pipeline: `compile.py` asks for the layers of a graph, the runtime wrapper adds them at
every call. The results of one autograd node are siblings, so that autograd would know of no way
from `loss` to `h`. Those that depend on others get a node of their own in front of it::

    h, loss = compiled(x)       loss -- Layer --+--> h --> CompiledFunction --> x
                                                +---------------^

A layer passes its tangents on, and the compiled backward computes all gradients at once. Only if
somebody may see the gradient of `h` on its way (a hook, `retain_grad`, `torch.autograd.grad` while
`h` exists), the layer computes what its results contribute to it, and the compiled function the
rest: both by the same backward graph, cut at the gradient of `h` (`cut_at`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final
from weakref import ref

import torch
from torch.fx import Graph, Node

from weft._torch import (
    are_functorch_transforms_active,
    current_graph_task,
    is_executed,
    on_register_hook,
    set_versions,
    when_backward_ends,
)
from weft.aot.tracing.arrivals import reached
from weft.aot.training.absent_tangents import remove_tangents
from weft.aot.training.backwards import Indices, tangent_nodes
from weft.aot.training.cuts import Cuts
from weft.shapes.graph_nodes import copied_graph, results_of
from weft.storable import made_by, storable

Contributions = Callable[["Watch", "Layer", Sequence[Any]], Sequence[torch.Tensor | None]]
"""(watch, layer, tangents of its results) -> tangents, and gradients of the results they read."""
Enter = Callable[["Watch | None", tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]], None]
"""(watch, results of a layer, results they read): the first get the layer's autograd node."""


@storable
@final
@dataclass(frozen=True, slots=True)
class Layer:
    """Results that depend on others, and these (numbered as in `JointGraph.inner`)."""

    own: tuple[int, ...]
    reads: tuple[int, ...]


@storable
@final
@dataclass(frozen=True, slots=True)
class Inner:
    """The results of a graph that other results depend on; empty for most graphs.

    `results`: their gradients follow those of the inputs in the backward graph, in this order.
    `readers`: what depends on them directly. `top`: a result that depends on no other.
    """

    results: tuple[int, ...] = ()
    readers: tuple[Indices, ...] = ()
    layers: tuple[Layer, ...] = ()
    top: int = -1


def inner_results(
    graph: Graph, tangents: Sequence[int], results: Sequence[int], views: Mapping[int, int]
) -> Inner:
    """The layers of the results of a graph.

    `graph`: its backward, which returns the gradients of inner `results` last. `tangents`: the
    results whose tangents are its last placeholders. `views`: of which values results are views.
    """
    if not results:
        return Inner()
    readers = _readers(graph, tangents, results)
    level = dict.fromkeys(tangents, 0)
    for k in reversed(readers):  # what depends on others has its gradient before them
        level[k] = level[views.get(k, k)]
        for reader in readers[k]:
            level[reader] = max(level[reader], level[k] + 1)
    layers = []
    values = [k for k in tangents if k >= 0]
    for n in range(1, max(level[k] for k in values) + 1):
        own: dict[tuple[int, ...], list[int]] = {}  # a backward visits all that a layer reads
        for k in values:
            if level[k] == n:
                own.setdefault(tuple(r for r in results if k in readers[r]), []).append(k)
        layers += [Layer(tuple(several), read) for read, several in own.items()]
    top = min(values, key=level.__getitem__)
    return Inner(tuple(results), tuple(readers[k] for k in results), tuple(layers), top)


def _readers(graph: Graph, tangents: Sequence[int], results: Sequence[int]) -> dict[int, Indices]:
    """The values that directly depend on each inner result, in the order of their gradients."""
    at = dict(zip(_gradients(graph)[-len(results) :], results, strict=True))
    reach: dict[Node, Indices] = {
        n: frozenset((k,)) for k, n in tangent_nodes(graph, tangents).items()
    }
    none: Indices = frozenset()
    readers: dict[int, Indices] = {}
    for node in graph.nodes:
        if node.op == "call_function":
            reach[node] = none.union(*(reach.get(a, none) for a in node.all_input_nodes))
        if node in at:
            readers[at[node]] = frozenset(k for k in reach[node] if 0 <= k != at[node])
            reach[node] = frozenset((at[node],))
    return readers


def _gradients(graph: Graph) -> list[Any]:
    return list(results_of(graph))


def without_inner(graph: Graph, tangents: Sequence[int], results: Sequence[int]) -> Graph:
    """A backward graph that returns the gradients of inputs only, for tangents of values."""
    if not results and min(tangents) >= 0:
        return graph
    graph = copied_graph(graph)
    gradients = _gradients(graph)
    graph.output_node().args = (tuple(gradients[: len(gradients) - len(results)]),)
    remove_tangents(graph, [n for k, n in tangent_nodes(graph, tangents).items() if k < 0])
    return graph


def cut_at(graph: Graph, tangents: Sequence[int], results: Sequence[int]) -> Graph:
    """A backward graph in which the tangents of inner results are their whole gradients (with those
    of views of them), and which returns what other results contribute to these.

    `graph` returns the gradients of the inner `results` last; `tangents` as in `inner_results`::

        before:  h = add(t_h, mul(t_loss, w));  g = mul(h, x);    return g, h
        after:   h = mul(t_loss, w);            g = mul(t_h, x);  return g, h
    """
    graph = copied_graph(graph)
    tangent = tangent_nodes(graph, tangents)
    gradients = _gradients(graph)
    inner = dict(zip(gradients[-len(results) :], results, strict=True))
    output = graph.output_node()
    output.args = ((),)
    direct = []
    for gradient, k in inner.items():
        with graph.inserting_after(tangent[tangents[-1]]):
            direct.append(graph.placeholder(f"direct_{k}"))
        direct[-1].meta.update(tangent[k].meta)
        tangent[k].replace_all_uses_with(direct[-1])
        gradient.replace_all_uses_with(tangent[k])
    outer = gradients[: -len(results)]
    output.args = ((*(tangent[inner[g]] if g in inner else g for g in outer), *inner),)
    remove_tangents(graph, [*direct, *(n for k, n in tangent.items() if k < 0)])
    return graph


def splits_users_code(graph: Graph, tangents: Sequence[int], layers: Sequence[Layer]) -> bool:
    """Whether a user's function or hook gets its gradients from several layers.

    In a backward that is cut, it would run for the part of each layer, but eager runs it once, for
    the sum: which is not the same if it clips gradients, say. `graph`: as of `cut_at`.
    """
    layer_of = {k: n for n, layer in enumerate(layers) for k in layer.own}
    reach: dict[Node, Indices] = {
        node: frozenset((layer_of.get(k, -1),))
        for k, node in tangent_nodes(graph, tangents).items()
    }
    none: Indices = frozenset()
    for node in graph.nodes:
        if node.op == "call_function":
            reach[node] = none.union(*(reach.get(a, none) for a in node.all_input_nodes))
            if node.target is reached and len(reach[node]) > 1:
                return True
    return False


@final
class Watch:
    """Whether anybody may see the gradients of a call's inner results."""

    __slots__ = ("_cuts", "_decided", "_hooks", "_results", "gradients", "owner", "present")

    def __init__(self, owner: Any) -> None:
        self.owner = ref(owner)  # the compiled function's autograd node
        self._results: dict[int, tuple[ref[torch.Tensor], int]] = {}
        self._cuts: Cuts | None = None
        self._hooks: list[Any] = []
        self._decided = -1, False  # in which run of the engine
        self.present: Indices = frozenset()  # results whose tangents layers have used
        self.gradients: Sequence[torch.Tensor | None] = ()  # of inputs, as far as layers know

    def add(self, result: int, tensor: torch.Tensor) -> None:
        """Watch an inner result."""
        self._results[result] = ref(tensor), tensor._version

    def add_hooks(self, tensor: torch.Tensor) -> None:
        """The program registers a hook on a result."""
        if any(result() is tensor for result, _ in self._results.values()):
            self._hooks.append(tensor._backward_hooks)

    def decide(self, is_plain: Callable[[], bool]) -> bool:
        """Whether this backward gives the gradients of inner results.

        `is_plain`: whether it only accumulates gradients of leaves.
        """
        run = current_graph_task()
        if self._decided[0] != run:
            self._decided = run, self._is_seen(is_plain)
            self.present, self.gradients, self._cuts = frozenset(), (), None
        return self._decided[1]

    def _is_seen(self, is_plain: Callable[[], bool]) -> bool:
        if any(self._hooks):
            return True
        alive = [t for result, _ in self._results.values() if (t := result()) is not None]
        if any(tensor.retains_grad or tensor._backward_hooks for tensor in alive):
            return True
        if torch.is_grad_enabled():  # gradients may be differentiated with respect to them
            return bool(alive)
        return bool(alive) and not is_plain() and any(is_executed(t.grad_fn) for t in alive)

    def taken(self) -> Sequence[torch.Tensor | None]:
        """The gradients of inputs that layers have computed, once."""
        gradients, self.gradients = self.gradients, ()
        return gradients

    def cuts(self) -> Cuts:
        """The cuts for another run of the captured graph: one run serves a whole backward that is
        differentiated."""
        if not torch.is_grad_enabled():
            return Cuts({})
        if self._cuts is None:
            self._cuts = Cuts({
                k: t for k, (result, version) in self._results.items()
                if (t := result()) is not None and t._version == version
            })
            when_backward_ends(self._forget)
        return self._cuts

    def _forget(self) -> None:
        """The results hold this object by their autograd nodes."""
        self._cuts, self.gradients = None, ()

    def has_cut(self) -> bool:
        """Whether a layer has decided so in this backward."""
        return self._decided == (current_graph_task(), True)


def note_hook(ctx: object, tensor: torch.Tensor) -> None:
    """The program registers a hook on a result of a compiled function or a layer."""
    watch: Watch | None = getattr(ctx, "watch", None)
    if watch is not None:
        watch.add_hooks(tensor)


def is_cut_now(ctx: object, is_plain: Callable[[], bool]) -> bool:
    """Whether this backward through a compiled function ends at inner results."""
    watch: Watch | None = getattr(ctx, "watch", None)
    if watch is None:
        return False
    return watch.decide(is_plain) if torch.is_grad_enabled() else watch.has_cut()


def watched(value: torch.Tensor) -> Watch | None:
    """The watch of a call, one of whose values this is; None within transforms of torch.func."""
    if are_functorch_transforms_active():
        return None
    owner: Any = value.grad_fn
    watch = owner.watch = Watch(owner)
    return watch


def watch_results(
    watch: Watch | None, results: Sequence[int], tensors: Sequence[torch.Tensor]
) -> None:
    """Watch inner results, when they have their nodes."""
    if watch is not None:
        for k, tensor in zip(results, tensors, strict=True):
            watch.add(k, tensor)


@final
@dataclass(frozen=True, slots=True)
class Layers:
    """What the runtime wrapper calls to give values that depend on other results their nodes."""

    inner: Inner
    steps: Sequence[tuple[Layer, Enter]]


def layering(inner: Inner, contributions: Contributions) -> Layers:
    """The layers' nodes of a call, one after the other."""
    return Layers(inner, [(layer, _entering(layer, contributions)) for layer in inner.layers])


def _entering(layer: Layer, contributions: Contributions) -> Enter:
    apply = _function(layer, contributions)

    def enter(
        watch: Watch | None, own: tuple[torch.Tensor, ...], read: tuple[torch.Tensor, ...]
    ) -> None:
        if watch is None:
            return
        versions = tuple([tensor._version for tensor in own])
        apply(watch, *own, *read)
        set_versions(own, versions)  # `mark_dirty` counted a write

    return made_by(enter, _entering, layer, contributions)


def _function(layer: Layer, contributions: Contributions) -> Callable[..., Any]:
    """(watch, own results, read results) gives the own results the autograd node of a layer."""
    n_own = len(layer.own)

    class _Layer(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, watch: Watch, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
            ctx.watch = watch
            ctx.set_materialize_grads(False)
            own = values[:n_own]
            ctx.mark_dirty(*own)  # they get this node, and remain the same tensors
            return own

        @staticmethod
        def backward(ctx: Any, *tangents: Any) -> Any:
            return (None, *contributions(ctx.watch, layer, tangents))

    on_register_hook(_Layer, note_hook)
    return super(torch.autograd.Function, _Layer).apply
