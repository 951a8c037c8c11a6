"""Graphs with `torch.cond`: the parts before, inside and after a branch are compiled on their own.

Place in the pipeline: `pipeline.compile_aot` asks `has_branches(gm)` first. Which branch runs is
decided at each call, in Python; gradients flow between the parts through autograd.

    a = sin(x)                           stage 0: compiled
    b = cond(p, true_fn, false_fn, (a,)) stage 1: true_fn or false_fn, each compiled
    c = cos(b)                           stage 2: compiled
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, final

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from weft._torch import HigherOrderOperator, cond_operator
from weft.aot.views import Unsupported

CompilePart = Callable[[GraphModule, list[Any]], Callable[..., Any]]
"""(graph, example inputs) -> callable on these inputs."""

_COND: Final = cond_operator


def has_branches(gm: GraphModule) -> bool:
    """Whether a graph takes decisions when it runs."""
    return any(n.target is _COND for n in gm.graph.nodes)


def check_node(node: Node) -> None:
    """Raises Unsupported for operators on functions that cannot be traced."""
    if isinstance(node.target, HigherOrderOperator):
        raise Unsupported(f"{node.target} is run as it is")


def compile_stages(
    gm: GraphModule, example_inputs: Sequence[Any], compile_part: CompilePart
) -> Callable[..., Any]:
    """`gm` as a sequence of compiled stages."""
    nodes = list(gm.graph.nodes)
    placeholders = [n for n in nodes if n.op == "placeholder"]
    examples = dict(zip(placeholders, example_inputs, strict=True))
    stages = [_compiled(gm, stage, examples, compile_part) for stage in _split(nodes)]
    return _Program(placeholders, stages, nodes[-1].args[0])


def _split(nodes: list[Node]) -> list[list[Node]]:
    """Runs of plain nodes, and single branch nodes."""
    stages: list[list[Node]] = []
    plain = False
    for node in nodes:
        if node.op in ("placeholder", "output") or _is_module(node) or _is_result(node):
            continue
        branch = node.target is _COND
        if branch or not plain:
            stages.append([])
        stages[-1].append(node)
        plain = not branch
    return stages


def _is_module(node: Node) -> bool:
    """A reference to a subgraph, which only its branch node reads."""
    return node.op == "get_attr" and all(u.target is _COND for u in node.users)


def _is_result(node: Node) -> bool:
    """`getitem(cond, i)`: part of the branch's stage."""
    source = node.args[0] if node.args else None
    return isinstance(source, Node) and source.target is _COND


@final
@dataclass(frozen=True, slots=True)
class _Stage:
    """Something to run: which values it takes and gives."""

    run: Callable[..., Any]
    inputs: list[Node]
    outputs: list[Node]


@final
class _Program:
    """Runs stages in turn."""

    def __init__(self, placeholders: list[Node], stages: list[_Stage], result: Any) -> None:
        self.placeholders = placeholders
        self.stages = stages
        self.result = result

    def __call__(self, *inputs: Any) -> Any:
        values: dict[Node, Any] = dict(zip(self.placeholders, inputs, strict=True))
        for stage in self.stages:
            given = [values[n] for n in stage.inputs]
            values.update(zip(stage.outputs, stage.run(*given), strict=True))
        return map_arg(self.result, values.__getitem__)


def _compiled(
    gm: GraphModule, stage: list[Node], examples: dict[Node, Any], compile_part: CompilePart
) -> _Stage:
    """One stage, compiled for the examples; adds its outputs' examples."""
    if stage[0].target is _COND:
        return _branch(gm, stage[0], examples, compile_part)
    inside = set(stage)
    inputs = list(dict.fromkeys(a for n in stage for a in n.all_input_nodes if a not in inside))
    outputs = [n for n in stage if any(u not in inside for u in n.users)]
    part = _part(gm, stage, inputs, outputs)
    run = compile_part(part, [examples[n] for n in inputs])
    examples.update((n, n.meta["example_value"]) for n in outputs)
    return _Stage(run, inputs, outputs)


def _part(
    gm: GraphModule, stage: list[Node], inputs: list[Node], outputs: list[Node]
) -> GraphModule:
    """The nodes of a stage as a graph of their own."""
    graph = Graph()
    env: dict[Node, Node] = {}
    for node in inputs:
        env[node] = graph.placeholder(node.name)
        env[node].meta.update(node.meta)
    for node in stage:
        env[node] = graph.node_copy(node, env.__getitem__)
    graph.output(tuple(env[n] for n in outputs))
    return GraphModule(gm, graph)


def _branch(
    gm: GraphModule, node: Node, examples: dict[Node, Any], compile_part: CompilePart
) -> _Stage:
    """A branch node: both sides compiled."""
    predicate, *sides, operands = node.args
    assert isinstance(operands, (tuple, list))
    inputs = [n for n in operands if isinstance(n, Node)]
    given = [examples[n] for n in inputs]
    results = _with_gradients(node.meta["example_value"], given)
    items: dict[Node, int] = {user: _index(user) for user in node.users}
    examples.update((user, results[i]) for user, i in items.items())
    runs = [compile_part(_side(gm, side, operands), given) for side in sides]
    choice = _Choice(runs[0], runs[1], list(items.values()))
    if isinstance(predicate, Node):
        return _Stage(choice, [predicate, *inputs], list(items))
    return _Stage(partial(choice, predicate), inputs, list(items))


def _index(user: Node) -> int:
    index = user.args[1] if user.target is operator.getitem else None
    if not isinstance(index, int):
        raise Unsupported("a branch whose results are used all together")
    return index


def _side(gm: GraphModule, side: Any, operands: Sequence[Any]) -> GraphModule:
    """A branch's graph, with operands that are plain numbers filled in."""
    found = gm.get_submodule(str(side.target))
    assert isinstance(found, GraphModule)
    if all(isinstance(o, Node) for o in operands):
        return found
    graph = Graph()
    placeholders = [n for n in found.graph.nodes if n.op == "placeholder"]
    env: dict[Node, Any] = {}
    for node, operand in zip(placeholders, operands, strict=True):
        env[node] = operand
        if isinstance(operand, Node):
            env[node] = graph.placeholder(node.name)
            env[node].meta.update(node.meta)
    for node in found.graph.nodes:
        if node.op != "placeholder":
            env[node] = graph.node_copy(node, env.__getitem__)
    return GraphModule(found, graph)


@final
class _Choice:
    """Runs one of two sides; gives the results that are asked for."""

    def __init__(
        self, on_true: Callable[..., Any], on_false: Callable[..., Any], items: list[int]
    ) -> None:
        self.on_true = on_true
        self.on_false = on_false
        self.items = items

    def __call__(self, predicate: Any, *operands: Any) -> list[Any]:
        results = self.on_true(*operands) if predicate else self.on_false(*operands)
        return [results[i] for i in self.items]


def _with_gradients(results: Any, operands: list[Any]) -> Any:
    """Examples of a branch's results: with a gradient if either side may give them one."""
    tensors = [o for o in operands if isinstance(o, torch.Tensor)]
    if not (torch.is_grad_enabled() and any(t.requires_grad for t in tensors)):
        return results
    return type(results)(
        r.detach().requires_grad_() if _is_floating(r) else r for r in results
    )


def _is_floating(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and (
        value.is_floating_point() or value.is_complex()
    )
