"""Rematerialization: values that their readers' kernels recompute, if that moves fewer bytes.

Place in the pipeline: after the last merge of `schedule.py`. A formula with several users was given
a buffer in the hope that they would share its kernel. The gradient of a batch norm shows where they
cannot: the sums over the image are needed before its last formula::

    masked = where(y > 0, g, 0);  total = sum(masked);  centred = x - mean;  ...    # kernel 1
    gx = masked - centred * ... - total * ...                                       # kernel 2

`masked` and `centred`, in float32, would be written and read again: 16 bytes an element. Kernel 2
can compute both from `g`, `y` and `x`, 6 bytes in half precision. So a value is removed from memory
if

- all its readers are kernels that run over its points and read it point by point;
- its formula, with those of the values that only its own kernel computes, is short;
- what the readers load in addition is less than what was stored and loaded;
- what this keeps in memory until then is no larger than the value itself.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final, final

from weft.codegen.domain import refine
from weft.codegen.scheduling.groups import Group, Member, device_of, join, moved_to, singleton
from weft.codegen.values import ExternCall
from weft.shapes.algebra.expr import Expr, IntExpr, subs

MOST_OPERATORS: Final = {"cpu": 16, "cuda": 40}
"""Most operators of a recomputed formula; those of `scalar_ops.DEAR` count tenfold."""


@final
@dataclass(frozen=True, slots=True)
class Rematerialization:
    """The steps, and what is known about the buffers; `run` changes the first three fields."""

    steps: dict[int, Group | ExternCall]
    producer: dict[str, int]
    readers: dict[str, set[int]]
    positions: Mapping[int, int]
    bytes: Mapping[str, int]
    outputs: Collection[str]

    def run(self) -> list[str]:
        """Recompute what is worth it; returns a line for each decision."""
        decisions = [d for name in list(self.producer) if (d := self._recompute(name)) is not None]
        if decisions:
            self._drop_unread()
        return decisions

    def _recompute(self, name: str) -> str | None:
        """Let the readers of a value compute it; returns why, or None if it stays in memory."""
        number, users = self.producer[name], self._users(name)
        group = self.steps[number]
        if not isinstance(group, Group) or not users or name in self.outputs:
            return None
        formulas = self._formulas(group, name)
        if not formulas:
            return None
        loaded = {n for m in formulas for n in m.access.reads} - _written_buffers(formulas)
        if not self._may_wait(loaded, name, users):
            return None
        merged = {}
        for user in users:
            reader = self.steps[user]
            joined = _with_formulas(reader, formulas) if isinstance(reader, Group) else None
            if joined is None or device_of(joined) != device_of(group):
                return None
            merged[user] = joined
        extra = sum(self._bytes(loaded - self._at_hand(user)) for user in users)
        if extra >= self.bytes.get(name, 0) * (1 + len(users)):
            return None
        self._apply(merged, _written_buffers(formulas), loaded)
        return f"{name}: computed again by its {len(users)} readers, which load {extra} bytes more"

    def _users(self, name: str) -> list[int]:
        """The steps that read a value, except its own."""
        own = self.producer[name]
        return sorted(n for n in self.readers.get(name, ()) if n in self.steps and n != own)

    def _formulas(self, group: Group, name: str) -> list[Member]:
        """The members that compute `name` from memory, in order; () if there are too many."""
        makers = {m.access.definition.buffer.name: m for m in group.members}
        members: dict[str, Member] = {}
        waiting, budget = [name], MOST_OPERATORS.get(device_of(group).type, 0)
        while waiting:
            member = makers[waiting.pop()]
            if member.access.definition.buffer.name in members:
                continue
            budget -= member.access.operators + 9 * member.access.dear
            if budget < 0 or not _is_pure(member):
                return []
            members[member.access.definition.buffer.name] = member
            inside = member.access.reads.keys() & makers.keys()
            waiting += [n for n in inside if not self._is_in_memory(n)]
        return sorted(members.values(), key=lambda m: m.order)

    def _is_in_memory(self, name: str) -> bool:
        return name in self.outputs or bool(self._users(name))

    def _may_wait(self, loaded: Collection[str], name: str, users: Collection[int]) -> bool:
        """Whether the buffers kept for the last reader, which would be free otherwise, are no
        larger than the value."""
        last = max(self.positions[u] for u in users)
        kept = {n for n in loaded if n not in self.outputs and all(
            self.positions[r] < last for r in self.readers.get(n, set()) & self.steps.keys())}
        return self._bytes(kept) <= self.bytes.get(name, 0)

    def _at_hand(self, user: int) -> set[str]:
        """What a kernel reads or computes anyway."""
        group = self.steps[user]
        assert isinstance(group, Group)
        return group.reads.keys() | group.writes.keys()

    def _bytes(self, names: Collection[str]) -> int:
        return sum(self.bytes.get(n, 0) for n in names)

    def _apply(
        self, merged: Mapping[int, Group], recomputed: Collection[str], loaded: Collection[str]
    ) -> None:
        for user, group in merged.items():
            group.reads = {n: e for n, e in group.reads.items() if n not in recomputed}
            for name in recomputed:
                self.readers[name].discard(user)
            for name in loaded:
                self.readers[name].add(user)
            self.steps[user] = group

    def _drop_unread(self) -> None:
        """Remove members whose values are not needed any more, and groups that become empty."""
        for number, group in sorted(self.steps.items(), reverse=True):
            if not isinstance(group, Group):
                continue
            needed = self._needed_members(group)
            if len(needed) < len(group.members):
                self._keep_members(number, group, needed)

    def _keep_members(self, number: int, group: Group, needed: list[Member]) -> None:
        """Reduce a group to some of its members; without any, it is removed."""
        unread = group.reads.keys() - {n for m in needed for n in m.access.reads}
        for name in unread:
            self.readers[name].discard(number)
        group.reads = {n: e for n, e in group.reads.items() if n not in unread}
        group.members = needed
        if needed:
            return
        del self.steps[number]
        for name in group.writes:
            if self.producer.get(name) == number:
                del self.producer[name]

    def _needed_members(self, group: Group) -> list[Member]:
        wanted = {n for n in group.writes if n in self.outputs or self._outside(n, group)}
        kept = []
        for member in reversed(group.members):
            definition = member.access.definition
            if definition.buffer.name in wanted or definition.updates is not None:
                kept.append(member)
                wanted.update(member.access.reads)
        return kept[::-1]

    def _outside(self, name: str, group: Group) -> bool:
        """Whether others read what only this group puts into memory."""
        own = self.producer.get(name)
        return own is not None and self.steps.get(own) is group and bool(self._users(name))


def _is_pure(member: Member) -> bool:
    """Whether a member is a formula of each point alone, of known size."""
    definition = member.access.definition
    plain = definition.mode == "assign" and definition.updates is None and not definition.alone
    return plain and definition.reduction is None and not member.access.symbols


def _written_buffers(members: Collection[Member]) -> set[str]:
    return {m.access.definition.buffer.name for m in members}


def _with_formulas(group: Group, formulas: Collection[Member]) -> Group | None:
    """A kernel that also computes the formulas; None if its points or its reads differ."""
    for member in formulas:
        if member.access.definition.buffer.name in group.writes:
            continue
        alone = singleton(member.order, member.access)
        merged = _joint_kernel(group, alone) or _joint_kernel(group, _in_order_of(group, alone))
        if merged is None:
            return None
        group = merged
    return group


def _joint_kernel(group: Group, alone: Group | None) -> Group | None:
    """Both in one kernel over the same points, or None."""
    points = math.prod(group.domain.extents)
    if alone is None or math.prod(alone.domain.extents) != points:
        return None
    joint = refine(group.domain, alone.domain)
    if joint is None or math.prod(joint.domain.extents) != points:
        return None
    merged = join(group, alone, joint)
    return merged if isinstance(merged, Group) else None


def _in_order_of(group: Group, alone: Group) -> Group | None:
    """A formula's own group with the loops of `group`, which reads the value in another order
    (because it stores it transposed, say); None if it reads other points."""
    ((name, write),) = alone.writes.items()
    index = next(iter(group.reads.get(name, ())), None)
    if not isinstance(write, Expr) or not isinstance(index, Expr):
        return None
    loops = {(index.coeff(s), n): s for s, n in _loops(group)}
    places = {s: loops.get((write.coeff(s), n)) for s, n in _loops(alone)}
    moves: dict[Expr, IntExpr] = {s: p for s, p in places.items() if p is not None}
    if len(set(moves.values())) < len(group.domain.extents) or subs(write, moves) != index:
        return None
    return moved_to(alone, group.domain, moves)


def _loops(group: Group) -> list[tuple[Expr, IntExpr]]:
    return list(zip(group.domain.symbols(), group.domain.extents, strict=True))
