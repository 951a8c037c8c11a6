"""Templates: what a Python function does to tensors, recorded once as a small graph to copy.

Place in the pipeline: used by passes that put other operators in the place of some: `expand.py`
(decompositions) and `replace_patterns.py`::

    template = record(gelu_by_erf, [x_fake], {}, evaluator)
    copies = copy_before(old, template, [x])     # its operators before `old`, by their originals
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from weft._torch import FakeTensor
from weft.aot.evaluate import Evaluator
from weft.aot.tracing.functionalize import Functionalizer
from weft.aot.tracing.record import Recorder
from weft.aot.views import Unsupported, restride
from weft.shapes.algebra.layout import has_strides
from weft.shapes.fakes.without_sympy import without_sympy
from weft.shapes.graph_nodes import add_node, results_of
from weft.shapes.symnode import certainly_equal


@final
class Template:
    """A recorded function: a graph with one placeholder per tensor argument, in order.

    Its output is a node, or a list of nodes and None if the function has several results.
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


def record(
    function: Callable[..., Any], args: Sequence[object], kwargs: Mapping[str, object],
    evaluator: Evaluator, expected: Any = None,
) -> Template:
    """Run a function on fakes like the exemplars among its arguments, and record what it does.

    expected: what the results must look like (they are converted); None: as they are. Raises
    Unsupported if they cannot, or if the function uses a constant tensor.
    """
    graph = Graph()
    tensors = Functionalizer(graph, evaluator)
    recorder = Recorder(tensors, _no_lifting)
    placeholders: list[Node] = []

    def live(value: Any) -> Any:
        """The value with fakes for exemplars, and plain containers, which the function may
        change."""
        if isinstance(value, FakeTensor):
            placeholder = tensors.placeholder(f"a{len(placeholders)}", value)
            placeholders.append(placeholder)
            tensor = evaluator.like(value)
            tensors.add_base(tensor, placeholder)
            return tensor
        if isinstance(value, Mapping):
            return {k: live(v) for k, v in value.items()}
        if isinstance(value, list):
            return [live(v) for v in value]
        return tuple(live(v) for v in value) if isinstance(value, tuple) else value

    arguments, named = live(list(args)), live(kwargs)
    with torch.no_grad(), recorder, without_sympy():
        result = function(*arguments, **named)
        outputs = recorder.nodes(result) if expected is None else _outputs(
            result, expected, recorder)
    return Template(graph, placeholders, outputs)


def copy_before(place: Node, template: Template, operands: Sequence[Node]) -> dict[Node, Node]:
    """Copy a template before a node, whose lines and facts the copies get; returns the copies."""
    copies = dict(zip(template.placeholders, operands, strict=True))
    with place.graph.inserting_before(place):
        for inner in template.graph.nodes:
            if inner.op == "call_function":
                copies[inner] = add_node(
                    place.graph, inner.target, map_arg(inner.args, copies.__getitem__),
                    map_arg(inner.kwargs, copies.__getitem__),
                    {**place.meta, "val": inner.meta["val"]})
    return copies


def _no_lifting(tensor: torch.Tensor) -> FakeTensor:
    raise Unsupported("a template with a constant tensor")


def _outputs(result: Any, expected: Any, recorder: Recorder) -> object:
    """The template's output nodes, with the metadata of the replaced operator's own results."""
    if isinstance(expected, FakeTensor):
        return _output(result, expected, recorder)
    if not isinstance(result, (tuple, list)) or len(result) != len(expected):
        raise Unsupported("a template with other results than its operator")
    return [_output(r, e, recorder) for r, e in zip(result, expected, strict=True)]


def _output(result: object, expected: object, recorder: Recorder) -> Node | None:
    if not isinstance(expected, FakeTensor):
        return None
    if not isinstance(result, torch.Tensor):
        raise Unsupported("a template with a result that is no tensor")
    if _is_wider(result.dtype, expected.dtype):
        result = result.to(expected.dtype)
    if result.dtype != expected.dtype:
        raise Unsupported("a template with a result of another dtype than its operator")
    if not certainly_equal(result.size(), expected.size()):
        raise Unsupported("a template with a result of other sizes than its operator")
    node = recorder.node(result)
    if node.op == "placeholder":
        node = recorder.emit(torch.ops.aten.clone.default, node)
    node = restride(recorder.emit, node, expected.stride())
    value = node.meta["val"]
    if not has_strides(value.size(), value.stride(), expected.stride(), certainly_equal):
        raise Unsupported("a template with a result of other strides than its operator")
    return node


def _is_wider(a: torch.dtype, b: torch.dtype) -> bool:
    return a.is_floating_point and b.is_floating_point and a.itemsize > b.itemsize
