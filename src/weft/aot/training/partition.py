"""Splits a joint graph into forward and backward so that little memory is kept in between.

Place in the pipeline: after the passes have run on the joint graph. What the backward needs from
the forward is either *saved* or *recomputed*; a minimum cut decides. Every value may be cut, at the
cost of its bytes. A value whose operator is too expensive to run twice is connected to the source,
so the cut is at or after it. Values that backward operators read are connected to the sink::

    forward:  h = mm(x, w);  y = gelu(h);  z = mm(y, v)
    backward: needs x, w, v, h (gelu), y (weight gradient)
    cut:      save x, w, v (they exist anyway) and h; recompute y = gelu(h)

Eager's own choice is one of the possible cuts, so never more is saved than in eager. An input that
eager saves too is saved as it is, and one that only serves to compute something again as a copy, at
the cost of its bytes (`saved_inputs.py`): the program may write to it before the backward runs.
With `config.activation_memory_budget`, even less is saved (`memory_budget.py`).
"""

from __future__ import annotations

import operator
from array import array
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, final

import torch
from torch.fx import Graph, Node

from weft._mincut import min_cut
from weft._torch import FakeTensor, OpOverload, is_collective, runs_as_written
from weft.aot.data_dependent import bound_names
from weft.aot.evaluate import Evaluator
from weft.aot.graph import is_view
from weft.aot.operators import draws_numbers
from weft.aot.symbols import SymbolSource, input_symbols
from weft.aot.training.joint import JointGraph
from weft.aot.training.memory_budget import numel, save_less
from weft.aot.training.saved_inputs import LARGE, insert_references, is_in_checkpoint
from weft.aot.views import Unsupported
from weft.config import config
from weft.shapes.asserts import binds
from weft.shapes.fakes.data_errors import may_raise
from weft.shapes.graph_facts import BACKWARD, aten_facts, marked, note
from weft.shapes.graph_nodes import copy_node, results_of

aten = torch.ops.aten

_INFINITE: Final = 1 << 60

_CHEAP: Final = frozenset(
    {
        "_to_copy", "clone", "full", "full_like", "new_full", "zeros", "zeros_like", "ones",
        "ones_like", "new_zeros", "new_ones", "arange", "scalar_tensor", "expand", "slice",
        "select", "view", "reshape", "_unsafe_view", "where", "constant_pad_nd",
    }
)
"""Operators beside the pointwise ones that are cheap to run again (by packet name)."""


@final
@dataclass(slots=True)
class Partition:
    """Forward and backward graphs, and how saved values get from one to the other.

    The forward returns the joint graph's values, then `n_extra` values only for the backward. The
    backward takes the saved values in this order: `saved_inputs`, `saved_values` (indices of the
    forward's outputs), then the values of `symbols`, then the tangents; it returns the gradients.
    """

    forward: Graph
    backward: Graph
    n_values: int
    saved_inputs: list[int] = field(default_factory=list)
    saved_values: list[int] = field(default_factory=list)
    symbols: list[SymbolSource] = field(default_factory=list)
    bytes_saved: int = 0


def partition(
    joint: JointGraph, graph: Graph, mutated: Iterable[int], free: set[int],
    in_eager: Container[Node] = (),
) -> Partition:
    """Split `graph`, the joint graph after passes.

    `mutated`: inputs whose memory is overwritten after the forward; `free`: inputs that are alive
    anyway (parameters); `in_eager`: what eager saves (of nodes before the passes).
    """
    roles = _Roles(joint, graph, set(mutated), free, in_eager)
    saved = _values_to_save(roles)
    return _split(roles, saved)


@final
class _Roles:
    """Which nodes are inputs, tangents, values, gradients, and which depend on tangents."""

    def __init__(
        self, joint: JointGraph, graph: Graph, mutated: set[int], free: set[int],
        in_eager: Container[Node],
    ) -> None:
        self.nodes = [n for n in graph.nodes if n.op != "output"]
        results = results_of(graph)
        self.values: list[Any] = list(results[: joint.n_values])
        self.gradients: list[Any] = list(results[joint.n_values :])
        tangents = set(joint.tangents)
        self.tangents = joint.tangents
        self.inputs = [n for n in self.nodes if n.op == "placeholder" and n not in tangents]
        self.input_index = {n: i for i, n in enumerate(self.inputs)}
        self.mutated = {self.inputs[i] for i in mutated}
        self.free = {self.inputs[i] for i in free}
        self.wanted = {g for g in self.gradients if isinstance(g, Node)}
        self.late = self._descendants(tangents)
        self.binders = {n for n in self.nodes if binds(n)}
        if any(n in self.late or aten_facts(n).runs_again for n in self.binders):
            raise Unsupported("sizes that depend on data, found in the backward")
        self.early = _ancestors([*self.values, *self.binders])
        self.saved_inputs = {n for n in self.inputs if n in in_eager}
        trained = {self.inputs[i] for i in joint.gradient_inputs}
        known = trained | self.saved_inputs if config.activation_memory_budget < 1 else set()
        self.copied = {n for n in self.inputs if n not in known and self._is_copied(n)}
        referenced = [n for n in self.inputs if n in self.copied & self.saved_inputs - self.mutated]
        by_backward = {n for n in self.nodes if aten_facts(n).phase == "backward"}
        self.references = insert_references(graph, referenced, self.late | by_backward)
        self.nodes = [n for n in graph.nodes if n.op != "output"]

    def _is_copied(self, node: Node) -> bool:
        """Whether the backward computes nothing again from the input itself."""
        value = node.meta["val"]
        if not isinstance(value, FakeTensor) or (_bytes(value) > LARGE and node not in self.free):
            return False
        return not is_in_checkpoint(node)

    def is_free(self, node: Node) -> bool:
        """Whether a saved value is alive anyway."""
        return self.references.get(node, node) in self.free - self.copied or (
            self.references.get(node) in self.free)

    def _descendants(self, start: set[Node]) -> set[Node]:
        """Nodes that depend on tangents: they run in the backward."""
        descendants = set(start)
        for node in self.nodes:
            if not descendants.isdisjoint(node.all_input_nodes):
                descendants.add(node)
        return descendants

    def read_late(self, node: Node) -> bool:
        """Whether an operator of the backward reads `node`, or it is itself a gradient."""
        return node in self.wanted or not self.late.isdisjoint(node.users)


def _ancestors(values: Iterable[object]) -> set[Node]:
    """All nodes that the values are computed from, themselves included."""
    ancestors: set[Node] = set()
    waiting = [v for v in values if isinstance(v, Node)]
    while waiting:
        node = waiting.pop()
        if node not in ancestors:
            ancestors.add(node)
            waiting.extend(node.all_input_nodes)
    return ancestors


# -- what to save ----------------------------------------------------------------------------------


def _values_to_save(roles: _Roles) -> set[Node]:
    """The values to save for the backward, within the memory budget."""
    budget = config.activation_memory_budget
    if budget >= 1:
        return _cheapest_cut(roles)
    dear = [n for n in roles.nodes if n not in roles.late and _may_run_again(n, roles)]

    def size(saved: set[Node]) -> int:
        return sum(_cost(n, roles) for n in saved)

    return save_less(dear, partial(_cheapest_cut, roles), size, budget)


def _may_run_again(node: Node, roles: _Roles) -> bool:
    """Whether an operator that runs once by default could run in the backward too."""
    target = node.target
    if not _must_run_early(node, roles) or not isinstance(target, OpOverload):
        return False
    if is_collective(target) or node in roles.binders:
        return False
    return not draws_numbers(target, node.args, node.kwargs)


def _cheapest_cut(roles: _Roles, free: Container[Node] = ()) -> set[Node]:
    """The values to save if what is not cheap runs only once, except the nodes in `free`.

    Among equal cuts, the one nearest to the backward recomputes least: edges are reversed, so that
    the sink's side is the smallest.
    """
    nodes = [n for n in roles.nodes if n not in roles.late]
    number = {n: 2 * i + 2 for i, n in enumerate(nodes)}  # of the entry; exit: + 1
    edges = array("q")
    for node in nodes:
        entry = number[node]
        edges.extend((entry + 1, entry, _cost(node, roles)))
        if node not in free and _must_run_early(node, roles):
            edges.extend((entry, 0, _INFINITE))
        for user in node.users:
            if user in number:
                edges.extend((number[user], entry + 1, _INFINITE))
        if roles.read_late(node):
            edges.extend((1, entry + 1, _INFINITE))
    late = min_cut(2 * len(nodes) + 2, 1, 0, edges)
    return {n for n in nodes if late[number[n] + 1] and not late[number[n]]}


def _cost(node: Node, roles: _Roles) -> int:
    """The cost of saving a value: four times its bytes, plus one if the forward would not have it
    in memory otherwise; infinite if it cannot be saved.

    What is alive anyway costs next to nothing: parameters, and results that are returned and that
    eager would save too. Inputs that eager saves are likely to be alive, and gradients of gradients
    need them: better than what is computed of them, even if something small is saved with them."""
    value = node.meta["val"]
    if aten_facts(node).read_late or _is_offloaded(node):
        return 0  # (and nothing is computed of the former before)
    if node in roles.copied:
        return 4 * _bytes(value)
    if node in roles.references or (node.op == "placeholder" and (
            node in roles.free or not isinstance(value, FakeTensor))):
        return 1
    if node.op == "placeholder":
        return (15 * _bytes(value) // 4 if node in roles.saved_inputs else 4 * _bytes(value))
    if _never_saved(node):
        return _INFINITE
    if node in roles.values:
        if not _eager_saves(node):
            return 4 * _bytes(value) + 2  # of a copy: the program may write to the result
        if config.activation_memory_budget >= 1:
            return 0
    return 4 * _bytes(value) + (is_cheap(node) and not _is_read_from_memory(node, roles))


def _is_offloaded(node: Node) -> bool:
    """Whether the program copied the value from a device to the host (`save_on_cpu`)."""
    value = node.meta["val"]
    return isinstance(value, FakeTensor) and value.device.type == "cpu" and any(
        isinstance(operand := n.meta["val"], FakeTensor) and operand.device.type != "cpu"
        for n in node.all_input_nodes)


def _eager_saves(node: Node) -> bool:
    """Whether an operator that eager's backward runs reads the value."""
    return any(
        _eager_saves(user) if is_view(user) else aten_facts(user).phase == "backward"
        for user in node.users
    )


def _never_saved(node: Node) -> bool:
    """Whether the value of an operator is no tensor of its own, or is computed again by a
    checkpoint."""
    is_tensor = isinstance(node.meta["val"], FakeTensor)
    return not is_tensor or is_view(node) or aten_facts(node).runs_again


def _is_read_from_memory(node: Node, roles: _Roles) -> bool:
    """Whether the forward has the value in memory anyway: it returns it, or an operator that is not
    part of a fused kernel reads it."""
    return any(
        _is_read_from_memory(user, roles) if is_view(user) else not is_cheap(user)
        for user in node.users
        if user in roles.early
    ) or node in roles.values


def _bytes(value: torch.Tensor) -> int:
    return max(numel(value) * value.element_size(), 1)


def _must_run_early(node: Node, roles: _Roles) -> bool:
    """Whether it is an input, or an operator of the forward that is not cheap to run again."""
    if node.op == "placeholder" or node in roles.binders or node in roles.references:
        return True
    if node not in roles.early:
        return False  # needed in the backward only: it runs there, once
    return not is_cheap(node)


def is_cheap(node: Node) -> bool:
    """Whether an operator costs next to nothing inside a fused kernel."""
    target = node.target
    if is_view(node):
        return True
    if target is operator.getitem or aten_facts(node).copies_input:
        return False
    if not isinstance(target, OpOverload) or runs_as_written(target):
        return False
    if torch.Tag.pointwise in target.tags:
        return True
    return target._schema.name.split("::")[1] in _CHEAP


# -- the two graphs --------------------------------------------------------------------------------


def _split(roles: _Roles, saved: set[Node]) -> Partition:
    """The forward and backward graphs for a choice of saved values."""
    ordered = [n for n in roles.nodes if n in saved]
    kept = (n for n in ordered if n in roles.references or (
        n.op == "placeholder" and n not in roles.mutated | roles.copied))
    inputs = dict.fromkeys(kept)  # an ordered set
    others = [n for n in ordered if n not in inputs]
    result = Partition(Graph(), Graph(), len(roles.values))
    result.saved_inputs = [roles.input_index[roles.references.get(n, n)] for n in inputs]
    index = {v: k for k, v in reversed([*enumerate(roles.values)]) if isinstance(v, Node)}
    extra: list[Node] = []
    for node in others:
        position = index.get(node)
        if position is None or node.op == "placeholder" or not _eager_saves(node):
            position = len(roles.values) + len(extra)
            extra.append(node)
        result.saved_values.append(position)
        result.bytes_saved += _bytes(node.meta["val"])
    _forward(roles, extra, result.forward)
    result.symbols = list(input_symbols(n.meta["val"] for n in roles.inputs).values())
    result.symbols += _data_symbols(result.forward)
    _backward(roles, [*inputs, *others], result.symbols, result.backward)
    return result


def _forward(roles: _Roles, extra: list[Node], graph: Graph) -> None:
    """All nodes that values and saved values need, in the original order."""
    effects = [n for n in roles.nodes if _has_effect(n, roles)]
    needed = _ancestors([*roles.values, *extra, *effects])
    env: dict[Node, Node] = {}
    for node in roles.nodes:
        if node in needed or node in roles.input_index:
            env[node] = copy_node(graph, node, env)
    graph.output(tuple(_mapped([*roles.values, *extra], env)))
    for node in effects:
        if not env[node].users and may_raise(node):  # the backward alone reads its result
            note(env[node], replace(aten_facts(node), must_run=True))


def _data_symbols(forward: Graph) -> list[SymbolSource]:
    """Let the forward return the values of the symbols that it binds, for the backward."""
    node = forward.output_node()
    values = list(results_of(forward))
    sources: list[SymbolSource] = []
    symbols = Evaluator.current().mode.symbols
    for name in bound_names(forward):
        assert symbols is not None
        number = symbols.unbacked_number(name)
        sources.append(SymbolSource(number, len(values), None, of_output=True))
        values.append(number)
    node.args = (tuple(values),)
    return sources


def _has_effect(node: Node, roles: _Roles) -> bool:
    """Whether the node runs even if its result is unused: random operators, as in eager, nodes that
    bind symbols, and those that may raise."""
    facts = aten_facts(node)
    if node in roles.binders or facts.must_run:
        return True
    return facts.phase == "forward" and node not in roles.late and (
        isinstance(node.target, OpOverload)
        and (runs_as_written(node.target) or not node.target._schema.returns
             or (not facts.runs_again and may_raise(node)))
    )


def _backward(
    roles: _Roles, saved: list[Node], sizes: list[SymbolSource], graph: Graph
) -> None:
    """Compute gradients from saved values and tangents; what is recomputed runs right before its
    use."""
    env: dict[Node, Node] = {}
    for node in saved:
        env[node] = _placeholder(graph, node.name, node.meta)
        if not roles.is_free(node):
            note(env[node], replace(aten_facts(node), dies=True))
    for i, size in enumerate(sizes):
        _placeholder(graph, f"size_{i}", {"val": size.value, "stack": (), **marked(BACKWARD)})
    for node in roles.tangents:
        env[node] = _placeholder(
            graph, node.name, node.meta | marked(replace(aten_facts(node), dies=True)))
    wanted = _ancestors(roles.gradients)
    for node in roles.nodes:
        if node in roles.late and node in wanted:
            _emit(node, env, graph)
    for gradient in roles.gradients:
        if isinstance(gradient, Node):
            _emit(gradient, env, graph)
    graph.output(tuple(_mapped(roles.gradients, env)))


def _placeholder(graph: Graph, name: str, meta: Mapping[str, object]) -> Node:
    placeholder = graph.create_node("placeholder", name)
    placeholder.meta.update(meta)
    return placeholder


def _emit(node: Node, env: dict[Node, Node], graph: Graph) -> None:
    """Copy `node` and, before it, whatever it needs that is not there yet."""
    waiting = [node]
    while waiting:
        current = waiting[-1]
        missing = [a for a in current.all_input_nodes if a not in env]
        if current in env:
            waiting.pop()
        elif missing:
            waiting.extend(reversed(missing))
        else:
            env[current] = copy_node(graph, current, env)
            waiting.pop()


def _mapped(values: Sequence[object], env: dict[Node, Node]) -> list[Any]:
    return [env[v] if isinstance(v, Node) else v for v in values]
