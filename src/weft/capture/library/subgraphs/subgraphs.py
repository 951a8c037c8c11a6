"""Subgraphs: a function's body as a graph module of its own, for operators that take functions.

Place in the pipeline: used by the rules of checkpoint, cond and the like. While the body is
interpreted its calls go to a `SubgraphBuilder`; tensors of the outer graph that it uses become its
inputs::

    body = capture_subgraph(tx, function, args, {})
    node = tx.builder.call(operator, (body.module_node(tx), *body.inputs), ...)
    result = body.result(tx, node)
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

import torch
from torch import fx

from weft.capture.core.base import Args, Kwargs, SymbolicValue
from weft.capture.core.breaks import graph_break
from weft.capture.core.graph import CallRecorder, GraphBuilder, GraphInput, drop_unused
from weft.capture.core.source import Source
from weft.capture.library.containers.mapping import DictValue
from weft.capture.library.containers.named_tuples import NamedTupleValue
from weft.capture.library.containers.sequences import ListValue, TupleValue
from weft.capture.library.tensors.tensor import TensorValue, wrap_result
from weft.shapes.algebra.expr import symbols
from weft.shapes.symnode import expr_of

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter


@final
class SubgraphBuilder(CallRecorder):
    """Records calls in a graph of its own; nodes of the outer graph are lifted to inputs."""

    has_foreign_nodes = True

    def __init__(self, outer: GraphBuilder | SubgraphBuilder, n_learned: int) -> None:
        super().__init__()
        self.outer = outer
        self.lifted: dict[fx.Node, fx.Node] = {}
        self.hides_grad_mode = bool(getattr(outer, "hides_grad_mode", False))
        """Whether the body runs in another gradient mode than the one it is captured in."""
        self._last: fx.Node | None = None
        self.n_learned = n_learned
        """What was known before the body."""

    @property
    def inputs(self) -> list[GraphInput]:
        """The inputs of the outermost graph."""
        return self.outer.inputs

    def placeholder(self, source: Source, fake: object, example: object) -> fx.Node:
        """Outside tensors become inputs of the outermost graph."""
        return self.outer.placeholder(source, fake, example)

    def local(self, node: fx.Node) -> fx.Node:
        """The node of this graph that stands for `node`."""
        if node.graph is self.graph:
            return node
        placeholder = self.lifted.get(node)
        if placeholder is None:
            placeholder = self.lifted[node] = self._input(node)
        return placeholder

    def _input(self, node: fx.Node) -> fx.Node:
        outer = self.outer.local(node)
        return self.new_input(outer.name, outer.meta.get("example_value"))

    def new_input(self, name: str, example: object) -> fx.Node:
        """Add a placeholder."""
        before = (self.graph.inserting_after(self._last) if self._last is not None
                  else self.graph.inserting_before(next(iter(self.graph.nodes), None)))
        with before:
            placeholder = self.graph.create_node("placeholder", name, (), {}, name)
        placeholder.target = placeholder.name  # unlike the requested name, it is unique
        placeholder.meta["example_value"] = example
        self._last = placeholder
        return placeholder

    def add_module(self, module: fx.GraphModule) -> str:
        return self.outer.add_module(module)


@contextmanager
def rehearsal(tx: Interpreter, what: str, args: Sequence[SymbolicValue]
              ) -> Iterator[dict[Source, None]]:
    """Interpret what is inside into a graph that is thrown away; it may not have effects.

    What the rehearsed code reads is guarded by identity, except the tensors in `args` and their
    sizes. The context's value has all the sources that it reads.
    """
    outside, tx.guards.noted = tx.guards.noted, {}
    try:
        with _rehearsed(tx, what, args):
            yield tx.guards.noted
    finally:
        tx.guards.noted = outside


@contextmanager
def _rehearsed(tx: Interpreter, what: str, args: Sequence[SymbolicValue]) -> Iterator[None]:
    outer, touches = tx.builder, tx.effects.n_touches
    grad_mode = torch.is_grad_enabled()
    tx.builder = inner = SubgraphBuilder(outer, tx.shapes.n_learned())
    outer.has_foreign_nodes = True
    torch.set_grad_enabled(False)
    try:
        yield
    finally:
        torch.set_grad_enabled(grad_mode)
        _leave(tx, outer)
    if tx.effects.n_touches != touches:
        raise graph_break("unknown-operation", f"{what} changes outside state")
    arg_nodes: set[fx.Node] = set()
    fx.node.map_arg([arg.proxy(tx) for arg in args], arg_nodes.add)
    sizes = _sizes_of(args)
    for read in outer.inputs:
        if read.node in inner.lifted and read.node not in arg_nodes and (
                _symbol(read.node) not in sizes):
            tx.guards.identity(read.source, read.example)


def _leave(tx: Interpreter, outer: object) -> None:
    """Go on in the outer graph, which has no nodes for the numbers of the inner one, and nothing of
    what its checks make sure of: the inner one may not run, or has run already."""
    inner, tx.builder = tx.builder, outer
    nodes = tx.numbers.nodes
    for key, node in [*nodes.items()]:
        if isinstance(node, fx.Node) and node.graph is inner.graph:
            del nodes[key]
    tx.shapes.forget_assumptions(inner.n_learned)


def _sizes_of(args: Sequence[SymbolicValue]) -> set[object]:
    """The symbols in the tensors' sizes: in later calls they are read from those tensors again."""
    tensors = [arg.example for arg in args if isinstance(arg, TensorValue)]
    return {symbol for tensor in tensors for n in tensor.shape for symbol in symbols(expr_of(n))}


def _symbol(node: fx.Node) -> object:
    """The symbol that an input stands for, or None for a tensor."""
    value = node.meta["example_value"]
    return expr_of(value) if isinstance(value, torch.SymInt) else None


@final
@dataclass(slots=True)
class Subgraph:
    """A captured body: its module, the outer nodes that it takes, and its result."""

    module: fx.GraphModule
    inputs: list[fx.Node]
    outputs: list[TensorValue]
    value: SymbolicValue
    _tensors: dict[int, TensorValue] = field(default_factory=dict)

    def module_node(self, tx: Interpreter) -> fx.Node:
        """The `get_attr` node that holds the module."""
        name = tx.builder.add_module(self.module)
        node: fx.Node = tx.builder.graph.create_node("get_attr", name, (), {})
        node.meta["example_value"] = self.module
        return node

    def examples(self) -> tuple[torch.Tensor, ...]:
        """The outputs' fakes."""
        return tuple(output.example for output in self.outputs)

    def result(self, tx: Interpreter, node: fx.Node) -> SymbolicValue:
        """The value of the body's result, with its tensors taken from the outputs of the call
        `node`."""
        examples = node.meta["example_value"]
        for index, (output, example) in enumerate(zip(self.outputs, examples, strict=True)):
            part = tx.builder.call(operator.getitem, (node, index), {}, example, node.meta["stack"])
            tensor = wrap_result(tx, part, example)
            assert isinstance(tensor, TensorValue)
            self._tensors[id(output)] = tensor
        return self._replace(tx, self.value)

    def _replace(self, tx: Interpreter, value: SymbolicValue) -> SymbolicValue:
        if isinstance(value, TensorValue):
            return self._tensors[id(value)]
        if isinstance(value, NamedTupleValue):
            return NamedTupleValue([self._replace(tx, i) for i in value.items], None, value.cls)
        if isinstance(value, (ListValue, TupleValue)):
            return type(value)([self._replace(tx, item) for item in value.all(tx)])
        if isinstance(value, DictValue):
            dictionary = DictValue(cls=value.cls)
            for key, item in value.pairs(tx):
                dictionary.setitem(tx, key, self._replace(tx, item))
            return dictionary
        return value


def capture_subgraph(tx: Interpreter, function: SymbolicValue, args: Args, kwargs: Kwargs,
                     *, fresh: bool = False, hides_grad_mode: bool = False) -> Subgraph:
    """Interpret the call into a subgraph. A graph break or an effect on outside state in it is a
    break here.

    fresh: the tensors in `args` become the first inputs, which are not those of the outer graph.
    hides_grad_mode: reading the gradient mode is a break.
    """
    outer, builder = tx.builder, SubgraphBuilder(tx.builder, tx.shapes.n_learned())
    builder.hides_grad_mode |= hides_grad_mode
    effects = len(tx.effects)
    tx.builder = builder
    try:
        if fresh:
            args = [_fresh(builder, arg) for arg in args]
        value = tx.force(tx.call(function, args, kwargs))
    finally:
        _leave(tx, outer)
    if len(tx.effects) != effects:
        raise graph_break("unknown-operation", "a change of outside state within a subgraph")
    outputs: list[TensorValue] = []
    _collect(tx, value, outputs)
    nodes = tuple(_node_of(tx, builder, output) for output in outputs)
    builder.graph.output(nodes)
    drop_unused(builder.graph)
    builder.verify_checks()
    outer.has_foreign_nodes = True
    inputs = [outer.local(node) for node in builder.lifted]
    module = fx.GraphModule(_holder(outer), builder.graph, "Subgraph")
    return Subgraph(module, inputs, outputs, value)


def _fresh(builder: SubgraphBuilder, value: SymbolicValue) -> SymbolicValue:
    if not isinstance(value, TensorValue):
        raise graph_break("unknown-operation", f"{value!r} carried through a loop")
    example = value.example.detach()
    return TensorValue(example, builder.new_input("carried", example))


def _holder(builder: Any) -> torch.nn.Module:
    while not hasattr(builder, "holder"):
        builder = builder.outer
    holder: torch.nn.Module = builder.holder
    return holder


def _node_of(tx: Interpreter, builder: SubgraphBuilder, output: TensorValue) -> fx.Node:
    return builder.local(output.proxy(tx))


def _collect(tx: Interpreter, value: SymbolicValue, tensors: list[TensorValue]) -> None:
    """Append the tensors of a result to `tensors`, each once; anything else must be plain data."""
    value = tx.force(value)
    if isinstance(value, TensorValue):
        if value not in tensors:
            tensors.append(value)
    elif isinstance(value, (ListValue, TupleValue)):
        for item in value.all(tx):
            _collect(tx, item, tensors)
    elif isinstance(value, DictValue):
        for item in value.values(tx):
            _collect(tx, item, tensors)
    elif not value.is_constant:
        raise graph_break("unknown-operation", f"{value!r} as the result of a subgraph")
