"""A scheduled group as a kernel of the loop IR.

Place in the pipeline: after `schedule.py`. The members' formulas are evaluated over the group's
domain in order; what one member computes is handed to the next ones as a node, and only buffers
that somebody else reads are stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from weft.codegen.access import emitter_for, evaluate
from weft.codegen.dtypes import compute_type
from weft.codegen.groups import Group, device_of
from weft.codegen.loop_ir import IndexValue, Kernel, Node, Op, stride, verify
from weft.codegen.loop_transforms import simplify_loops
from weft.codegen.scalar_ops import COMPARISONS
from weft.codegen.values import Computed, Emitter
from weft.config import config
from weft.shapes.expr import Expr, IntExpr, subs

MAX_UNROLLED: Final = 4
"""Extent up to which a loop over the pieces of a concatenation is unrolled."""


def build_kernel(group: Group, needed: set[str], name: str) -> Kernel:
    """The kernel of a group; stores buffers in `needed`."""
    em, cpu = _evaluated(group, needed), device_of(group).type == "cpu"
    if cpu and (short := _piecewise_loop(group, em)) is not None:
        variable, extent = short
        em = _evaluated(group, needed, [{variable: piece} for piece in range(extent)])
    kernel = simplify_loops(em.build(name, tuple(map(str, group.origins))), cut=cpu)
    if config.strict:
        verify(kernel)
    return kernel


def _evaluated(
    group: Group, needed: set[str], unrolled: Sequence[Mapping[Expr, IntExpr]] = ({},)
) -> Emitter:
    """The members' formulas over the group's loops, once for each value of an unrolled one."""
    em = emitter_for(group.domain, group.domain.symbols(), without=unrolled[0])
    for fixed in unrolled:
        for member in group.members:
            own = member.access.domain.symbols()
            variables = [subs(member.variables[s], fixed) for s in own]
            definition = member.access.definition
            node, index = evaluate(definition, em, variables)
            _finish(em, definition, node, index, needed)
    return em


def _piecewise_loop(group: Group, em: Emitter) -> tuple[Expr, int] | None:
    """A short loop over elements beside each other that are computed differently, if there is one.

    `stack([a, b], -1)` in one loop over both would compute a and b for every element.
    """
    compared = [
        a.expr for n in em.nodes if isinstance(n, Op) and n.name in COMPARISONS
        for a in n.args if isinstance(a, IndexValue)
    ]
    if not compared or group.domain.is_reduction:
        return None
    for loop in em.outer:
        variable, extent = loop.symbol, loop.extent
        if not isinstance(extent, int) or extent > MAX_UNROLLED:
            continue
        pieces = any(variable in e.symbols for e in compared)
        if pieces and all(stride(s.index, variable) == 1 for s in em.stores):
            return variable, extent
    return None


def _finish(
    em: Emitter, definition: Computed, node: Node, index: IntExpr, needed: set[str]
) -> None:
    """Forward the value to later members; store it if others read it."""
    buffer = definition.buffer
    value = em.cast(node, compute_type(buffer.scalar))
    if definition.mode == "assign":
        em.forwards[buffer.name, index] = value
    if buffer.name in needed:
        target = definition.updates or buffer
        em.store(target.name, target.scalar, index, value, mode=definition.mode)
