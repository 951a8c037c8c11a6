"""Graphs compiled in parts: those with `torch.cond`, or that return leaves they made.

Place in the pipeline: `pipeline.compile_aot` calls `has_parts(gm)` first. Which branch runs is
decided at each call, in Python. Gradients flow between the parts through autograd, and end at a
leaf that one of them made::

    a = sin(x)                           part 0: compiled
    b = cond(p, true_fn, false_fn, (a,)) part 1: true_fn or false_fn, each compiled
    c = cos(b).detach()                  part 2: compiled
    d = c.requires_grad_()               part 3: run as it is, like autograd.grad and grad modes
    e = tan(d)                           part 4: compiled
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, final

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from weft._torch import HigherOrderOperator, cond_operator, is_functorch_wrapped_tensor
from weft.aot.global_state import Boxed, preserve_modes
from weft.aot.symbols import input_symbols, names_in, symbolic_leaves
from weft.aot.views import Unsupported
from weft.graph_call import GraphCall
from weft.shapes.graph_facts import GraphFacts, graph_facts, note_graph
from weft.shapes.graph_nodes import results_of

CompilePart = Callable[[GraphModule, list[Any]], GraphCall]
"""(graph, example inputs) -> callable on these inputs."""

_COND: Final = cond_operator


def has_parts(gm: GraphModule) -> bool:
    """Whether a graph takes a decision when it runs, or returns a leaf that it makes."""
    return any(n.target is _COND for n in gm.graph.nodes) or bool(_makes_leaves(gm.graph))


def _makes_leaves(graph: Graph) -> set[Node]:
    """The nodes that make leaves which the graph returns (those of torch.func transforms not)."""
    returned = set(graph.output_node().all_input_nodes)
    return {
        n for n in graph.nodes
        if (n.target == "requires_grad_" and not returned.isdisjoint((n, n.args[0]))
            and n.args[0].meta["example_value"].is_leaf
            and not is_functorch_wrapped_tensor(n.args[0].meta["example_value"]))
        or (n.op == "call_function" and n in returned and not n.all_input_nodes
            and getattr(n.meta.get("example_value"), "requires_grad", False)
            and n.meta["example_value"].is_leaf)
    }


def _sets_mode(node: Node) -> bool:
    """Whether a node sets global state, such as the gradient mode."""
    return node.op == "call_function" and not node.users and not node.all_input_nodes


def check_node(node: Node) -> None:
    """Raise Unsupported for operators on functions that cannot be traced."""
    if isinstance(node.target, HigherOrderOperator):
        raise Unsupported(f"{node.target} is run as it is")


def compile_parts(
    gm: GraphModule, example_inputs: Sequence[object], compile_part: CompilePart
) -> GraphCall:
    """`gm` as a sequence of compiled parts."""
    placeholders = [n for n in gm.graph.nodes if n.op == "placeholder"]
    examples = dict(zip(placeholders, example_inputs, strict=True))
    with preserve_modes():
        parts = [
            _branch(gm, nodes[0], examples, compile_part) if kind == "branch" else
            _straight(gm, nodes, examples, compile_part if kind == "plain" else _as_it_is)
            for kind, nodes in _split(gm.graph)
        ]
    return GraphCall(_Program(placeholders, parts, results_of(gm.graph)))


def _split(graph: Graph) -> list[tuple[str, list[Node]]]:
    """The graph as "plain" sequences, single "branch" nodes, and single nodes that run "as it
    is"."""
    makes_leaves = _makes_leaves(graph)
    parts: list[tuple[str, list[Node]]] = []
    for node in graph.nodes:
        if node.op in ("placeholder", "output") or _is_module(node) or _is_result(node, _COND):
            continue
        if _is_result(node, torch.autograd.grad):
            next(nodes for _, nodes in parts if node.args[0] in nodes).append(node)
            continue
        as_it_is = (
            node in makes_leaves or node.target is torch.autograd.grad or _sets_mode(node)
        )
        kind = "branch" if node.target is _COND else "as it is" if as_it_is else "plain"
        if kind != "plain" or not parts or parts[-1][0] != "plain":
            parts.append((kind, []))
        parts[-1][1].append(node)
    return parts


def _as_it_is(part: GraphModule, example_inputs: Sequence[object]) -> GraphCall:
    """A node that is not compiled; a mode is also set now, for the parts that follow."""
    if all(_sets_mode(n) for n in part.graph.nodes if n.op != "output"):
        part()
    return GraphCall(part.forward)


def _is_module(node: Node) -> bool:
    """Whether the node refers to a subgraph, which only its branch node reads."""
    return node.op == "get_attr" and all(u.target is _COND for u in node.users)


def _is_result(node: Node, of: object) -> bool:
    """Whether the node is `getitem(of(…), i)`, which belongs to the part of that call."""
    source = node.args[0] if node.args else None
    return node.target is operator.getitem and isinstance(source, Node) and source.target is of


@final
@dataclass(frozen=True, slots=True)
class _Part:
    """A compiled part or a branch (`run` may clear its list of inputs), the nodes that it reads,
    and those whose values it returns."""

    run: Boxed
    inputs: list[Node]
    outputs: list[Node]


@final
class _Program:
    """Runs parts in turn, and frees values after their last use."""

    def __init__(self, placeholders: list[Node], parts: list[_Part], result: Any) -> None:
        self.placeholders = placeholders
        self.parts = parts
        self.result = result
        kept: set[Node] = set()
        map_arg(result, kept.add)
        last = {n: k for k, part in enumerate(parts) for n in (*part.inputs, *part.outputs)}
        self.dying = [[n for n in last.keys() - kept if last[n] == k] for k in range(len(parts))]

    def __call__(self, *inputs: object) -> object:
        values: dict[Node, Any] = dict(zip(self.placeholders, inputs, strict=True))
        for part, dying in zip(self.parts, self.dying, strict=True):
            operands = [values[n] for n in part.inputs]
            for node in dying:
                values.pop(node, None)  # what the part takes may die while it runs
            values.update(zip(part.outputs, part.run(operands), strict=True))
            for node in dying:
                values.pop(node, None)
        return map_arg(self.result, values.__getitem__)


def _straight(
    gm: GraphModule, nodes: list[Node], examples: dict[Node, Any], compile_part: CompilePart
) -> _Part:
    """A compiled part without a decision; adds its outputs' examples."""
    inside = set(nodes)
    inputs = list(dict.fromkeys(a for n in nodes for a in n.all_input_nodes if a not in inside))
    inputs += _sources_of_symbols(gm.graph, inputs, nodes)
    outputs = [n for n in nodes if any(u not in inside for u in n.users)]
    module = _module(gm, nodes, inputs, outputs)
    run = compile_part(module, [examples[n] for n in inputs])
    examples.update((n, n.meta["example_value"]) for n in outputs)
    return _Part(run.taking_list(), inputs, outputs)


def _sources_of_symbols(graph: Graph, inputs: list[Node], nodes: list[Node]) -> list[Node]:
    """Further inputs for a part: inputs of the graph from which it reads symbols that its own
    inputs do not tell (a cache that an earlier part made has the size `s0 + 1`)."""
    own = set(input_symbols(n.meta.get("example_value") for n in inputs))
    wanted = {name for n in (*inputs, *nodes)
              for size in symbolic_leaves(n.meta.get("example_value")) for name in names_in(size)}
    placeholders = graph.find_nodes(op="placeholder")
    sources = input_symbols(n.meta.get("example_value") for n in placeholders)
    needed = sorted(sources[name].input for name in wanted - own if name in sources)
    return [placeholders[i] for i in dict.fromkeys(needed) if placeholders[i] not in inputs]


def _module(
    gm: GraphModule, nodes: list[Node], inputs: list[Node], outputs: list[Node]
) -> GraphModule:
    """The nodes of a part as a graph module."""
    graph = Graph()
    env: dict[Node, Node] = {}
    for node in inputs:
        env[node] = graph.placeholder(node.name)
        env[node].meta.update(node.meta)
    for node in nodes:
        env[node] = graph.node_copy(node, env.__getitem__)
    graph.output(tuple(env[n] for n in outputs))
    module = GraphModule(gm, graph)
    # (Each would save its own copy of an image in another layout.)
    note_graph(module, GraphFacts(is_part=True))
    return module


def _branch(
    gm: GraphModule, node: Node, examples: dict[Node, Any], compile_part: CompilePart
) -> _Part:
    """A part with both branches compiled."""
    predicate, *sides, operands = node.args
    assert isinstance(operands, (tuple, list))
    inputs = [n for n in operands if isinstance(n, Node)]
    operand_examples = [examples[n] for n in inputs]
    items: dict[Node, int] = {user: _index(user) for user in node.users}
    examples.update((user, user.meta["example_value"]) for user in items)
    branches = [_side(gm, side, operands) for side in sides]
    for branch in branches:
        # Operands of the branch that is not taken get zeros.
        note_graph(branch, replace(graph_facts(branch), reaches_all=True))
    runs = [compile_part(branch, operand_examples) for branch in branches]
    on_true, on_false = (run.taking_inputs() for run in runs)
    choice = _Choice(on_true, on_false, list(items.values()))
    if isinstance(predicate, Node):
        return _Part(GraphCall(choice).taking_list(), [predicate, *inputs], list(items))
    return _Part(GraphCall(partial(choice, predicate)).taking_list(), inputs, list(items))


def _index(user: Node) -> int:
    index = user.args[1] if user.target is operator.getitem else None
    if not isinstance(index, int):
        raise Unsupported("a branch whose results are used all together")
    return index


def _side(gm: GraphModule, side: Any, operands: Sequence[object]) -> GraphModule:
    """A branch's graph, with operands that are plain numbers substituted."""
    branch = gm.get_submodule(str(side.target))
    assert isinstance(branch, GraphModule)
    if all(isinstance(o, Node) for o in operands):
        return branch
    graph = Graph()
    placeholders = [n for n in branch.graph.nodes if n.op == "placeholder"]
    env: dict[Node, Any] = {}
    for node, operand in zip(placeholders, operands, strict=True):
        env[node] = operand
        if isinstance(operand, Node):
            env[node] = graph.placeholder(node.name)
            env[node].meta.update(node.meta)
    for node in branch.graph.nodes:
        if node.op != "placeholder":
            env[node] = graph.node_copy(node, env.__getitem__)
    return GraphModule(branch, graph)


@final
class _Choice:
    """Runs one of two branches and returns the results that are used."""

    def __init__(
        self, on_true: Callable[..., Any], on_false: Callable[..., Any], items: list[int]
    ) -> None:
        self.on_true = on_true
        self.on_false = on_false
        self.items = items

    def __call__(self, predicate: object, *operands: object) -> list[object]:
        results = self.on_true(*operands) if predicate else self.on_false(*operands)
        return [results[i] for i in self.items]
