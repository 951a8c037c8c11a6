"""Data that capture knows: what follows from constants and from guarded contents.

Place in the pipeline: beside tensors and data-dependent numbers. `torch.tensor([2]).tolist()` is
the same in every call; so is what follows from a small integer tensor whose content is guarded
(`shapes/contents.py`). Such values are computed on demand, by running the nodes that lead to them
on the real tensors::

    known(tx, tensor)            # a real tensor, or None
    rely_on(tx, reason)          # True: after a graph break, interpret again, with more guards
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import fx

from weft._torch import is_functorch_wrapped_tensor, no_modes
from weft.capture.core.breaks import GraphBreak
from weft.capture.core.data_checks import are_apart
from weft.capture.core.graph import GraphInput, draws, storages
from weft.interrupts import surface
from weft.shapes.contents import may_be_known
from weft.shapes.graph_facts import captured_facts
from weft.shapes.symnode import UndecidedValue
from weft.shapes.unbacked import names_of

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter

_NUMPY_CALLS: Final = "weft.capture.library.numpy.calls"
_MOST_NODES: Final = 2_000
_MOST_ELEMENTS: Final = 1 << 22
"""Limits: nodes that are run to compute a value, and the size of their results."""


def known(tx: Interpreter, node: fx.Node) -> Any:
    """The real value of a node's result at this point of the program, or None if it is not
    known."""
    tx.data.n_asked += 1
    follows = functools.partial(_follows, memo=tx.data.from_inputs)
    if node.graph is not tx.builder.graph or not follows(node):
        return None
    steps = steps_of(tx, node, follows)
    if steps is None:
        return None
    try:
        return run_steps(tx, steps)[node]
    except Exception as error:  # noqa: BLE001  of the program: it comes again there
        surface(error)
        return None


def known_fake(tx: Interpreter, fake: torch.Tensor) -> Any:
    """As `known`, for the tensor that a fake stands for."""
    for node in reversed(tx.builder.graph.nodes):
        if node.meta.get("example_value") is fake:
            return known(tx, node)
    return None


def rely_on(tx: Interpreter, reason: GraphBreak, *, always: bool) -> bool:
    """Guard the contents of more inputs; True if the graph need not end because of that."""
    nodes = list(_needed_nodes(tx, reason))
    needed: dict[str, GraphInput] = {}
    for node in nodes:
        steps = steps_of(tx, node, can_run) if node.graph is tx.builder.graph else None
        if steps is None:
            return False
        needed.update({graph_input.source.name: graph_input for graph_input in inputs_of(tx, steps)
                       if not _is_known(graph_input.node) and not _is_symbol(graph_input.node)})
    if not needed or not all(_is_small(graph_input) for graph_input in needed.values()):
        return False
    contents = tx.policy.contents
    may = tx.policy.may_test_inputs and all(map(contents.may_learn, needed))
    if not (may or always):
        return False
    for name, graph_input in needed.items():
        contents.learn(name, graph_input.example)
    return True


def _needed_nodes(tx: Interpreter, reason: GraphBreak) -> Iterator[fx.Node]:
    """The nodes whose values the break needed."""
    error: BaseException | None = reason
    while error is not None:
        if isinstance(error, GraphBreak):
            yield from error.about
        elif isinstance(error, UndecidedValue):
            places = [tx.data.places.get(name) for name in names_of(error.value)]
            yield from (place[0] for place in places if place is not None)
        error = error.__cause__


def _is_symbol(node: fx.Node) -> bool:
    """Whether the node is a size of the call: what follows from it may stay symbolic
    (`size_tensors.py`)."""
    return isinstance(node.meta.get("example_value"), torch.SymInt)


def _is_small(graph_input: GraphInput) -> bool:
    return isinstance(graph_input.example, torch.Tensor) and may_be_known(graph_input.example)


# -- the nodes that a value follows from ----------------------------------------------------------


def _is_known(node: fx.Node) -> bool:
    """Whether the node is a call, or an input whose content is guarded."""
    return node.op != "placeholder" or captured_facts(node).is_known


def _follows(node: fx.Node, memo: dict[fx.Node, bool]) -> bool:
    """Whether a node is computed from known inputs alone (apart from later writes)."""
    waiting = [node]
    while waiting:
        step = waiting[-1]
        parts = step.all_input_nodes if step not in memo and can_run(step) else []
        unknown = [part for part in parts if part not in memo]
        if unknown and all(memo.get(part, True) for part in parts):
            waiting.append(unknown[0])
            continue
        memo.setdefault(step, can_run(step) and _is_known(step) and all(map(memo.get, parts)))
        waiting.pop()
    return memo[node]


def steps_of(tx: Interpreter, node: fx.Node, may_run: Callable[[fx.Node], bool]
             ) -> list[fx.Node] | None:
    """The nodes to run for the current value of a node, in order, or None if one may not be run, or
    if the graph has written to what it reads through another input."""
    needed, memory = {node}, _storages(node)
    steps: list[fx.Node] = []
    for step in reversed(tx.builder.graph.nodes):
        if step not in needed and not _writes(step, memory):
            continue
        if len(steps) >= _MOST_NODES or not may_run(step):
            return None
        steps.append(step)
        for operand in step.all_input_nodes:
            needed.add(operand)
            memory.update(_storages(operand))
    return steps[::-1] if _is_apart_from_writes(tx, steps) else None


def _is_apart_from_writes(tx: Interpreter, steps: list[fx.Node]) -> bool:
    """Whether the inputs among the steps share no memory with other inputs that the graph has
    written; a guard will tell it of later calls (`input_tests.py`)."""
    memory: set[int] = set()
    for node in tx.builder.graph.nodes:
        if captured_facts(node).has_effect:
            memory.update(*map(_storages, node.all_input_nodes))
    if not memory:
        return True
    inputs = [i for i in tx.builder.inputs if isinstance(i.example, torch.Tensor)]
    written = [i for i in inputs if not memory.isdisjoint(_storages(i.node))]
    read = [i for i in inputs_of(tx, steps) if isinstance(i.example, torch.Tensor)]
    if not (written and read) or read == written[:1] == written:
        return True
    sources = tuple(i.source for i in written)
    others = {i.source.name: i for i in tx.data.read_behind_writes.get(sources, ())}
    others.update((i.source.name, i) for i in read if i not in written)
    if not are_apart([i.example for i in (*written, *others.values())], len(written)):
        return False
    tx.data.read_behind_writes[sources] = list(others.values())
    return True


def _writes(node: fx.Node, memory: set[int]) -> bool:
    if not captured_facts(node).has_effect:
        return False
    return any(not memory.isdisjoint(_storages(operand)) for operand in node.all_input_nodes)


def _storages(node: fx.Node) -> set[int]:
    return storages([node.meta.get("example_value")])


def can_run(node: fx.Node) -> bool:
    """Whether running the node now gives what the program will compute, without side effects."""
    if node.op == "placeholder":
        return True
    example = node.meta.get("example_value")
    if isinstance(example, torch.Tensor) and (
            _elements(example) > _MOST_ELEMENTS or is_functorch_wrapped_tensor(example)):
        return False  # (wrapped: by a level of the capture)
    home = getattr(node.target, "__module__", None) or ""
    plain = not home or home.startswith(("torch", "_operator", "builtins", "math", _NUMPY_CALLS))
    known = node.op == "call_method" or (plain and node.op == "call_function")
    return known and not draws(node)


def _elements(fake: torch.Tensor) -> int:
    """The number of elements, without sizes that depend on data."""
    return math.prod(n for n in fake.shape if type(n) is int)


def inputs_of(tx: Interpreter, steps: list[fx.Node]) -> list[GraphInput]:
    wanted = {step for step in steps if step.op == "placeholder"}
    return [graph_input for graph_input in tx.builder.inputs if graph_input.node in wanted]


# -- running them ---------------------------------------------------------------------------------


def run_steps(tx: Interpreter, steps: list[fx.Node]) -> dict[fx.Node, Any]:
    """Run the steps; their results after the last of them."""
    values = {read.node: _real_copy(read.example) for read in inputs_of(tx, steps)}
    with no_modes(), torch.no_grad():
        for step in steps:
            if step.op != "placeholder":
                args, named = fx.node.map_arg((step.args, step.kwargs), values.__getitem__)
                example = step.meta["example_value"]
                with _default_device(example):
                    values[step] = _call(step.target, args, named)
                _check_modes(values[step], example)
    return values


def _default_device(example: object) -> AbstractContextManager[object]:
    """What makes tensors where the program's default device made the example."""
    if isinstance(example, torch.Tensor) and example.device.type != "cpu":
        return example.device
    return nullcontext()


def _real_copy(example: object) -> Any:
    return example.detach().clone() if isinstance(example, torch.Tensor) else example


def _check_modes(result: object, example: object) -> None:
    """Check that the program's modes (autocast) did not change a result's type."""
    if isinstance(result, torch.Tensor) and isinstance(example, torch.Tensor):
        same = result.dtype is example.dtype and result.device == example.device
        if not same or result.dim() != example.dim():
            raise TypeError("made under other modes")


def _call(target: Any, args: Any, named: Any) -> Any:
    if isinstance(target, str):
        return getattr(args[0], target)(*args[1:], **named)
    return target(*args, **named)
