"""Materialization: which formulas with several users become memory, and which are recomputed.

Place in the pipeline: used by `graph.py` after each node. Memory costs nothing if the users are
fused with the formula and read it point by point (`scheduling/schedule.py` passes the value on), so
a formula of some cost gets a buffer. Otherwise it costs a store, loads, and a kernel of its own.
That is so if a user reads it at *other* points: a rotary embedding takes elements `j` and `j + 64`
of a normalised row. A formula that loads little more than one tensor of its own size, without
expensive functions, is then better recomputed; one that loads less (pairwise differences) always
is::

    normed = x * rsqrt(mean + eps) * weight          # mean: one number a row, a buffer
    normed * cos + cat(-normed[..., 64:], normed[..., :64]) * sin          # one kernel
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import torch
from torch.fx import Node

from weft.codegen.access import emitter_for
from weft.codegen.domain import Domain
from weft.codegen.ir.loop_ir import Indirect, Load, Op, Reduce
from weft.codegen.ir.scalar_ops import DEAR
from weft.codegen.values import Emitter, Strided, Value, estimate
from weft.shapes.algebra.expr import symbols
from weft.shapes.symnode import expr_of

aten = torch.ops.aten

MOST_OPERATORS: Final = 12
"""The most operators of a formula that is computed again at other points."""

SPREAD: Final = 8
"""A formula may become a table if its users have at least this many times its elements."""

MANY: Final = 4096
"""The least elements of a user for which the table's kernel pays off."""

TABLE_OPERATORS: Final = 5
"""A formula with more operators takes longer to compute than to load."""

MOVING: Final = frozenset({
    aten.slice.Tensor, aten.select.int, aten.flip.default, aten.roll.default,
    aten.constant_pad_nd.default, aten.cat.default,
})
"""Operators that move elements to other points."""

RESHAPING: Final = frozenset({
    aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.permute.default,
    aten.transpose.int, aten.t.default, aten.unsqueeze.default, aten.squeeze.dim,
    aten.expand.default, aten.clone.default, aten.alias.default,
})


def should_realize(value: Value, node: Node) -> bool:
    """Whether a node's formula is too expensive to be recomputed by each of the node's users."""
    impl = value.impl
    if isinstance(impl, Strided):
        return False
    count = math.prod(value.shape)
    if isinstance(count, int) and count <= 1:
        return False
    if _is_spread(node) and _is_worth_a_table(value):
        return True
    if len(node.users) < 2 or (impl.cost < 4 and impl.reads < 2):
        return False
    loads = _large_loads_of(value)
    return loads is None or loads > (1 if _is_moved(node) else 0)


def _is_moved(node: Node, depth: int = 4) -> bool:
    """Whether a user, perhaps behind a view, reads the value at other points."""
    return any(
        user.target in MOVING
        or (depth > 0 and user.target in RESHAPING and _is_moved(user, depth - 1))
        for user in node.users
    )


def _is_spread(node: Node) -> bool:
    """Whether the users, perhaps behind views, compute many elements from each of the value's."""
    own = _elements(node)
    most = max((_elements(user) for user in _readers(node)), default=0)
    return most >= max(SPREAD * own, MANY)


def _readers(node: Node, depth: int = 4) -> Iterator[Node]:
    for user in node.users:
        if depth and user.target in RESHAPING:
            yield from _readers(user, depth - 1)
        yield user


def _elements(node: Node) -> int:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return 0
    return estimate(math.prod([expr_of(n) for n in value.shape]))


def _is_worth_a_table(value: Value) -> bool:
    """Whether an element takes longer to compute than to load."""
    em = evaluate_formula(value)
    operators = [n.name for n in em.nodes if isinstance(n, Op)]
    if value.device.type == "cpu" and any(isinstance(n, Indirect) for n in em.nodes):
        return True  # a check and a gather
    return any(name in DEAR for name in operators) or len(operators) > TABLE_OPERATORS


def _large_loads_of(value: Value) -> int | None:
    """The number of loads from tensors as large as the value; None if the formula has many or
    expensive operators."""
    em = evaluate_formula(value)
    if any(isinstance(n, Reduce) or (isinstance(n, Op) and n.name in DEAR) for n in em.nodes):
        return None
    if sum(isinstance(n, Op) for n in em.nodes) > MOST_OPERATORS:
        return None
    return _large_loads(em, estimate(math.prod(value.shape)))


def evaluate_formula(value: Value) -> Emitter:
    """A formula's nodes, over loops of its own."""
    kept = [n for n in value.shape if n != 1]
    domain = Domain(tuple(kept), (False,) * len(kept))
    variables = iter(domain.symbols())
    em = emitter_for(domain, domain.symbols())
    value.at(em, [0 if n == 1 else next(variables) for n in value.shape])
    return em


def _large_loads(em: Emitter, points: int) -> int:
    """The number of loads that touch more than an eighth as many elements as there are points."""
    loads = [n for n in em.nodes if isinstance(n, Load)]
    extents = {v.symbol: estimate(v.extent) for v in em.outer}
    touched = [
        math.prod([extents[s] for s in symbols(load.index) if s in extents]) for load in loads
    ]
    return sum(estimate(n) * 8 > points or bool(load.indirect)
               for n, load in zip(touched, loads, strict=True))
