"""Definitions that share a kernel: their joint loops, and what the kernel reads and writes.

Place in the pipeline: data of `schedule.py`, which merges groups, of `rematerialization.py`, and of
`kernels.py`, which makes a kernel of each group::

    group = singleton(0, analyse(definition))
    joint = refine(group.domain, other.domain)
    both = join(group, other, joint)        # a Group, or why they cannot share a kernel
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from weft.codegen.access import Access
from weft.codegen.domain import Domain, Refinement
from weft.codegen.values import Origin
from weft.shapes.algebra.expr import Expr, IntExpr, subs


@final
@dataclass(eq=False)
class Group:
    """Definitions that will be one kernel, with their accesses in terms of the group's domain.

    `reads` may be shared with a member, so it is never changed in place.
    """

    id: int
    domain: Domain
    members: list[Member]
    reads: dict[str, set[IntExpr]]
    writes: dict[str, IntExpr]
    operators: int

    @property
    def origins(self) -> tuple[Origin, ...]:
        """Operators and source lines of the members, each once."""
        return tuple(dict.fromkeys(o for m in self.members for o in m.access.definition.origins))


@final
@dataclass(eq=False, slots=True)
class Member:
    """A definition in a group: `variables` are its own loop variables in terms of the group's."""

    access: Access
    variables: dict[Expr, IntExpr]
    order: int


def singleton(number: int, access: Access) -> Group:
    """A group of one definition."""
    variables: dict[Expr, IntExpr] = {s: s for s in access.domain.symbols()}
    member = Member(access, variables, number)
    writes = {access.definition.buffer.name: access.write}
    return Group(number, access.domain, [member], access.reads, writes, access.operators)


def join(left: Group, right: Group, joint: Refinement) -> Group | str:
    """Both groups over their joint domain, if all values that pass between them do so point by
    point; otherwise the reason against it."""
    reads = _substitute_reads(left.reads, joint.left), _substitute_reads(right.reads, joint.right)
    writes = (
        {n: subs(e, joint.left) for n, e in left.writes.items()},
        {n: subs(e, joint.right) for n, e in right.writes.items()},
    )
    for produced, consumed in ((writes[0], reads[1]), (writes[1], reads[0])):
        for name, written in produced.items():  # in order: the reason names the first
            if any(expr is not written and expr != written for expr in consumed.get(name, ())):
                return f"{name} is read at other points than it is written"
    members = [_substitute_member(m, joint.left) for m in left.members]
    members += [_substitute_member(m, joint.right) for m in right.members]
    members.sort(key=lambda m: m.order)
    all_reads = {
        n: reads[0].get(n, set()) | reads[1].get(n, set()) for n in {**reads[0], **reads[1]}
    }
    operators = left.operators + right.operators
    return Group(left.id, joint.domain, members, all_reads, writes[0] | writes[1], operators)


def moved_to(group: Group, domain: Domain, variables: dict[Expr, IntExpr]) -> Group:
    """The group over another domain of the same points; `variables` are its loop variables in terms
    of that one's."""
    members = [_substitute_member(m, variables) for m in group.members]
    writes = {n: subs(e, variables) for n, e in group.writes.items()}
    reads = _substitute_reads(group.reads, variables)
    return Group(group.id, domain, members, reads, writes, group.operators)


def _substitute_reads(
    reads: dict[str, set[IntExpr]], variables: dict[Expr, IntExpr]
) -> dict[str, set[IntExpr]]:
    if all(old is new for old, new in variables.items()):
        return reads
    return {name: {subs(e, variables) for e in exprs} for name, exprs in reads.items()}


def _substitute_member(member: Member, variables: dict[Expr, IntExpr]) -> Member:
    moved = {own: subs(expr, variables) for own, expr in member.variables.items()}
    return Member(member.access, moved, member.order)


def device_of(group: Group) -> torch.device:
    """The device of the group's results."""
    return group.members[0].access.definition.buffer.device


def is_on_gpu(group: Group) -> bool:
    """Whether the kernel runs on a GPU, where a launch costs more than a call."""
    return device_of(group).type != "cpu"
