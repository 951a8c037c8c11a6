"""A scheduled group as a kernel of the loop IR.

Place in the pipeline: after `schedule.py`. The members' formulas are evaluated over the group's
domain in order; what one member computes is handed to the next ones as a node, and only buffers
that somebody else reads are stored.
"""

from __future__ import annotations

from weft.codegen.access import emitter_for, evaluate
from weft.codegen.dtypes import compute_type
from weft.codegen.loop_ir import Kernel, Node, verify
from weft.codegen.loop_transforms import simplify_loops
from weft.codegen.schedule import Group
from weft.codegen.values import Computed, Emitter
from weft.config import config
from weft.shapes.expr import IntExpr


def build_kernel(group: Group, needed: set[str], name: str) -> Kernel:
    """The kernel of a group; stores buffers in `needed`."""
    domain = group.domain
    symbols = domain.symbols()
    em = emitter_for(domain, symbols)
    for member in group.members:
        own = member.access.domain.symbols()
        variables = [member.variables[s] for s in own]
        definition = member.access.definition
        node, index = evaluate(definition, em, variables)
        _finish(em, definition, node, index, needed)
    kernel = simplify_loops(em.build(name, tuple(map(str, group.origins))))
    if config.strict:
        verify(kernel)
    return kernel


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
