"""Sizes and numbers that depend on data, in ATen graphs.

Place in the pipeline: around all of `compile_aot`. While a graph is traced and its passes run,
operators like `nonzero` may introduce unbacked symbols; their node says where running code finds
the values (`AtenFacts.binds`). What had to be assumed about them (equal sizes, indices that count
from the front) is checked when the graph runs (`GraphFacts.asserts`); if a check fails, the
captured graph runs instead::

    nonzero: i64[u0, 2] = aten.nonzero.default(x)        # binds u0 = nonzero.size(0)
    item: u1 = aten._local_scalar_dense.default(n)       # binds u1
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from weft._torch import FakeTensor
from weft.aot.evaluate import Evaluator
from weft.shapes.asserts import binds
from weft.shapes.context import ShapeContext
from weft.shapes.fakes.data_dependent import is_mask
from weft.shapes.graph_facts import graph_facts
from weft.shapes.symnode import extents


@contextmanager
def data_symbols(gm: GraphModule, example_inputs: Sequence[Any]) -> Iterator[ShapeContext]:
    """Set the context that makes symbols for data-dependent values while a graph is compiled."""
    context = graph_facts(gm).shapes or _context_of(gm, example_inputs) or ShapeContext()
    mode, data = Evaluator.current().mode, context.data
    before = mode.symbols, context.asserts, data.fakes_are_tensors, data.may_expect
    mode.symbols, context.asserts = context, []
    data.fakes_are_tensors = False
    data.assuming = data.may_expect = data.may_check = True
    context.unbacked_symbols.take_fresh()
    context.forget_assumptions()  # the checks that establish them are traced now
    data.earlier_answers = iter(())
    try:
        yield context
    finally:
        data.earlier_answers = None
        data.assuming = data.may_check = False
        mode.symbols, context.asserts, data.fakes_are_tensors, data.may_expect = before


@contextmanager
def expecting(symbols: ShapeContext) -> Iterator[None]:
    """While tracing, assume the expected answer to questions of operators about data, and check it
    later."""
    symbols.data.expects = True
    try:
        yield
    finally:
        symbols.data.expects = False


def _context_of(gm: GraphModule, example_inputs: Sequence[object]) -> ShapeContext | None:
    """The context of a symbolic size among the inputs."""
    placeholders = [n.meta.get("example_value") for n in gm.graph.nodes if n.op == "placeholder"]
    for value in (*placeholders, *example_inputs):
        sizes = extents(value) if isinstance(value, FakeTensor) else (value,)
        for size in sizes:
            if isinstance(size, torch.SymInt | torch.SymFloat):
                context: ShapeContext = size.node.shape_env
                return context
    return None


def with_positions(args: Sequence[object]) -> tuple[Any, Any, Any]:
    """The arguments of `target[key] = value` with masks replaced by positions.

    The value's gradient is what the backward finds at the positions, and their number is better
    known before.
    """
    target, key, value = args
    if not isinstance(value, torch.Tensor) or not value.requires_grad or not value.dim():
        return target, key, value
    items = key if isinstance(key, tuple) else (key,)
    if not any(is_mask(item) and item.dim() for item in items):
        return target, key, value
    indices: list[Any] = []
    for item in items:
        mask = is_mask(item) and item.dim()
        indices += torch.nonzero(item, as_tuple=True) if mask else [item]
    return target, tuple(indices), value


def bound_names(graph: Graph) -> dict[str, Node]:
    """The node that binds each symbol."""
    return {b.name: node for node in graph.nodes for b in binds(node)}
