"""A scheduled group as a kernel of the loop IR.

Place in the pipeline: after `scheduling/schedule.py`. The members' formulas are evaluated over the
group's domain in order. The node that one member computes is passed to the next ones, and only
buffers that other steps read are stored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from weft.codegen.access import emitter_for, evaluate
from weft.codegen.ir.dtypes import compute_type
from weft.codegen.ir.loop_ir import IndexValue, Kernel, Load, LoopVar, Node, Op, stride, verify
from weft.codegen.ir.scalar_ops import COMPARISONS
from weft.codegen.loop_transforms import divisions, simplify_loops
from weft.codegen.moved_halves import move_as_integers
from weft.codegen.scheduling.groups import Group, device_of
from weft.codegen.values import Computed, Emitter
from weft.config import config
from weft.shapes.algebra.expr import Expr, IntExpr, loop_index, split_linear, subs

TOGETHER: Final = (4, 5, 3, 2)
"""How many neighbours that read much the same are computed at a time, the best number first."""
MAX_UNROLLED: Final = 4
"""The most pieces of a concatenation for which a kernel has separate statements."""


def build_kernel(group: Group, needed: set[str], name: str) -> Kernel:
    """The kernel of a group; it stores the buffers in `needed`."""
    cpu = device_of(group).type == "cpu"
    em = _evaluate_members(group, needed)
    unrolling = (_together(group) or _choose_unrolling(group, em)) if cpu else None
    if unrolling is not None:
        em = _evaluate_members(group, needed, unrolling)
    kernel = simplify_loops(em.build(name, tuple(map(str, group.origins))), cut=cpu)
    if cpu:
        move_as_integers(kernel)
    if config.strict:
        verify(kernel)
    return kernel


@final
@dataclass(frozen=True, slots=True)
class _Unrolling:
    """A loop that is written out, in all or in runs of a few iterations."""

    variable: Expr
    pieces: int
    """How many iterations are written out."""
    rest: LoopVar | None = None
    """The loop that remains, over runs of so many iterations; None if all are written out."""

    def iterations(self) -> list[IntExpr]:
        """The values of the variable in the pieces."""
        start = 0 if self.rest is None else self.rest.symbol * self.pieces
        return [start + piece for piece in range(self.pieces)]


def _evaluate_members(
    group: Group, needed: set[str], unrolling: _Unrolling | None = None
) -> Emitter:
    """The members' formulas over the group's loops, once for each piece of an unrolled one."""
    without = [] if unrolling is None else [unrolling.variable]
    em = emitter_for(group.domain, group.domain.symbols(), without=without)
    if unrolling is not None and unrolling.rest is not None:
        em.outer = (*em.outer, unrolling.rest)
    pieces: list[dict[Expr, IntExpr]] = [{}]
    if unrolling is not None:
        pieces = [{unrolling.variable: value} for value in unrolling.iterations()]
    for fixed in pieces:
        for member in group.members:
            own = member.access.domain.symbols()
            variables = [subs(member.variables[s], fixed) for s in own]
            definition = member.access.definition
            node, index = evaluate(definition, em, variables)
            _finish(em, definition, node, index, needed)
    return em


def _together(group: Group) -> _Unrolling | None:
    """The loop of which a few points are computed at a time, if a member wants that."""
    loops: dict[IntExpr, LoopVar] = {
        v.symbol: v for v in emitter_for(group.domain, group.domain.symbols()).outer}
    for member in group.members:
        definition = member.access.definition
        if definition.together is None or definition.dims[definition.together] == 1:
            continue
        before = [n for n in definition.dims[: definition.together] if n != 1]
        variable = member.access.domain.symbols()[len(before)]
        loop = loops.get(member.variables[variable])
        return None if loop is None else _few_of(loop)
    return None


def _few_of(loop: LoopVar) -> _Unrolling | None:
    """A few neighbours of this loop at a time, if it has a multiple of them."""
    extent = loop.extent
    if not isinstance(extent, int):
        return None
    pieces = next((n for n in TOGETHER if extent % n == 0), None)
    if pieces is None:
        return None
    rest = LoopVar(loop_index("turn", extent // pieces), extent // pieces)
    return _Unrolling(loop.symbol, pieces, rest)


def _choose_unrolling(group: Group, em: Emitter) -> _Unrolling | None:
    """The loop whose adjacent elements are computed differently, or None if there is none.

    `stack([a, b], -1)` in one loop over both would compute a and b for every element, be it a loop
    over the pieces or over all elements (`stack([a, b], -1).flatten(-2)`). The elements of an
    enlarged image (`x[i // 2]`) would be gathered; unrolled, each piece reads a run.
    """
    if group.domain.is_reduction:
        return None
    compared = [
        a.expr for n in em.nodes if isinstance(n, Op) and n.name in COMPARISONS
        for a in n.args if isinstance(a, IndexValue)
    ]
    loaded = [n.index for n in em.nodes if isinstance(n, Load)]
    for loop in em.outer:
        if all(stride(s.index, loop.symbol) == 1 for s in em.stores):
            unrolling = _unroll(loop, compared, loaded)
            if unrolling is not None:
                return unrolling
    return None


def _unroll(loop: LoopVar, compared: list[Expr], loaded: list[IntExpr]) -> _Unrolling | None:
    """How to unroll a loop along which stores are contiguous; None if that does not help.

    compared, loaded: the expressions in comparisons, and the indices of loads.
    """
    variable, extent = loop.symbol, loop.extent
    if not isinstance(extent, int):
        return None
    if extent <= MAX_UNROLLED and any(variable in e.symbols for e in compared):
        return _Unrolling(variable, extent)
    divisors = {n for e in (*compared, *loaded) for n in _divisors(e, variable)}
    if len(divisors) != 1 or (n := divisors.pop()) > MAX_UNROLLED or extent % n:
        return None
    if not any(_divisors(e, variable) for e in compared) and not _is_worth_pieces(
            loaded, variable, n):
        return None
    return _Unrolling(variable, n, LoopVar(loop_index("turn", extent // n), extent // n))


def _divisors(expr: IntExpr, variable: Expr) -> set[int]:
    """The numbers that a variable, perhaps with an offset, is divided by."""
    parts = ((split_linear(of, variable), n) for of, n in divisions(expr))
    return {n for split, n in parts
            if split is not None and split[0] == 1 and isinstance(split[1], int)}


def _is_worth_pieces(loaded: list[IntExpr], variable: Expr, n: int) -> bool:
    """Whether more loads become runs than runs become loads with gaps."""
    divided = sum(bool(_divisors(e, variable)) for e in loaded)
    runs = sum(stride(e, variable) == 1 for e in loaded)
    return divided > n * runs // 4


def _finish(
    em: Emitter, definition: Computed, node: Node, index: IntExpr, needed: set[str]
) -> None:
    """Pass the value to later members; store it if other steps read it."""
    buffer = definition.buffer
    value = em.cast(node, compute_type(buffer.scalar))
    if definition.updates is None:
        em.forwards[buffer.name, index] = value
    if buffer.name in needed:
        em.store(buffer.name, buffer.scalar, index, value, mode=definition.mode)
