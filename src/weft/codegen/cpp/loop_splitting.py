"""Loop splitting: a vectorised loop ends where a comparison changes, so that no lane needs a mask.

Place in the pipeline: used by `plan.py`; `loop_nests.py` prints the segments. Concatenation,
padding and rotary embeddings compare a loop variable with constants or sizes; between two such
places the comparison is known:

    for x in 0..64: where(x < 32, -b[x + 32], a[x - 32])
    →  for x in 0..32: -b[x + 32];   for x in 32..64: a[x - 32]
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cmp_to_key
from itertools import pairwise
from typing import Final, final

from weft.codegen.ir.loop_ir import (
    Const,
    IndexValue,
    Kernel,
    Load,
    LoopVar,
    Node,
    Op,
    Reduce,
    operands,
)
from weft.shapes.algebra.bounds import lower_bound
from weft.shapes.algebra.expr import (
    Expr,
    IntExpr,
    floor_div,
    maximum,
    minimum,
    split_linear,
    symbols,
)

MAX_SEGMENTS: Final = 4
"""The loop's body is printed once per segment: no more than this."""

_FALLING: Final = {"lt": True, "le": True, "gt": False, "ge": False}
"""Comparisons, and whether they are true of small left sides."""

_ABSORBING: Final = {"and_": False, "or_": True}
"""Operators on booleans, and the operand that settles the result."""


@final
@dataclass(frozen=True)
class Segment:
    """A part of a loop: the boolean nodes that are constant in it, those that equal another node
    there (`a and True`), and the nodes that are not needed."""

    start: IntExpr
    stop: IntExpr
    known: dict[int, bool]
    same: dict[int, Node]
    unused: frozenset[int]


def segments(kernel: Kernel, variable: LoopVar) -> list[Segment]:
    """Parts that cover the loop; in each of them all comparisons of its variable are constant.

    The loop is not cut at places whose order is unknown; parts may turn out empty.
    """
    places = _places(kernel, variable)
    cuts = list(dict.fromkeys(cut for _, _, cut in places if _within(cut, variable.extent)))
    if not 0 < len(cuts) < MAX_SEGMENTS:
        return []
    edges = _in_order([_clamp(cut, variable.extent) for cut in cuts])
    if edges is None:
        return []
    edges = [0, *edges, variable.extent]
    return [
        _segment(kernel, start, stop, _comparisons_at(places, variable.extent, edges, start))
        for start, stop in pairwise(edges)
    ]


def _segment(kernel: Kernel, start: IntExpr, stop: IntExpr, known: dict[int, bool]) -> Segment:
    """The segment in which these comparisons are known."""
    same: dict[int, Node] = {}
    for node in kernel.nodes:
        if isinstance(node, Op) and node.dtype == "bool":
            value = _logic(node, known, same)
            if isinstance(value, bool):
                known[node.id] = value
            elif value is not None:
                same[node.id] = value
    return Segment(start, stop, known, same, _unused(kernel, known, same))


def _logic(node: Op, known: dict[int, bool], same: dict[int, Node]) -> bool | Node | None:
    """The result of an operator on booleans: a constant, one of its operands, or something new."""
    values = [_value(a, known) for a in node.args]
    if node.name == "not_":
        return None if values[0] is None else not values[0]
    settling = _ABSORBING.get(node.name)
    if settling is None or node.id in known:
        return None
    if settling in values:
        return settling
    others = [a for a, value in zip(node.args, values, strict=True) if value is None]
    if not others:
        return not settling
    return same.get(others[0].id, others[0]) if len(others) == 1 else None


def is_cut(nodes: Iterable[Node], parts: list[Segment]) -> bool:
    """Whether anything that these nodes compute differs between the parts."""
    known = {number for part in parts for number in part.known}
    return any(node.id in known for node in nodes)


def settled(parts: list[Segment]) -> frozenset[int]:
    """Nodes that are never computed."""
    return frozenset.intersection(*(part.unused for part in parts)) if parts else frozenset()


def _unused(kernel: Kernel, known: dict[int, bool], same: dict[int, Node]) -> frozenset[int]:
    """Nodes that are known, or only used by known ones or in branches not taken."""
    needed = {n.id for s in kernel.stores for n in (s.value, *s.indirect)}
    for node in reversed(kernel.nodes):
        if node.id not in known and (node.id in needed or isinstance(node, Reduce)):
            needed.update(o.id for o in _needed_operands(node, known, same))
    return frozenset(n.id for n in kernel.nodes if n.id not in needed or n.id in known)


def _needed_operands(
    node: Node, known: dict[int, bool], same: dict[int, Node]
) -> tuple[Node, ...]:
    if node.id in same:
        return (same[node.id],)
    if isinstance(node, Op) and node.name == "where" and node.args[0].id in known:
        return (node.args[1 if known[node.args[0].id] else 2],)
    if isinstance(node, Load) and node.mask is not None and node.mask.id in known:
        return node.indirect if known[node.mask.id] else ()
    return operands(node)


Place = tuple[Op, bool, IntExpr]
"""A comparison, its value before the place, and the first point at which it has another."""


def _places(kernel: Kernel, variable: LoopVar) -> list[Place]:
    return [
        (node, _FALLING[node.name] == (slope > 0), _cut(node.name, slope, offset))
        for node, slope, offset in _comparisons(kernel, variable.symbol)
    ]


def _within(cut: IntExpr, extent: IntExpr) -> bool:
    """Whether it can be inside the loop."""
    return lower_bound(-cut) < 0 and lower_bound(cut - extent) < 0


def _clamp(cut: IntExpr, extent: IntExpr) -> IntExpr:
    return minimum(maximum(cut, 0), extent)


def _in_order(cuts: list[IntExpr]) -> list[IntExpr] | None:
    """The places in ascending order; None if that depends on the sizes of the call."""
    distinct = list(dict.fromkeys(cuts))
    for i, left in enumerate(distinct):
        if not all(_at_most(left, right) or _at_most(right, left) for right in distinct[:i]):
            return None
    return sorted(distinct, key=cmp_to_key(_order))


def _order(left: IntExpr, right: IntExpr) -> int:
    return -1 if _at_most(left, right) else 1


def _at_most(left: IntExpr, right: IntExpr) -> bool:
    return lower_bound(right - left) >= 0


def _comparisons_at(
    places: list[Place], extent: IntExpr, edges: list[IntExpr], start: IntExpr
) -> dict[int, bool]:
    """The comparisons' values in the segment which begins at `start`."""
    reached = edges.index(start)
    known = {}
    for comparison, before, cut in places:
        passed = lower_bound(-cut) >= 0 or (
            lower_bound(cut - extent) < 0 and edges.index(_clamp(cut, extent)) <= reached)
        known[comparison.id] = before != passed
    return known


def _value(node: Node, known: dict[int, bool]) -> bool | None:
    return bool(node.value) if isinstance(node, Const) else known.get(node.id)


def _comparisons(kernel: Kernel, variable: Expr) -> Iterator[tuple[Op, int, IntExpr]]:
    """Comparisons of `slope * variable + offset` with 0, equal at all points of a call."""
    sizes = set(kernel.sizes)
    for node in kernel.nodes:
        if not (isinstance(node, Op) and node.name in _FALLING):
            continue
        left, right = (_index_of(a) for a in node.args)
        if left is None or right is None:
            continue
        parts = split_linear(left - right, variable)
        slope, offset = parts if parts is not None else (0, 0)
        if isinstance(slope, int) and slope and symbols(offset) <= sizes:
            yield node, slope, offset


def _index_of(node: Node) -> IntExpr | None:
    if isinstance(node, IndexValue):
        return node.expr
    return int(node.value) if isinstance(node, Const) and node.dtype == "i64" else None


def _cut(name: str, slope: int, offset: IntExpr) -> IntExpr:
    """The first point at which the comparison has another value than at the points before."""
    strict = name in ("lt", "ge")  # these change at 0, the others after it
    if slope < 0:
        slope, offset, strict = -slope, -offset, not strict
    return -floor_div(offset, slope) if strict else floor_div(-offset, slope) + 1
