"""From a joint graph to a differentiable compiled callable.

Place in the pipeline: the training branch of `pipeline.compile_aot`::

    call = compile_joint(gm, tracer, traced, joint, compiler, lowered)
    loss = call([x, target])[0];  loss.backward()
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Iterable, Sequence, Set
from dataclasses import replace
from itertools import accumulate
from typing import Final

import torch
from torch.fx import Graph, GraphModule, Node

from weft._torch import call_hooks_for_gradients, tree_flatten
from weft.aot import graph as aten_graph
from weft.aot.global_state import without_autocast
from weft.aot.graph import is_view, memory_owner
from weft.aot.operators import random_devices
from weft.aot.prepare import Compiler, finish, optimize
from weft.aot.rewrites.expand import Lowered
from weft.aot.runtime_wrapper import wrap
from weft.aot.tracing.arrivals import may_get_none
from weft.aot.tracing.trace import Traced, Tracer
from weft.aot.training.autograd_function import make_function, make_layers
from weft.aot.training.backward_stages import stages_of
from weft.aot.training.backwards import Backwards
from weft.aot.training.differentiable_backward import is_differentiable
from weft.aot.training.double_backward import DoubleBackward
from weft.aot.training.forward_inputs import ForwardInputs
from weft.aot.training.function_spec import ForwardOutputs, FunctionSpec, NodePlan
from weft.aot.training.input_gradients import CutBackwards, InputGradients
from weft.aot.training.joint import JointGraph
from weft.aot.training.layers import without_inner
from weft.aot.training.memory_budget import numel
from weft.aot.training.node_plan import (
    between_results,
    freeing_values,
    watched_leaf,
    with_parts,
)
from weft.aot.training.partition import Partition, partition
from weft.aot.training.replaced_inputs import (
    Reads,
    has_memory,
    reads_in_eager,
    reads_of_saved,
)
from weft.aot.training.requests import Requests
from weft.aot.training.tangents import TangentLayout
from weft.diagnostics import events
from weft.graph_call import GraphCall
from weft.runtime.restoring import run_instead
from weft.shapes.graph_facts import GraphFacts, aten_facts, captured_facts, graph_facts
from weft.shapes.graph_nodes import results_of
from weft.storable import storable

aten = torch.ops.aten

_LITTLE: Final = 1 << 12
"""Bytes of inputs that are kept for double backward in any case: its node takes as many."""

_IGNORED: Final = {(aten._native_batch_norm_legit_functional.default, k): (3, 4) for k in (0, 1, 2)}
"""(operator, result) -> arguments that the result does not depend on."""


def compile_joint(
    gm: GraphModule, tracer: Tracer, traced: Traced, joint: JointGraph, compiler: Compiler,
    lowered: Lowered | None,
) -> GraphCall:
    """Optimize, partition, compile both halves, and wrap them for autograd."""
    leaves = _leaf_inputs(tracer)
    saved, placeholders = _saved_in_eager(joint), _inputs(joint.graph, joint.tangents)
    reads = reads_in_eager(joint.graph, placeholders)
    alive = {n for i, n in enumerate(placeholders) if i in leaves}
    in_eager = _bytes_in_eager(joint, saved - alive)
    joint_gm = optimize(joint.graph, GraphFacts(
        lowered=lowered, is_trained=True, inner=tuple(joint.inner),
        is_part=graph_facts(gm).is_part))
    with events.stage("partition"):
        parts = partition(joint, joint_gm.graph, traced.mutated, leaves, saved)
    events.record("perf", text=f"saved for backward: {parts.bytes_saved} bytes")
    stale = _stale(joint, joint_gm.graph, traced)
    of_saved = reads_of_saved(
        parts.backward, [placeholders[i] for i in parts.saved_inputs], reads)
    detached = _detached_inputs(joint, tracer)
    needed = _needed_inputs(tracer, joint, joint_gm.graph, parts, leaves, detached)
    inputs = _forward_inputs(
        tracer, traced, parts, leaves, *needed, in_eager, stale, of_saved, detached)
    redo = DoubleBackward(
        gm, traced, joint.gradient_inputs, joint.inner, stale.difference(inputs.copied))
    inner = between_results(traced, joint, parts.backward)
    forward = compiler(finish(
        aten_graph.make(parts.forward), _writable(traced, parts), traced.hand_asserts()))
    kept = [i in leaves for i in joint.gradient_inputs]
    backwards = _backwards(traced, joint, parts.backward, kept, compiler)
    function = FunctionSpec(
        region=graph_facts(gm).region,
        forward=without_autocast(forward),
        inputs=inputs,
        outputs=_forward_outputs(traced, parts),
        layouts=_tangent_layouts(joint),
        gradients=_input_gradients(tracer, joint, joint_gm.graph, kept, backwards, parts.backward),
        detached_inputs=tuple(sorted(detached)),
        nodes=NodePlan(
            inner, joint.groups, freeing_values(joint, parts),
            watched=watched_leaf(backwards.stages, joint.gradient_inputs, leaves)),
        random_devices=random_devices(parts.forward),
        late=redo.late,
        differentiable=_is_differentiable(traced, joint, parts),
        droppable=_droppable(traced, joint, parts, inputs),
        redo=redo,
    )
    function = with_parts(function, leaves)
    _protect_hooks(tracer, function, leaves)
    call = wrap(traced, make_function(function), run_instead(gm), layers=make_layers(function))
    return call if torch.is_grad_enabled() else _with_gradients(call)


def _writable(traced: Traced, parts: Partition) -> list[tuple[int, int]]:
    """The (output, input) pairs of written inputs that autograd neither sees nor saves: a cache is
    not copied for a row."""
    if traced.assumes:
        return []
    return [(k, i) for k, i in enumerate(traced.mutated)
            if i in traced.detached_mutations and i not in parts.saved_inputs
            and k not in parts.saved_values]


def _protect_hooks(tracer: Tracer, spec: FunctionSpec, leaves: set[int]) -> None:
    """Backwards that do not reach a leaf pass its hooks by: autograd would call them with None."""
    tensors = [*tracer.examples, *tracer.lifted]
    for i, values in zip(spec.gradients.inputs, spec.gradients.depends_on, strict=True):
        if i in leaves and not values >= spec.layouts.keys():
            call_hooks_for_gradients(tensors[i])


def _input_gradients(
    tracer: Tracer, joint: JointGraph, graph: Graph, of_leaves: list[bool], backwards: Backwards,
    backward: Graph,
) -> InputGradients:
    """The gradients, which `backwards` compute; `backward` returns those of inner results, too."""
    tensors = [i for i, p in enumerate(tracer.primals) if p is not None]
    return InputGradients(
        count=len(tracer.inputs),
        inputs=tuple(joint.gradient_inputs),
        edges=tuple([tensors.index(i) for i in joint.gradient_inputs]),
        depends_on=_tangents_of_gradients(joint, graph),
        requests=Requests(next((k for k, is_leaf in enumerate(of_leaves) if is_leaf), None)),
        backwards=backwards,
        cut=CutBackwards(backwards, backward, joint.tangent_values, joint.inner),
    )


def _backwards(
    traced: Traced, joint: JointGraph, graph: Graph, of_leaves: list[bool], compiler: Compiler
) -> Backwards:
    """The backwards of `graph`, without gradients of inner results."""
    at_once = bool(joint.groups or traced.mutated)
    backward = without_inner(graph, joint.tangent_values, joint.inner)
    stages = (tuple(range(len(of_leaves))),) if at_once else stages_of(backward, of_leaves)
    return Backwards(backward, joint.values, stages, compiler)


@storable
def _with_gradients(graph: GraphCall) -> GraphCall:
    """Enable gradients around a graph that is called without them and enables them itself."""
    call = graph.call

    def enabled(inputs: Sequence[object]) -> object:
        with torch.enable_grad():
            return call(inputs)

    return replace(graph, call=enabled)


def _leaf_inputs(tracer: Tracer) -> set[int]:
    """Inputs that are alive in any case: parameters and other leaves."""
    tensors = [*tracer.examples, *tracer.lifted]
    return {
        i for i, t in enumerate(tensors)
        if isinstance(t, torch.Tensor) and t.is_leaf and t.requires_grad
    }


def _tangent_layouts(joint: JointGraph) -> dict[int, TangentLayout]:
    """The layouts of the tangents of the differentiable values."""
    values = [n.meta["val"] for n in joint.tangents]
    return {k: TangentLayout.of(v) for k, v in zip(joint.values, values, strict=False)}


def _needed_inputs(
    tracer: Tracer, joint: JointGraph, joint_graph: Graph, parts: Partition, leaves: set[int],
    detached: Set[int],
) -> tuple[set[int], set[int]]:
    """The inputs that live in any case, and those whose values no gradient depends on."""
    of_data = any(s.of_output for s in parts.symbols)
    carriers = _carriers(tracer)
    unread = set() if of_data else _unread(joint, joint_graph) - carriers
    return leaves | carriers | (detached - unread), unread


def _forward_outputs(traced: Traced, parts: Partition) -> ForwardOutputs:
    return ForwardOutputs(
        n_values=parts.n_values,
        numbers=frozenset(k for k, v in enumerate(traced.values) if not isinstance(v, Node)),
        views=_views(parts),
        saved=tuple(parts.saved_values),
        symbols=tuple(parts.symbols),
    )


def _is_differentiable(traced: Traced, joint: JointGraph, parts: Partition) -> bool:
    """Whether autograd can differentiate the backward itself."""
    others = {*range(len(traced.mutated)), *_views(parts)}
    return not joint.inner and is_differentiable(
        parts, joint.gradient_inputs, {*joint.values} - others)


def _droppable(
    traced: Traced, joint: JointGraph, parts: Partition, inputs: ForwardInputs
) -> tuple[int, ...]:
    """The saved tensors that the forward could compute again."""
    if joint.groups or traced.mutated or not inputs.held.issuperset(inputs.weak):
        return ()
    numbered = enumerate(parts.saved_values, len(parts.saved_inputs))
    return tuple(i for i, k in numbered if k >= parts.n_values)


def _forward_inputs(
    tracer: Tracer, traced: Traced, parts: Partition, leaves: set[int], kept: set[int],
    unread: set[int], in_eager: int, stale: set[int], reads: tuple[Reads, ...],
    detached: Set[int],
) -> ForwardInputs:
    """Which inputs the forward saves, which live in any case (`kept`), and which a second
    derivative may need: the small ones are held, within the bytes that eager saves more, or copied
    if they are overwritten (`stale`)."""
    primals = tracer.primals
    tensors = [i for i, p in enumerate(primals) if p is not None]
    unsaved = [i for i in tensors if i not in parts.saved_inputs]
    weak = [i for i in unsaved if i not in kept or i in traced.mutated]
    read = [i for i in weak if i not in unread]
    saved = parts.bytes_saved + _bytes_of(primals[i] for i in parts.saved_inputs if i not in kept)
    constants = {i for i in stale if i in detached or not primals[i].requires_grad}
    small = _small([i for i in read if i not in traced.mutated or i in constants],
                   primals, max(in_eager - saved, saved // 16, _LITTLE))
    copied = small & constants
    return ForwardInputs(
        count=len(primals),
        saved=tuple(parts.saved_inputs),
        reads=reads,
        watched=tuple(k for k, i in enumerate(parts.saved_inputs) if has_memory(primals[i])),
        leaves=tuple(i for i in unsaved if i in kept and i not in traced.mutated),
        unread_leaves=frozenset(unread & leaves),
        weak=tuple(i for i in read if i not in copied),
        held=small - copied,
        unread=tuple(i for i in weak if i in unread),
        written=frozenset(traced.mutated),
        copied=tuple(sorted(copied)),
    )


def _carriers(tracer: Tracer) -> set[int]:
    """Inputs without values, through which gradients of wrappers flow (`aot/wrappers.py`)."""
    placeholders = (n for n in tracer.gm.graph.nodes if n.op == "placeholder")
    return {i for i, n in enumerate(placeholders) if captured_facts(n).is_carrier}


def _inputs(graph: Graph, tangents: Iterable[Node]) -> list[Node]:
    late = set(tangents)
    return [n for n in graph.nodes if n.op == "placeholder" and n not in late]


def _saved_in_eager(joint: JointGraph) -> set[Node]:
    """What autograd saves: what the backward reads of the forward."""
    saved: set[Node] = set()
    late = set(joint.tangents)
    for node in joint.graph.nodes:
        if node.op == "call_function" and aten_facts(node).phase == "backward":
            late.add(node)
            saved.update(memory_owner(a) for a in node.all_input_nodes)
    return saved - late


def _bytes_in_eager(joint: JointGraph, saved: set[Node]) -> int:
    """The bytes of what eager saves; as much as can be if that may need all inputs."""
    if may_get_none(joint.graph):
        return sys.maxsize
    return _bytes_of(t for n in saved for t in tree_flatten(n.meta["val"])[0])


def _bytes_of(values: Iterable[object]) -> int:
    return sum(numel(t) * t.element_size() for t in values if isinstance(t, torch.Tensor))


def _small(inputs: list[int], tensors: Sequence[object], limit: int) -> frozenset[int]:
    """The smallest of these inputs that have at most `limit` bytes together."""
    ordered = sorted(inputs, key=lambda i: _bytes_of([tensors[i]]))
    sizes = accumulate(_bytes_of([tensors[i]]) for i in ordered)
    return frozenset(i for i, size in zip(ordered, sizes, strict=True) if size <= limit)


def _detached_inputs(joint: JointGraph, tracer: Tracer) -> frozenset[int]:
    """Inputs that the autograd node must not lead to: in eager no value does."""
    if len(joint.unreached) == sum(p is not None and p.requires_grad for p in tracer.primals):
        return frozenset()  # the values require gradients all the same
    return joint.unreached


def _views(parts: Partition) -> tuple[int, ...]:
    """The values of the forward that a view operator computes."""
    results = results_of(parts.forward)
    values = enumerate(results[: parts.n_values])
    return tuple(k for k, v in values if isinstance(v, Node) and is_view(v))


def _unread(joint: JointGraph, graph: Graph) -> set[int]:
    """Inputs whose values no gradient depends on."""
    results = results_of(graph)
    read = _dependencies([g for g in results[joint.n_values :] if isinstance(g, Node)])
    return {i for i, node in enumerate(_inputs(graph, joint.tangents)) if node not in read}


def _tangents_of_gradients(joint: JointGraph, graph: Graph) -> tuple[frozenset[int], ...]:
    """For each gradient, the values whose tangents it depends on."""
    reach: dict[Node, frozenset[int]] = {
        n: frozenset((k,)) for n, k in zip(joint.tangents, joint.tangent_values, strict=True)
    }
    none: frozenset[int] = frozenset()
    for node in graph.nodes:
        if node not in reach:
            sets = {reach.get(a, none) for a in node.all_input_nodes}
            reach[node] = sets.pop() if len(sets) == 1 else none.union(*sets)
    results = results_of(graph)
    gradients = results[joint.n_values :][: len(joint.gradient_inputs)]
    return tuple(reach.get(g, none) for g in gradients)


# -- what double backward must know ----------------------------------------------------------------


def _stale(joint: JointGraph, graph: Graph, traced: Traced) -> set[int]:
    """Overwritten inputs whose old value other outputs depend on."""
    results = results_of(graph)
    others = results[len(traced.mutated) : joint.n_values]
    used = _dependencies([v for v in others if isinstance(v, Node)])
    inputs = _inputs(graph, joint.tangents)
    return {i for i in traced.mutated if inputs[i] in used}


def _dependencies(start: list[Node]) -> set[Node]:
    nodes: set[Node] = set()
    waiting = list(start)
    while waiting:
        node = waiting.pop()
        if node not in nodes:
            nodes.add(node)
            waiting.extend(_inputs_that_matter(node))
    return nodes


def _inputs_that_matter(node: Node) -> list[Node]:
    """The inputs of a node; for one result of several, those that it depends on."""
    source = node.args[0] if node.args else None
    if node.target is not operator.getitem or not isinstance(source, Node):
        return node.all_input_nodes
    ignored = _IGNORED.get((source.target, node.args[1]), ())  # type: ignore[arg-type]
    if not ignored:
        return node.all_input_nodes
    return [a for i, a in enumerate(source.args) if isinstance(a, Node) and i not in ignored]
