"""The graph under construction: torch-level calls on placeholders, in program order.

Place in the pipeline: written by tensor values, finished by the compiler, handed to the backend
(contract 3). Nodes are `call_function` and `call_method` only; parameters, buffers and other
outside tensors are placeholders in the order of their first use::

    builder.placeholder("x", fake, example=x)
    node = builder.call("relu", (x_node,), {}, fake_result, stack)
    gm, inputs = builder.finish([node])
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final, final

import torch
from torch import fx

from weft._torch import functorch, is_functorch_wrapped_tensor, set_grad_enabled
from weft.capture.core.breaks import graph_break
from weft.capture.core.source import Source
from weft.errors import InternalError, SourceLine
from weft.runtime.data_checks import is_check
from weft.shapes.fakes.data_errors import takes_data
from weft.shapes.graph_facts import CapturedFacts, captured_facts, note, program_function

_INVALID: Final = re.compile(r"[^0-9a-zA-Z_]+")

_IMPURE: Final = frozenset({set_grad_enabled, operator.setitem})
"""Functions that are kept even if nothing uses their result (in-place methods are recognized by
their name)."""


_NAMESPACES_OF_TORCH: Final = frozenset({"aten", "higher_order", "prim", "prims", "quantized"})


@final
@dataclass(slots=True)
class GraphInput:
    """A placeholder: where its value comes from, and the value in the captured call."""

    source: Source
    node: fx.Node
    example: Any


class CallRecorder:
    """Records calls in a graph; knows nothing of Python values."""

    has_foreign_nodes = False
    """Whether the arguments of calls may be nodes of another graph."""

    def __init__(self) -> None:
        self.graph = fx.Graph()
        self.n_calls = 0
        """How many of the nodes make the graph worth compiling."""
        self.n_made = 0
        """How many nodes of calls were ever made."""
        self.n_checks = 0
        """How many of the nodes check conditions on data."""

    def local(self, node: fx.Node) -> fx.Node:
        """The node of this graph that stands for `node`."""
        raise NotImplementedError

    def verify_checks(self) -> None:
        """Raise InternalError if the finished graph lacks a check that was recorded."""
        kept = sum(is_check(node.target) for node in self.graph.nodes)
        if kept != self.n_checks:
            raise InternalError(f"{self.n_checks - kept} checks of data got lost in the graph")

    def call(
        self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], example: object,
        stack: tuple[SourceLine, ...],
    ) -> fx.Node:
        """Record a call of a function, or of the first argument's method of that name; `example` is
        its result on fake tensors."""
        if self.has_foreign_nodes:
            args, kwargs = fx.node.map_arg((args, kwargs), self.local)
        op = "call_method" if isinstance(target, str) else "call_function"
        node = self.graph.create_node(op, target, args, kwargs)
        node.meta["example_value"] = example
        node.meta["stack"] = stack
        self.n_calls += 1
        self.n_made += 1
        return node

    def effect(
        self, function: object, args: tuple[Any, ...], stack: tuple[SourceLine, ...],
        kwargs: dict[str, Any] | None = None,
    ) -> fx.Node:
        """Record a call that is kept for its effect and has no result."""
        node = self.call(function, args, kwargs or {}, None, stack)
        note(node, CapturedFacts(has_effect=True))
        return node


class GraphBuilder(CallRecorder):
    """Collects the nodes of the graph that a frame becomes, and its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.inputs: list[GraphInput] = []
        self._last_placeholder: fx.Node | None = None
        self._kept: set[fx.Node] = set()
        self.is_finished = False
        self.holder = torch.nn.Module()
        """Holds the modules of subgraphs."""

    def local(self, node: fx.Node) -> fx.Node:
        """The node itself; breaks the graph for a node of a subgraph that is already closed."""
        if node.graph is not self.graph:
            raise graph_break("unknown-operation", "a tensor that left its subgraph")
        return node

    def add_module(self, module: fx.GraphModule) -> str:
        """Keep a subgraph's module and return its name."""
        name = f"subgraph_{len(list(self.holder.children()))}"
        self.holder.add_module(name, module)
        return name

    def placeholder(self, source: Source, fake: object, example: object) -> fx.Node:
        """Add an input after the earlier ones and before all calls."""
        name = _INVALID.sub("_", source.name).strip("_") or "input"
        if name == "self":
            name = "self_"  # in fx, that is the module
        with self._after_placeholders():
            node = self.graph.create_node("placeholder", name, (), {}, name)
        node.target = node.name  # two sources may have the same name
        self._last_placeholder = node
        node.meta["example_value"] = fake
        is_state = isinstance(example, torch.nn.Parameter) or source.is_buffer
        note(node, replace(_before_the_graph(fake), is_state=is_state))
        self.inputs.append(GraphInput(source, node, example))
        return node

    def keep(self, node: fx.Node) -> None:
        """Keep an input even if no node uses it: sizes are computed from it."""
        self._kept.add(node)

    def _after_placeholders(self) -> Any:
        last = self._last_placeholder
        if last is None:
            return self.graph.inserting_before(next(iter(self.graph.nodes), None))
        return self.graph.inserting_after(last)

    def calls(self) -> list[fx.Node]:
        """The calls so far, in order."""
        return [node for node in self.graph.nodes if node.op in ("call_function", "call_method")]

    def finish(self, outputs: list[fx.Node]) -> tuple[fx.GraphModule, list[GraphInput]]:
        """Add the outputs, drop unused nodes, and return the module and its inputs in order."""
        self.graph.output(tuple(outputs))
        drop_unused(self.graph)
        self.verify_checks()
        self.is_finished = True
        needed = self._kept.union(outputs)
        used: list[GraphInput] = []
        for item in self.inputs:
            if item.node.users or item.node in needed:
                used.append(item)
            else:
                self.graph.erase_node(item.node)
        module = fx.GraphModule(self.holder, self.graph, "CapturedGraph")
        return module, used


def _before_the_graph(fake: object) -> CapturedFacts:
    """What an input is before the graph changes it."""
    if not isinstance(fake, torch.Tensor):
        return CapturedFacts(version=version_of(fake))
    layout = (fake.size(), fake.stride()) if fake.layout is torch.strided else None
    return CapturedFacts(version=version_of(fake), grad_fn=fake.grad_fn, layout=layout)


def drop_unused(graph: fx.Graph) -> None:
    """Remove calls without users and without effects, last first.

    Those that may raise because of data stay, since eager runs them.
    """
    for node in reversed(graph.nodes):
        if node.users or node.op not in ("call_function", "call_method") or _has_effect(node):
            continue
        graph.erase_node(node)


def _may_raise(node: fx.Node) -> bool:
    """Whether a call may raise because of data."""
    notes = captured_facts(node).notes
    return (notes is not None and notes.refuses) or takes_data(node)


def version_of(value: object) -> int:
    """How often a tensor was written; 0 if that is not counted."""
    if not isinstance(value, torch.Tensor) or value.is_inference():
        return 0
    return value._version


def storages(values: Iterable[object]) -> set[int]:
    """The memory of the tensors among the values, also of those in tuples and lists of them."""
    flat = (part for value in values
            for part in (value if isinstance(value, (tuple, list)) else (value,)))
    return {_without_transforms(part).untyped_storage()._cdata for part in flat
            if isinstance(part, torch.Tensor) and part.layout is torch.strided}


def _without_transforms(tensor: torch.Tensor) -> torch.Tensor:
    """What the wrappers of torch.func transforms are around."""
    while is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor


def target_name(node: fx.Node) -> str:
    """The name of the function or method that a node calls; empty if it has none."""
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")


def is_of_torch(node: fx.Node) -> bool:
    """Whether the node calls a function of PyTorch or Python, not one of the program."""
    home = getattr(node.target, "__module__", None) or ""
    return isinstance(node.target, str) or not home or home.startswith(
        ("torch", "_operator", "builtins", "math"))


def nodes_of_subgraphs(node: fx.Node) -> Iterator[fx.Node]:
    """The nodes of the graphs that a node runs."""
    for argument in node.all_input_nodes:
        body = argument.meta.get("example_value")
        if argument.op == "get_attr" and isinstance(body, fx.GraphModule):
            yield from body.graph.nodes


def runs_unseen_code(node: fx.Node) -> bool:
    """Whether the node runs code of the program that capture has not interpreted."""
    function = program_function(node)
    return function is not None and function.is_unseen


def draws(node: fx.Node) -> bool:
    """Whether the call, or a subgraph that it runs, draws from a random generator."""
    if draws_by_name(target_name(node)) or runs_unseen_code(node):
        return True
    return any(map(draws, nodes_of_subgraphs(node)))


@cache
def draws_by_name(name: str) -> bool:
    """Whether an operator of that name draws from a random generator."""
    packet = getattr(torch.ops.aten, name, None)
    overloads = packet.overloads() if packet is not None else ()
    return any(torch.Tag.nondeterministic_seeded in getattr(packet, o).tags for o in overloads)


def _is_of_program(node: fx.Node) -> bool:
    """Whether the node runs code of the program, which may raise: a custom operator or function."""
    home = getattr(node.target, "__module__", None) or ""
    namespace = home.removeprefix("torch._ops.").removeprefix("torch.ops.")
    if namespace != home:
        return namespace not in _NAMESPACES_OF_TORCH
    return not is_of_torch(node) and not home.startswith("weft.")


def _has_effect(node: fx.Node) -> bool:
    """Whether dropping the call could be noticed; True if in doubt."""
    name = target_name(node)
    if node.target in _IMPURE or "out" in node.kwargs or node.kwargs.get("inplace") is True:
        return True
    if captured_facts(node).has_effect or draws(node) or _may_raise(node) or _is_of_program(node):
        return True
    return (name.endswith("_") and not name.endswith("__")) or name.startswith("__i")
