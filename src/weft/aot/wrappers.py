"""Graphs with tensors made of tensors: the same graph on their parts.

Place in the pipeline: before tracing. Inputs and outputs that are wrappers
(`shapes/fakes/wrappers.py`) are replaced by their parts. In between, the recorder leaves operations
on wrappers to their class, and records what it does with the parts::

    graph(w: Scaled, x)           graph(w_0, w_1, x)
                                      w = joined(w_0, w_1)
        y = x @ w                     y = x @ w             # Scaled.__torch_dispatch__
        return y, w                   return y, w.data_, w.scale
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, final

import torch
from torch.fx import Graph, GraphModule, Node

from weft._torch import apply_function, tree_flatten
from weft.aot.tracing.trace import Tracer
from weft.aot.training.joint import run_backward
from weft.aot.views import Unsupported
from weft.aot.wrapper_gradients import Plan, Unwrapped, Wrapped, carries, in_form
from weft.graph_call import GraphCall
from weft.shapes.fakes.wrappers import Structure, detached, is_wrapper, leaves, parts, rebuilt
from weft.shapes.graph_facts import CapturedFacts, graph_facts, note, note_graph
from weft.shapes.graph_nodes import results_of

Call = Callable[..., Any]
Plans = Mapping[int, Plan]
"""Of those inputs, by index, that are wrappers whose gradients the graph gives."""


@final
class Joined:
    """Makes a wrapper as the plan says from its parts (and what carries its gradient).

    `role`: what it is to autograd, "constant", "leaf", or "result" (of its parts).
    """

    __name__ = "joined"

    def __init__(self, plan: Plan, role: str) -> None:
        self.plan, self.role = plan, role

    def __call__(self, *pieces: torch.Tensor) -> object:
        if self.role == "result":
            return apply_function(Wrapped, self.plan, *pieces)
        wrapper = self.plan.join(pieces)
        return wrapper.requires_grad_() if self.role == "leaf" else wrapper


@final
class Divided:
    """Gives the leaves of a wrapper that has a gradient (and what carries that)."""

    __name__ = "divided"

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    def __call__(self, wrapper: torch.Tensor) -> object:
        return apply_function(Unwrapped, (self.plan,), wrapper)


def _is_wrapped(value: object) -> bool:
    return isinstance(value, torch.Tensor) and is_wrapper(type(value))


def _plain_plan(value: torch.Tensor) -> Plan:
    return Plan(detached(value))


def _values(gm: GraphModule) -> tuple[list[Any], list[Any]]:
    """The example values of the graph's inputs and outputs."""
    inputs = [n.meta.get("example_value") for n in _graph_inputs(gm)]
    return inputs, [n.meta.get("example_value") if isinstance(n, Node) else n
                    for n in _results(gm)]


def has_wrappers(gm: GraphModule) -> bool:
    """Whether an input or output is a wrapper."""
    inputs, outputs = _values(gm)
    return any(map(_is_wrapped, (*inputs, *outputs)))


def has_symbolic_wrappers(gm: GraphModule) -> bool:
    """Whether there are symbolic sizes in wrappers (but of nested tensors, which have the sizes of
    their parts): classes expect numbers."""
    inputs, outputs = _values(gm)
    return any(
        not w.is_nested and any(type(n) is not int for n in (*w.size(), *w.stride()))
        for w in (*inputs, *outputs) if _is_wrapped(w)
    )


# -- the gradients of inputs -----------------------------------------------------------------------


def gradient_plans(gm: GraphModule, examples: Sequence[object]) -> Plans:
    """How the gradients of wrappers among the inputs are made: forward and backward run once on
    fakes to see it. Raises Unsupported for a form that cannot be told in advance."""
    inputs, outputs = _values(gm)
    wrapped = [i for i, value in enumerate(inputs) if _is_wrapped(value) and value.requires_grad]
    differentiable = any(isinstance(v, torch.Tensor) and v.requires_grad for v in outputs)
    if not (differentiable and torch.is_grad_enabled()):
        return {}
    if any(_is_wrapped(v) and v.requires_grad and not _takes_tangents(v) for v in outputs):
        raise Unsupported("wrapped tensors whose class does not bring tangents into their form")
    if not wrapped:
        return {}
    tracer = _traced(gm, examples, wrapped)
    results, wrappers = tracer.result
    gradients = _gradients(tracer, tree_flatten(results)[0], wrappers)
    return {i: Plan(detached(wrapper), gradient, _sources(tracer, wrapper, gradient))
            for i, wrapper, gradient in zip(wrapped, wrappers, gradients, strict=True)
            if gradient is not None}


def _traced(gm: GraphModule, examples: Sequence[object], wrapped: Sequence[int]) -> Tracer:
    """A run of the forward on fakes, whose result is the graph's and these wrappers among its
    inputs, as leaves."""
    graph, env = _on_parts(gm, {})
    inputs = _graph_inputs(gm)
    graph.output(([env.get(r, r) for r in _results(gm)], [env[inputs[i]] for i in wrapped]))
    tracer = Tracer(_module(gm, graph), InputParts(gm, {})(examples))
    tracer.add_inputs()
    tracer.add_state()
    tracer.run()
    if any(p is not None and tracer.tensors.alias(p).base.version for p in tracer.primals):
        raise Unsupported("a graph of wrapped tensors with gradients writes its inputs")
    return tracer


def _takes_tangents(result: torch.Tensor) -> bool:
    """Whether a tangent of the result can be brought into the result's form. A class says so by the
    method that torch.compile calls for it; tangents of nested tensors are nested anyway."""
    return result.is_nested or hasattr(result, "__coerce_same_metadata_as_tangent__")


def _gradients(tracer: Tracer, results: Sequence[object], wrappers: list[Any]) -> Sequence[Any]:
    """The gradients of the wrappers, for tangents like the results."""
    values = [x for x in results if isinstance(x, torch.Tensor) and x.requires_grad]
    with torch.no_grad(), tracer.recorder:
        tangents = [rebuilt(x.detach(), _tangent) for x in values]
    each = [run_backward(tracer, [value], wrappers, [tangent], keep_graph=True)
            for value, tangent in zip(values, tangents, strict=True) if len(values) > 1]
    gradients = run_backward(tracer, values, wrappers, tangents)
    _require_one_form(tracer, each, gradients)
    return gradients


def _tangent(leaf: torch.Tensor) -> torch.Tensor:
    return torch.zeros_like(leaf) if carries(leaf) else leaf


def _require_one_form(
    tracer: Tracer, each: Sequence[Sequence[Any]], gradients: Sequence[Any]
) -> None:
    """Check that the gradients of single results can be brought into the form of their sum."""
    try:
        with torch.no_grad(), tracer.recorder:
            for own in each:
                for part, gradient in zip(own, gradients, strict=True):
                    if part is not None:
                        in_form(part, gradient)
    except RuntimeError as error:
        raise Unsupported("wrapped tensors whose gradients change their form") from error


def _sources(tracer: Tracer, wrapper: object, gradient: object) -> tuple[int | None, ...]:
    """For each leaf of the gradient: None if it carries the gradient, or the leaf of the wrapper
    that it is (the offsets of a nested tensor)."""
    known = [tracer.recorder.node(leaf) for leaf in leaves(wrapper)]
    try:
        return tuple(None if carries(leaf) else known.index(tracer.recorder.node(leaf))
                     for leaf in leaves(gradient))
    except ValueError:
        raise Unsupported("a gradient of a wrapped tensor with other integers in it") from None


# -- the graph on parts ----------------------------------------------------------------------------


def unwrapped_graph(gm: GraphModule, plans: Plans) -> GraphModule:
    """The graph with parts as inputs and outputs."""
    graph, env = _on_parts(gm, plans)
    graph.output(tuple(piece for result in _results(gm) for piece in _pieces(
        graph, env.get(result, result), result)))
    module = _module(gm, graph)
    note_graph(module, replace(graph_facts(module), is_on_parts=True))
    return module


def _module(gm: GraphModule, graph: Graph) -> GraphModule:
    module = GraphModule(gm, graph)
    module.meta.update(gm.meta)
    return module


def _graph_inputs(gm: GraphModule) -> list[Node]:
    """The graph's placeholders."""
    return [node for node in gm.graph.nodes if node.op == "placeholder"]


def _results(gm: GraphModule) -> Sequence[Any]:
    """What the graph returns, nodes or constants."""
    results = results_of(gm.graph)
    return results if isinstance(results, (tuple, list)) else ()


def _on_parts(gm: GraphModule, plans: Plans) -> tuple[Graph, dict[Node, Node]]:
    """The graph on parts, without its results, and its nodes for those of `gm`."""
    graph, env = Graph(), dict[Node, Node]()
    planned = {node: plans.get(i) for i, node in enumerate(_graph_inputs(gm))}
    for node in gm.graph.nodes:
        value = node.meta.get("example_value")
        if node in planned and _is_wrapped(value):
            plan = planned[node]
            pieces = _inputs(graph, node.name, leaves(value), plan)
            role = "result" if plan else "leaf" if value.requires_grad else "constant"
            joined = Joined(plan or _plain_plan(value), role)
            env[node] = graph.call_function(joined, tuple(pieces))
            env[node].meta = dict(node.meta)
        elif node.op != "output":
            env[node] = graph.node_copy(node, env.__getitem__)
    return graph, env


def _inputs(graph: Graph, name: str, values: list[torch.Tensor], plan: Plan | None) -> list[Node]:
    """Placeholders of a wrapper's leaves, and of what carries its gradient."""
    carriers = [] if plan is None else [c.requires_grad_() for c in plan.carriers(values)]
    nodes = []
    for i, leaf in enumerate((*values, *carriers)):
        node = graph.placeholder(f"{name}_{i}")
        node.meta["example_value"] = leaf
        if i >= len(values):
            note(node, CapturedFacts(is_carrier=True))
        nodes.append(node)
    return nodes


def _pieces(graph: Graph, node: Any, was: object) -> Iterator[Any]:
    """The parts of a result, as nodes."""
    value: Any = was.meta.get("example_value") if isinstance(was, Node) else None
    if not (_is_wrapped(value) and value.requires_grad):
        yield from _parts_of(graph, node, value)
        return
    divided = graph.call_function(Divided(_plain_plan(value)), (node,))
    divided.meta = {**node.meta, "example_value": None}
    for i, leaf in enumerate(leaves(value)):
        part = graph.call_function(operator.getitem, (divided, i))
        part.meta = {**node.meta, "example_value": leaf}
        yield part


def _parts_of(graph: Graph, node: Node, value: object) -> Iterator[Node]:
    if not _is_wrapped(value):
        yield node
        return
    for name in parts(value)[0]:
        inner = getattr(value, name)
        if not isinstance(inner, torch.Tensor):
            continue
        part = graph.call_function(getattr, (node, name))
        part.meta = {**node.meta, "example_value": inner}
        yield from _parts_of(graph, part, inner)


# -- at run time -----------------------------------------------------------------------------------


@final
class InputParts:
    """Replaces wrappers among a graph's inputs by their parts and what carries their gradients."""

    def __init__(self, gm: GraphModule, plans: Plans) -> None:
        wrapped = {i: value for i, value in enumerate(_values(gm)[0]) if _is_wrapped(value)}
        self._plans = {i: plans[i] for i in wrapped if i in plans}
        self._structures = {i: Structure(value) for i, value in wrapped.items() if i not in plans}
        self._counts = [(i, plan.structure.count + len(plan.carried))
                        for i, plan in self._plans.items()]

    def __call__(self, inputs: Sequence[object]) -> list[object]:
        """The graph's inputs, plain."""
        divided = self._divided(inputs)
        plain = list[Any]()
        for i, value in enumerate(inputs):
            if i in divided:
                plain += divided[i]
            else:
                plain.append(value)
        return plain

    def _divided(self, inputs: Sequence[Any]) -> dict[int, Sequence[torch.Tensor]]:
        """The pieces of each wrapper."""
        divided: dict[int, Sequence[torch.Tensor]] = {
            i: structure.leaves(inputs[i]) for i, structure in self._structures.items()}
        if self._plans:
            pieces = apply_function(
                Unwrapped, (*self._plans.values(),), *(inputs[i] for i in self._plans))
            start = 0
            for i, count in self._counts:
                divided[i] = pieces[start : start + count]
                start += count
        return divided


def wrap_outputs(call: GraphCall, gm: GraphModule, plans: Plans) -> GraphCall:
    """`call`, which works on parts, as a callable with the inputs and outputs of `gm`."""
    joins = [Joined(_plain_plan(value), "result" if value.requires_grad else "constant")
             if _is_wrapped(value) else None for value in _values(gm)[1]]
    counts = [1 if join is None else join.plan.structure.count for join in joins]
    run, boxed = call.call, call.boxed
    parts_of = InputParts(gm, plans)

    def on_wrappers(*inputs: object) -> list[Any]:
        pieces = parts_of(inputs)
        results = iter(run(pieces) if boxed else run(*pieces))
        taken = [[next(results) for _ in range(count)] for count in counts]
        return [own[0] if join is None else join(*own)
                for join, own in zip(joins, taken, strict=True)]

    return GraphCall(on_wrappers)
