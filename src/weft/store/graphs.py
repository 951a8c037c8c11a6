"""Graphs as data: captured ones, which may run again, and ATen graphs, which may be compiled.

Place in the pipeline: used by `writer.py` and `reader.py`. Nodes are lists; what other data of the
entry may share, or the program owns, stands beside them and is read with the entry::

    graph_to_data(writer, gm.graph, gm)     # {"nodes": [["placeholder", "x", ...], ...], ...}
    GraphAsData(data, outer)                # a graph again, when somebody asks for it

A second process needs most graphs never: `create_graph=True` runs a captured one, an unusual
backward compiles an ATen graph. So they are made when they are asked for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, final

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.immutable_collections import immutable_dict, immutable_list

from weft._torch import FakeTensor
from weft.shapes.algebra.expr import Expr
from weft.shapes.context import ShapeContext
from weft.shapes.fakes.fake_mode import MemoFakeMode
from weft.shapes.fakes.make_fake import make_fake, make_template
from weft.shapes.graph_facts import AtenFacts, aten_facts, marked
from weft.store import sizes
from weft.store.errors import NotStorable
from weft.store.identity import Data

if TYPE_CHECKING:  # loaded with the entries that need it
    from weft.aot.training.backwards import Backwards, OnDisk

_DEFAULT: Final = AtenFacts()


class Values(Protocol):
    """What writes the objects that nodes refer to."""

    def constant(self, obj: Any) -> Data:
        """A constant, or what a library defines; None if it is neither."""

    def value(self, obj: Any) -> Data:
        """Any object that the entry needs."""


# -- to data ---------------------------------------------------------------------------------------


def graph_to_data(values: Values, graph: Graph, owner: GraphModule | None = None) -> Data:
    """A graph: an ATen graph, or a captured one with the module that `owner` its constants."""
    return _GraphWriter(values, owner).data(graph)


@final
class _GraphWriter:
    def __init__(self, values: Values, owner: GraphModule | None) -> None:
        self.values = values
        self.owner = owner
        self.is_aten = owner is None
        self.numbers: dict[Node, int] = {}
        self.outer: list[Data] = []
        self.contexts: list[ShapeContext] = []
        self.symbols: set[Expr] = set()

    def data(self, graph: Graph) -> Data:
        nodes = [self.node(node) for node in graph.nodes]
        if len(self.contexts) > 1:
            raise NotStorable("it has a graph of two captures")
        known = [sizes.context_to_data(context, self.symbols) for context in self.contexts]
        return {"nodes": nodes, "known": known, "outer": self.outer}

    def node(self, node: Node) -> Data:
        self.numbers[node] = len(self.numbers)
        target = node.target
        data = [node.op, node.name, target if isinstance(target, str) else self.item(target),
                self.item(node.args), self.item(node.kwargs)]
        if node.op == "get_attr":
            data.append(self.shared(_attribute(self.owner, str(target))))
        elif self.is_aten and node.op != "output":
            data += [self.item(node.meta["val"]), self.facts(aten_facts(node))]
        return data

    def facts(self, facts: AtenFacts) -> Data:
        return [[field.name, self.item(value)] for field in fields(facts)
                if (value := getattr(facts, field.name)) != getattr(_DEFAULT, field.name)]

    def item(self, obj: Any) -> Data:
        """An operand, a target, a value of metadata."""
        kind = type(obj)
        if kind is Node:
            return ["node", self.numbers[obj]]
        rule = _ITEMS.get(kind)
        if rule is not None:
            return rule(self, obj)
        constant = self.values.constant(obj)
        return self.shared(obj) if constant is None else ["", constant]

    def shared(self, obj: Any) -> Data:
        """What is not the graph's own."""
        self.outer.append(self.values.value(obj))
        return ["outer", len(self.outer) - 1]

    def number(self, number: torch.SymInt) -> Data:
        """A symbolic size."""
        context: ShapeContext = number.node.shape_env
        if context not in self.contexts:
            self.contexts.append(context)
        self.symbols |= sizes.symbols_in(number)
        return ["size", sizes.to_data(number.node.value)]

    def fake(self, fake: FakeTensor) -> Data:
        if fake.layout is not torch.strided or fake.is_quantized or fake.is_conj() or fake.is_neg():
            raise NotStorable("its backward has tensors of another layout")
        return ["fake", self.values.constant(fake.dtype), self.values.constant(fake.device),
                self.item(tuple(fake.size())), self.item(tuple(fake.stride()))]


def _attribute(owner: GraphModule | None, path: str) -> Any:
    obj: Any = owner
    for name in path.split("."):
        obj = getattr(obj, name)
    return obj


def _sequence(name: str) -> Callable[[_GraphWriter, Any], Data]:
    return lambda writer, items: [name, *map(writer.item, items)]


def _pairs(writer: _GraphWriter, items: Any) -> Data:
    return ["{}", *([key, writer.item(value)] for key, value in items.items())]


_ITEMS: Final[dict[type, Callable[[_GraphWriter, Any], Data]]] = {
    tuple: _sequence("()"), list: _sequence("[]"), immutable_list: _sequence("[]"),
    torch.Size: _sequence("()"),
    dict: _pairs, immutable_dict: _pairs,
    slice: lambda writer, s: ["slice", *map(writer.item, (s.start, s.stop, s.step))],
    torch.SymInt: _GraphWriter.number,
    type(None): lambda writer, obj: ["", None],
    FakeTensor: _GraphWriter.fake,
}


# -- from data -------------------------------------------------------------------------------------


@final
class GraphAsData:
    """A stored graph, which is made when somebody asks for it."""

    def __init__(self, data: Data, outer: Sequence[Any], constant: Callable[[Data], Any],
                 on_disk: Forms | None) -> None:
        self.data = data
        self.outer = outer
        self.constant = constant
        self._on_disk = on_disk

    def on_disk(self, backwards: Backwards) -> OnDisk:
        """The backwards that were compiled from it."""
        assert self._on_disk is not None
        return self._on_disk(backwards, self)

    @cached_property
    def graph(self) -> Graph:
        """The graph."""
        return self.module.graph

    @cached_property
    def module(self) -> GraphModule:
        """The graph as a module."""
        return _GraphReader(self).module()

    def forward(self, *inputs: Any) -> Any:
        """Run a captured graph."""
        return self.module.forward(*inputs)

    def digest(self) -> str:
        """A hash of the graph."""
        return digest_of(self.data)


def digest_of(data: Data) -> str:
    """A hash of a graph's data."""
    text = json.dumps([data["nodes"], data["known"]]).encode("utf-8", "surrogatepass")
    return hashlib.sha256(text).hexdigest()


Forms: TypeAlias = "Callable[[Backwards, GraphAsData], OnDisk]"
"""Where what is compiled of a graph is kept."""


@final
class _GraphReader:
    def __init__(self, stored: GraphAsData) -> None:
        self.stored = stored
        self.nodes: list[Node] = []
        self.mode = MemoFakeMode(raises_refusals=True)
        self.context = next(map(sizes.context_of, stored.data["known"]), None) or ShapeContext()

    def module(self) -> GraphModule:
        graph, root = Graph(), torch.nn.Module()
        for op, name, target, args, kwargs, *more in self.stored.data["nodes"]:
            if op == "get_attr":
                target = target.replace(".", "_")
                setattr(root, target, self.item(more[0]))
            node = Node(graph, name, op, target if isinstance(target, str) else self.item(target),
                        self.item(args), self.item(kwargs))
            graph._graph_namespace.associate_name_with_obj(name, node)
            graph._insert(node)
            graph._find_nodes_lookup_table.insert(node)
            graph._len += 1
            if op != "get_attr" and more:
                value, facts = more
                node.meta.update({"val": self.item(value), "stack": (), **marked(AtenFacts(**{
                    field: self.item(item) for field, item in facts}))})
            self.nodes.append(node)
        return GraphModule(root, graph)

    def item(self, data: Data) -> Any:
        kind, *rest = data
        if kind == "":
            return self.stored.constant(rest[0])
        if kind == "node":
            return self.nodes[rest[0]]
        if kind == "outer":
            return self.stored.outer[rest[0]]
        if kind == "{}":
            return {key: self.item(value) for key, value in rest}
        if kind == "size":
            return self.context.as_int(sizes.from_data(rest[0]))
        if kind == "fake":
            dtype, device, *geometry = rest
            return self.fake(self.stored.constant(dtype), self.stored.constant(device),
                             *map(self.item, geometry))
        return _SEQUENCES[kind](*map(self.item, rest))

    def fake(self, dtype: torch.dtype, device: torch.device, size: Any, stride: Any) -> FakeTensor:
        return make_fake(self.mode, make_template(size, stride, 0, dtype), device)


_SEQUENCES: Final[dict[str, Callable[..., Any]]] = {
    "()": lambda *items: items, "[]": lambda *items: list(items), "slice": slice}
