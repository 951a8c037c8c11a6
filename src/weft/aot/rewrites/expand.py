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

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from weft._torch import FakeTensor, OpOverload
from weft.aot.data_dependent import bound_names
from weft.aot.evaluate import Evaluator
from weft.aot.operators import Kind, facts
from weft.aot.rewrites.decompositions import OURS, Decomposition, find
from weft.aot.tracing.functionalize import Functionalizer
from weft.aot.tracing.record import Recorder
from weft.aot.views import Unsupported, restride
from weft.passes.node_key import exact_key
from weft.shapes.algebra.layout import has_strides
from weft.shapes.fakes.without_sympy import without_sympy
from weft.shapes.graph_facts import aten_facts, graph_facts
from weft.shapes.graph_nodes import add_node, results_of
from weft.shapes.symnode import UndecidedValue, certainly_equal

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
class Template:
    """A recorded decomposition: a graph with one placeholder per tensor argument, in order.

    Its output is a node, or a list of nodes and None if the operator has several results.
    """

    __slots__ = ("graph", "placeholders")

    def __init__(self, graph: Graph, placeholders: list[Node], outputs: Any) -> None:
        self.graph = graph
        self.placeholders = placeholders
        graph.output(outputs)

    @property
    def outputs(self) -> Any:
        """The nodes of the results, after further expansion."""
        return results_of(self.graph)


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
        env: dict[Node, Node] = dict(
            zip(template.placeholders, _tensor_arguments(node), strict=True)
        )
        with self.graph.inserting_before(node):
            for inner in template.graph.nodes:
                if inner.op == "call_function":
                    env[inner] = self._copy(inner, env, node)
        outputs = template.outputs
        if isinstance(outputs, Node):
            node.replace_all_uses_with(env[outputs])
        else:
            _replace_items(node, [o if o is None else env[o] for o in outputs])
        if not node.users:
            self.graph.erase_node(node)
        self.count += 1

    def _copy(self, inner: Node, env: dict[Node, Node], origin: Node) -> Node:
        return add_node(
            self.graph,
            inner.target,
            map_arg(inner.args, env.__getitem__),
            map_arg(inner.kwargs, env.__getitem__),
            {**origin.meta, "val": inner.meta["val"]},
        )


def _record(node: Node, decomposition: Decomposition, evaluator: Evaluator) -> Template:
    """Run a decomposition on fakes and record what it does."""
    graph = Graph()
    tensors = Functionalizer(graph, evaluator)
    recorder = Recorder(tensors, _no_lifting)
    placeholders: list[Node] = []
    fakes: dict[Node, torch.Tensor] = {}

    def fake_of(argument: Any) -> Any:
        if not isinstance(argument.meta["val"], FakeTensor):
            return argument.meta["val"]
        placeholder = tensors.placeholder(f"a{len(placeholders)}", argument.meta["val"])
        placeholders.append(placeholder)
        live = evaluator.like(argument.meta["val"])
        tensors.add_base(live, placeholder)
        fakes[placeholder] = live
        return live

    args = _thaw(map_arg(node.args, fake_of))
    kwargs = _thaw(map_arg(node.kwargs, fake_of))
    with torch.no_grad(), recorder, without_sympy():
        result = decomposition(*args, **kwargs)
        outputs = _outputs(result, node.meta["val"], recorder)
    return Template(graph, placeholders, outputs)


def _thaw(value: object) -> Any:
    """Plain lists and dictionaries instead of fx's immutable ones, because decompositions may
    change them."""
    if isinstance(value, dict):
        return {k: _thaw(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_thaw(v) for v in value]
    return tuple(_thaw(v) for v in value) if isinstance(value, tuple) else value


def _no_lifting(tensor: torch.Tensor) -> FakeTensor:
    raise Unsupported("a decomposition with a constant tensor")


def _outputs(result: Any, expected: Any, recorder: Recorder) -> object:
    """The template's output nodes, with the metadata of the operator's own results."""
    if isinstance(expected, FakeTensor):
        return _output(result, expected, recorder)
    if not isinstance(result, (tuple, list)) or len(result) != len(expected):
        raise Unsupported("a decomposition with other results than its operator")
    return [_output(r, e, recorder) for r, e in zip(result, expected, strict=True)]


def _output(result: object, expected: object, recorder: Recorder) -> Node | None:
    if not isinstance(expected, FakeTensor):
        return None
    if not isinstance(result, torch.Tensor):
        raise Unsupported("a decomposition with a result that is no tensor")
    if _is_wider(result.dtype, expected.dtype):
        result = result.to(expected.dtype)
    if result.dtype != expected.dtype:
        raise Unsupported("a decomposition with a result of another dtype than its operator")
    if not certainly_equal(result.size(), expected.size()):
        raise Unsupported("a decomposition with a result of other sizes than its operator")
    node = recorder.node(result)
    if node.op == "placeholder":
        node = recorder.emit(torch.ops.aten.clone.default, node)
    node = restride(recorder.emit, node, expected.stride())
    value = node.meta["val"]
    if not has_strides(value.size(), value.stride(), expected.stride(), certainly_equal):
        raise Unsupported("a decomposition with a result of other strides than its operator")
    return node


def _is_wider(a: torch.dtype, b: torch.dtype) -> bool:
    return a.is_floating_point and b.is_floating_point and a.itemsize > b.itemsize



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
