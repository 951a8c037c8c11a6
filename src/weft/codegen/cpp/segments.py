"""Cuts a vectorised loop where comparisons of its variable change, so that no lane needs a mask.

Place in the pipeline: used by `emit.py`. Concatenation, padding and rotary embeddings compare a
loop variable with constants; between two such constants the comparison is known:

    for x in 0..64: where(x < 32, -b[x + 32], a[x - 32])
    →  for x in 0..32: -b[x + 32];   for x in 32..64: a[x - 32]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final

from weft.codegen.loop_ir import Const, IndexValue, Kernel, LoopVar, Node, Op
from weft.shapes.expr import Expr, IntExpr, split_linear

MAX_SEGMENTS: Final = 4
"""The loop's body is printed once per segment: no more than this."""

_COMPARE: Final[dict[str, Callable[[int], bool]]] = {
    "lt": lambda d: d < 0, "le": lambda d: d <= 0, "gt": lambda d: d > 0, "ge": lambda d: d >= 0,
}  # fmt: skip
_LOGIC: Final[dict[str, Callable[..., bool]]] = {
    "and_": lambda a, b: a and b,
    "or_": lambda a, b: a or b,
    "not_": lambda a: not a,
}


def segments(kernel: Kernel, variable: LoopVar) -> list[tuple[int, int]]:
    """Ranges that cover the loop, in each of which all comparisons of its variable are constant."""
    if not isinstance(variable.extent, int):
        return []
    cuts = {
        cut
        for node, slope, offset in _comparisons(kernel, variable.symbol)
        for cut in [_cut(node.name, slope, offset)]
        if 0 < cut < variable.extent
    }
    if not 0 < len(cuts) < MAX_SEGMENTS:
        return []
    edges = [0, *sorted(cuts), variable.extent]
    return list(pairwise(edges))


def known_values(kernel: Kernel, variable: LoopVar, start: int) -> dict[int, bool]:
    """The boolean nodes that are constant in the segment which begins at `start`."""
    known = {
        node.id: _COMPARE[node.name](slope * start + offset)
        for node, slope, offset in _comparisons(kernel, variable.symbol)
    }
    for node in kernel.nodes:
        if isinstance(node, Op) and node.name in _LOGIC and node.dtype == "bool":
            values = [_value(a, known) for a in node.args]
            if None not in values:
                known[node.id] = _LOGIC[node.name](*values)
    return known


def _value(node: Node, known: dict[int, bool]) -> bool | None:
    return bool(node.value) if isinstance(node, Const) else known.get(node.id)


def _comparisons(kernel: Kernel, variable: Expr) -> Iterator[tuple[Op, int, int]]:
    """Comparisons of `slope * variable + offset` with 0."""
    for node in kernel.nodes:
        if not (isinstance(node, Op) and node.name in _COMPARE):
            continue
        left, right = (_index_of(a) for a in node.args)
        if left is None or right is None:
            continue
        parts = split_linear(left - right, variable)
        slope, offset = parts if parts is not None else (0, 0)
        if isinstance(slope, int) and slope and isinstance(offset, int):
            yield node, slope, offset


def _index_of(node: Node) -> IntExpr | None:
    if isinstance(node, IndexValue):
        return node.expr
    return int(node.value) if isinstance(node, Const) and node.dtype == "i64" else None


def _cut(name: str, slope: int, offset: int) -> int:
    """The first point at which the comparison has another value than at the points before."""
    strict = name in ("lt", "ge")  # these change at 0, the others after it
    if slope < 0:
        slope, offset, strict = -slope, -offset, not strict
    return -(offset // slope) if strict else -offset // slope + 1
