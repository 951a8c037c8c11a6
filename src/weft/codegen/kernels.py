"""A scheduled group as a kernel of the loop IR.

Place in the pipeline: after `schedule.py`. The members' formulas are evaluated over the group's
domain in order. The node that one member computes is passed to the next ones, and only buffers that
other steps read are stored.
"""

from __future__ import annotations

from typing import Final

from weft.codegen.access import emitter_for, evaluate
from weft.codegen.dtypes import compute_type
from weft.codegen.groups import Group, device_of
from weft.codegen.loop_ir import IndexValue, Kernel, Load, LoopVar, Node, Op, stride, verify
from weft.codegen.loop_transforms import divisions, simplify_loops
from weft.codegen.scalar_ops import COMPARISONS
from weft.codegen.values import Computed, Emitter
from weft.config import config
from weft.shapes.expr import Expr, IntExpr, loop_index, split_linear, subs

MAX_UNROLLED: Final = 4
"""Pieces of a concatenation of which each has statements of its own, up to that number."""


def build_kernel(group: Group, needed: set[str], name: str) -> Kernel:
    """The kernel of a group; it stores the buffers in `needed`."""
    em, cpu = _evaluate_members(group, needed), device_of(group).type == "cpu"
    if cpu and (short := _piecewise_loop(group, em)) is not None:
        variable, pieces, rest = short
        em = _evaluate_members(group, needed, variable, pieces, rest)
    kernel = simplify_loops(em.build(name, tuple(map(str, group.origins))), cut=cpu)
    if config.strict:
        verify(kernel)
    return kernel


def _evaluate_members(
    group: Group, needed: set[str], unrolled: Expr | None = None, pieces: int = 1,
    rest: LoopVar | None = None,
) -> Emitter:
    """The members' formulas over the group's loops, once for each piece of an unrolled one.

    rest: the loop that stays of it, over as many pieces at a time.
    """
    without = [] if unrolled is None else [unrolled]
    em = emitter_for(group.domain, group.domain.symbols(), without=without)
    if rest is not None:
        em.outer = (*em.outer, rest)
    start = 0 if rest is None else rest.symbol * pieces
    for piece in range(pieces):
        fixed = {} if unrolled is None else {unrolled: start + piece}
        for member in group.members:
            own = member.access.domain.symbols()
            variables = [subs(member.variables[s], fixed) for s in own]
            definition = member.access.definition
            node, index = evaluate(definition, em, variables)
            _finish(em, definition, node, index, needed)
    return em


def _piecewise_loop(group: Group, em: Emitter) -> tuple[Expr, int, LoopVar | None] | None:
    """A loop whose adjacent elements are computed differently, the number of such pieces, and the
    loop that remains when they are unrolled; None if there is none.

    `stack([a, b], -1)` in one loop over both would compute a and b for every element, be it a loop
    over the pieces or over all elements (`stack([a, b], -1).flatten(-2)`). The elements of an
    enlarged image (`x[i // 2]`) would be gathered; unrolled, each piece reads a run.
    """
    compared = [
        a.expr for n in em.nodes if isinstance(n, Op) and n.name in COMPARISONS
        for a in n.args if isinstance(a, IndexValue)
    ]
    loaded = [n.index for n in em.nodes if isinstance(n, Load)]
    if group.domain.is_reduction:
        return None
    for loop in em.outer:
        variable, extent = loop.symbol, loop.extent
        if not isinstance(extent, int) or any(stride(s.index, variable) != 1 for s in em.stores):
            continue
        if extent <= MAX_UNROLLED and any(variable in e.symbols for e in compared):
            return variable, extent, None
        turns = {n for e in (*compared, *loaded) for n in _turns(e, variable)}
        if len(turns) != 1 or (n := turns.pop()) > MAX_UNROLLED or extent % n:
            continue
        if any(_turns(e, variable) for e in compared) or _is_worth_pieces(loaded, variable, n):
            return variable, n, LoopVar(loop_index("turn", extent // n), extent // n)
    return None


def _turns(expr: IntExpr, variable: Expr) -> set[int]:
    """The numbers that a variable, perhaps with an offset, is divided by."""
    parts = ((split_linear(of, variable), n) for of, n in divisions(expr))
    return {n for split, n in parts
            if split is not None and split[0] == 1 and isinstance(split[1], int)}


def _is_worth_pieces(loaded: list[IntExpr], variable: Expr, n: int) -> bool:
    """Whether more loads become runs than runs become loads with gaps."""
    divided = sum(bool(_turns(e, variable)) for e in loaded)
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
