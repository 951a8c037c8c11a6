"""Replaces operators that the code generator does not know by their decompositions.

Place in the pipeline: after tracing, before the passes. A decomposition is a Python function. It
runs once per distinct call (operator, argument metadata, constants) inside its own recorder, and
the recorded *template* is copied into the graph wherever that call occurs. A template is used only
if the code generator knows every operator in it: otherwise the library's own operator is faster::

    before:  y = aten.glu(x)
    after:   a = aten.slice(x, 1, 0, 2);  b = aten.slice(x, 1, 2, 4)
             s = aten.sigmoid(b);  y = aten.mul(a, s)
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, final

from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from weft._torch import FakeTensor, OpOverload
from weft.aot.data_dependent import bound_names
from weft.aot.evaluate import Evaluator
from weft.aot.operators import Kind, facts
from weft.aot.rewrites.decompositions import OURS, Decomposition, find
from weft.aot.rewrites.templates import Template, copy_before, record
from weft.aot.views import Unsupported
from weft.passes.node_key import exact_key
from weft.shapes.graph_facts import aten_facts, graph_facts
from weft.shapes.symnode import UndecidedValue

Lowered = Callable[[OpOverload], bool]


def expand(gm: GraphModule) -> bool:
    """Replace operators that are not `GraphFacts.lowered`."""
    lowered = graph_facts(gm).lowered
    assert lowered is not None
    expander = _Expander(gm.graph, lowered)
    for node in list(gm.graph.nodes):
        if node.op == "call_function" and isinstance(node.target, OpOverload):
            expander.visit(node)
    return expander.count > 0


@final
class _Expander:
    """One expansion run."""

    def __init__(self, graph: Graph, lowered: Lowered) -> None:
        self.graph = graph
        self.lowered = lowered
        self.evaluator = Evaluator.current()
        self.templates: dict[Any, Template | None] = {}
        self.count = 0

    def visit(self, node: Node) -> None:
        """Replace one node, if it should be replaced."""
        op: OpOverload = node.target  # type: ignore[assignment]
        if aten_facts(node).binds or (self.lowered(op) and op not in OURS):
            return  # a decomposition of ours takes the calls that it is better for
        decomposition = find(op)
        if decomposition is None:
            return
        key = _template_key(op, node)
        if key not in self.templates:
            self.templates[key] = None  # a call of itself, made by functionalisation
            self.templates[key] = self._template(node, decomposition)
        template = self.templates[key]
        if template is not None:
            self._instantiate(node, template)

    # -- templates ---------------------------------------------------------------------------------

    def _template(self, node: Node, decomposition: Decomposition) -> Template | None:
        """The template for a call, or None if the operator should be kept."""
        try:
            template = _record(node, decomposition, self.evaluator)
        except (Unsupported, NotImplementedError, UndecidedValue, ZeroDivisionError):
            return None
        if bound_names(template.graph):
            return None  # every copy would need its own symbols
        self._expand_within(template)
        wanted = all(self._known(n) for n in template.graph.nodes)
        return template if wanted else None

    def _expand_within(self, template: Template) -> None:
        """Expand the operators of a template that need decomposition themselves."""
        inner = _Expander(template.graph, self.lowered)
        inner.templates = self.templates
        for node in list(template.graph.nodes):
            if node.op == "call_function" and isinstance(node.target, OpOverload):
                inner.visit(node)

    def _known(self, node: Node) -> bool:
        if node.op != "call_function" or node.target is operator.getitem:
            return True
        assert isinstance(node.target, OpOverload)
        return self.lowered(node.target) or facts(node.target).kind is Kind.VIEW

    # -- use ---------------------------------------------------------------------------------------

    def _instantiate(self, node: Node, template: Template) -> None:
        """Copy a template in place of `node`."""
        env = copy_before(node, template, _tensor_arguments(node))
        outputs = template.outputs
        if isinstance(outputs, Node):
            node.replace_all_uses_with(env[outputs])
        else:
            _replace_items(node, [o if o is None else env[o] for o in outputs])
        if not node.users:
            self.graph.erase_node(node)
        self.count += 1


def _record(node: Node, decomposition: Decomposition, evaluator: Evaluator) -> Template:
    """A decomposition, recorded for the call."""
    args = map_arg(node.args, lambda n: n.meta["val"])
    kwargs = map_arg(node.kwargs, lambda n: n.meta["val"])
    return record(decomposition, args, kwargs, evaluator, node.meta["val"])


def _replace_items(node: Node, values: list[Node | None]) -> None:
    """Replace each `getitem(node, i)` by the i-th value."""
    for user in list(node.users):
        index: Any = user.args[1] if user.target is operator.getitem else None
        value = None if index is None else values[index]
        if value is not None:
            user.replace_all_uses_with(value)
            user.graph.erase_node(user)


def _tensor_arguments(node: Node) -> list[Node]:
    """The tensor arguments in the order in which `_record` makes placeholders."""
    tensors: list[Node] = []

    def visit(argument: Node) -> Node:
        if isinstance(argument.meta["val"], FakeTensor):
            tensors.append(argument)
        return argument

    map_arg(node.args, visit)
    map_arg(node.kwargs, visit)
    return tensors


def _template_key(op: OpOverload, node: Node) -> object:
    """The key of a call: constants are copied into the graph and compared exactly, tensors by
    metadata."""
    values = map_arg((node.args, tuple(node.kwargs.items())), _metadata_of)
    return (op, exact_key(values))


def _metadata_of(node: Node) -> Any:
    value = node.meta["val"]
    return ("t", id(value)) if isinstance(value, FakeTensor) else value
