"""What an operator's schema says: does it mutate, alias, or is it functional, and what replaces it.

Place in the pipeline: aot's recorder reads the `OpFacts` of each operator that it records; they are
computed once::

    facts(torch.ops.aten.add_.Tensor).kind          # Kind.MUTATION
    facts(torch.ops.aten.add_.Tensor).functional    # torch.ops.aten.add.Tensor
    facts(torch.ops.aten.t.default).kind            # Kind.VIEW
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache
from typing import Any, Final, final

import torch
from torch.fx import Graph

from weft._torch import OpOverload, is_collective, tree_flatten
from weft.aot.functional_form import functional_form, is_of_torch
from weft.shapes.fakes.operator_effects import is_composite
from weft.shapes.fakes.schemas import schema_arguments

aten = torch.ops.aten


class Kind(Enum):
    """How the recorder treats an operator."""

    FUNCTIONAL = auto()  # fresh outputs, no mutation
    VIEW = auto()  # one output that aliases the first argument
    MUTATION = auto()  # writes to some arguments' data
    METADATA = auto()  # changes an argument's sizes or strides in place (t_, unsqueeze_)
    COMPOSITE = auto()  # calls other operators; recorded in inference mode only
    COLLECTIVE = auto()  # talks to other processes
    OPAQUE = auto()  # mutates or aliases in a way that cannot be expressed functionally


@final
@dataclass(frozen=True, slots=True)
class OpFacts:
    """Facts that an operator's schema states."""

    op: OpOverload
    kind: Kind
    functional: OpOverload | None  # same computation without mutation
    mutated: tuple[tuple[int, str], ...]  # positions and names of the arguments written to
    is_out: bool  # the mutated arguments are outputs only
    plain_returns: int  # returned values that are fresh (listed first by the functional variant)
    random: bool
    defaults: tuple[tuple[int, str, Any], ...]  # where the functional variant's differ

    def defaults_from(self, n_args: int) -> dict[str, object]:
        """Default values to pass to the functional variant for arguments after the first
        `n_args`."""
        return {name: value for i, name, value in self.defaults if i >= n_args}


# In-place operators whose functional variant is not "the same name without the underscore".
_RENAMED: Final[dict[OpOverload, OpOverload]] = {
    aten.normal_.default: aten.normal_functional.default,
}


@cache
def facts(op: OpOverload) -> OpFacts:
    """The facts of an operator overload."""
    schema = op._schema
    written = tuple(
        (i, a.name) for i, a in enumerate(schema.arguments)
        if a.alias_info is not None and a.alias_info.is_write
    )
    is_out = any(a.is_out for a in schema.arguments)
    plain = sum(r.alias_info is None for r in schema.returns)
    aliased = any(r.alias_info is not None for r in schema.returns)
    functional = _functional(op, is_out) if written else None
    return OpFacts(
        op, _kind(op, written, aliased, functional), functional, written, is_out, plain,
        torch.Tag.nondeterministic_seeded in op.tags, _lost_defaults(op, functional),
    )


def _kind(
    op: OpOverload, written: tuple[object, ...], aliased: bool, functional: OpOverload | None
) -> Kind:
    """The kind, from mutation and aliasing."""
    if is_composite(op):
        return Kind.COMPOSITE
    if is_collective(op):
        return Kind.COLLECTIVE
    if not written:
        return Kind.VIEW if aliased else Kind.FUNCTIONAL
    if functional is None:
        return Kind.OPAQUE
    if facts(functional).kind is Kind.VIEW:
        return Kind.METADATA
    return Kind.MUTATION


def draws_numbers(op: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]) -> bool:
    """Whether a call draws random numbers; attention without dropout does not."""
    if torch.Tag.nondeterministic_seeded not in op.tags:
        return False
    return bool(schema_arguments(op, args, kwargs).get("dropout_p", 1) != 0)


def random_devices(graph: Graph) -> frozenset[torch.device]:
    """The devices on which a graph draws random numbers."""
    return frozenset(
        tensor.device
        for n in graph.nodes
        if isinstance(n.target, OpOverload) and draws_numbers(n.target, n.args, n.kwargs)
        for tensor in tree_flatten(n.meta["val"])[0]
        if isinstance(tensor, torch.Tensor)
    )


def _lost_defaults(
    op: OpOverload, functional: OpOverload | None
) -> tuple[tuple[int, str, object], ...]:
    """Defaults of `op` that a call of its functional variant must spell out."""
    if functional is None:
        return ()
    theirs = {a.name: a for a in functional._schema.arguments}
    return tuple(
        (i, a.name, a.default_value)
        for i, a in enumerate(op._schema.arguments)
        if a.has_default_value() and not a.is_out and a.name in theirs
        and (not theirs[a.name].has_default_value()
             or theirs[a.name].default_value != a.default_value)
    )


def _functional(op: OpOverload, is_out: bool) -> OpOverload | None:
    """The functional operator for one that writes. It is looked up by name only for torch's own:
    the names of a program's operators say nothing."""
    if is_of_torch(op) and (variant := _functional_variant(op, is_out)) is not None:
        return variant
    return _made(op)


def _functional_variant(op: OpOverload, is_out: bool) -> OpOverload | None:
    """The overload that computes the same without writing to arguments."""
    if op in _RENAMED:
        return _RENAMED[op]
    name = op._schema.name.split("::")[1]
    namespace = getattr(torch.ops, op.namespace)
    if is_out:
        return _matching_overload(getattr(namespace, name, None), op)
    return _by_name(namespace, name, op)


def _made(op: OpOverload) -> OpOverload | None:
    """A functional operator made by weft, for one that has none."""
    return None if is_composite(op) else functional_form(op)


def _by_name(namespace: object, name: str, op: OpOverload) -> OpOverload | None:
    """`add_` → `add`, `__iand__` → `__and__`, `rrelu_with_noise` → `…_functional`."""
    if name.startswith("__i") and name.endswith("__"):
        name = f"__{name[3:]}"
    elif name.endswith("_"):
        name = name[:-1]
    else:
        name = f"{name}_functional"
    packet = getattr(namespace, name, None)
    counterpart: OpOverload | None = getattr(packet, op._overloadname, None)
    if counterpart is not None and _takes_the_same(counterpart, op):
        return counterpart
    return _matching_overload(packet, op)


def _matching_overload(packet: Any, op: OpOverload) -> OpOverload | None:
    """The overload of `packet` with the arguments of `op` except the `out=` ones."""
    names = packet.overloads() if packet is not None else ()
    candidates: list[OpOverload] = [getattr(packet, name) for name in names]
    return next((c for c in candidates if _takes_the_same(c, op)), None)


def _takes_the_same(candidate: OpOverload, op: OpOverload) -> bool:
    """Whether `candidate` writes nothing and takes arguments of the same types as `op`."""
    theirs = candidate._schema.arguments
    if any(a.alias_info is not None and a.alias_info.is_write for a in theirs):
        return False
    wanted = [str(a.type) for a in op._schema.arguments if not a.is_out]
    return [str(a.type) for a in theirs] == wanted
