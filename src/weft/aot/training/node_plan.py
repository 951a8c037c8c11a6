"""Decides which autograd nodes a compiled graph has.

Place in the pipeline: steps of `compile.py`; `autograd_function.py` makes the nodes at each call.
Eager has a node for each operator, so that a backward runs what leads to its inputs and no more,
and gradients can be seen in between. One node for a graph is the cheapest, and what most graphs
have; `NodePlan` says where there must be others::

    results -- between results -- the graph's own -- later stages --> inputs
               (`layers.py`)      one, or parts      (`backward_stages.py`)
"""

from __future__ import annotations

from dataclasses import replace

from torch.fx import Graph

from weft.aot.tracing.arrivals import reached
from weft.aot.tracing.trace import Traced
from weft.aot.training.backward_stages import Stages
from weft.aot.training.backwards import Backwards, Indices, with_tangents_of
from weft.aot.training.function_spec import FunctionSpec, NodePlan
from weft.aot.training.joint import JointGraph
from weft.aot.training.layers import Inner, cut_at, inner_results, splits_users_code
from weft.aot.training.partition import Partition
from weft.aot.training.requests import Requests
from weft.aot.views import Unsupported


def between_results(traced: Traced, joint: JointGraph, backward: Graph) -> Inner:
    """The nodes in front: `backward` returns the gradients of inner results last. Raises
    `Unsupported` if code of the program would run in several of them."""
    outputs = traced.outputs
    views = {k: outputs[~k].index for k in joint.inner if k < 0 and outputs[~k].kind == "value"}
    inner = inner_results(backward, joint.tangent_values, joint.inner, views)
    if inner.layers and backward.find_nodes(op="call_function", target=reached) and (
            splits_users_code(cut_at(backward, joint.tangent_values, joint.inner),
                              joint.values, inner.layers)):
        raise Unsupported("a user's backward or hook behind several results")
    return inner


def watched_leaf(stages: Stages, inputs: list[int], leaves: set[int]) -> int | None:
    """A leaf input whose `.grad` tells at a call whether gradients are added up, so that later
    stages get nodes of their own; None if there is one stage."""
    return next((i for i in inputs if i in leaves), None) if len(stages) > 1 else None


def freeing_values(joint: JointGraph, parts: Partition) -> Indices:
    """The values that have only one backward: eager's frees something, or ours does after all,
    which reads symbolic sizes of what it saves."""
    saves = bool(parts.saved_inputs or parts.saved_values)
    if not saves or (joint.freeing and not parts.symbols):
        return joint.freeing
    return frozenset(k for k in joint.tangent_values if k >= 0)


def with_parts(spec: FunctionSpec, leaves: set[int]) -> FunctionSpec:
    """The same with a node for each group of values, if one for all would reach too much."""
    nodes = spec.nodes
    if nodes.inner.layers or not _reaches_too_much(spec, leaves):
        return spec
    parts = tuple(_part(spec, group) for group in nodes.groups)
    return replace(spec, nodes=replace(nodes, parts=parts))


def _reaches_too_much(spec: FunctionSpec, leaves: set[int]) -> bool:
    """Whether a backward of one group would also run what is behind inputs of others."""
    return any(
        i not in leaves and any(values.isdisjoint(group) for group in spec.nodes.groups)
        for i, values in zip(spec.gradients.inputs, spec.gradients.depends_on, strict=True)
    )


def _part(spec: FunctionSpec, values: Indices) -> FunctionSpec:
    """The description of a node for one group of values, behind the graph's forward."""
    whole = spec.gradients.backwards
    graph = with_tangents_of(whole.graph, whole.tangents, values)
    saved = [n for n in graph.nodes if n.op == "placeholder"][len(spec.inputs.saved) :]
    is_reached = [not reaching.isdisjoint(values) for reaching in spec.gradients.depends_on]
    others = [i for i, is_own in zip(spec.gradients.inputs, is_reached, strict=True)
              if not is_own]
    if others and not any(is_reached):
        del others[0]  # the values require gradients all the same, as in eager
    leaf = spec.gradients.requests.leaf
    return replace(
        spec,
        gradients=replace(
            spec.gradients,
            backwards=Backwards(
                graph, [k for k in whole.tangents if k in values], whole.stages, whole.compiler),
            requests=Requests(leaf if leaf is not None and is_reached[leaf] else None),
        ),
        layouts={k: layout for k, layout in spec.layouts.items() if k in values},
        outputs=replace(spec.outputs, saved=tuple(
            k if n.users else -1 for k, n in zip(spec.outputs.saved, saved, strict=False))),
        detached_inputs=(*spec.detached_inputs, *others),
        nodes=NodePlan(freeing=spec.nodes.freeing & values),
    )
