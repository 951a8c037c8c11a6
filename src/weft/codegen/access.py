"""What a definition reads and writes, and where: its formula evaluated once, symbolically.

Place in the pipeline: between `lowering/` and `scheduling/schedule.py`, which compares accesses,
and `kernels.py`, which evaluates the formulas again over the loops of the finished kernel.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import final

from weft.codegen.domain import Domain
from weft.codegen.ir.loop_ir import Load, LoopVar, Node, Op, index_exprs
from weft.codegen.ir.scalar_ops import DEAR
from weft.codegen.values import Computed, Emitter
from weft.shapes.algebra.expr import Expr, IntExpr, symbol, symbols
from weft.shapes.algebra.views import Shape


@final
@dataclass(eq=False)
class Access:
    """A definition's natural domain, its loads per buffer, and the index of its store."""

    definition: Computed
    domain: Domain
    reads: dict[str, set[IntExpr]]
    write: IntExpr
    operators: int
    dear: int = 0  # of these operators, expensive ones such as exp
    symbols: frozenset[str] = frozenset()  # data-dependent sizes that it computes with


def natural_domain(definition: Computed) -> Domain:
    """The definition's dimensions except those of size 1."""
    kept = [k for k, n in enumerate(definition.dims) if n != 1]
    flags = definition.reduced or (False,) * len(definition.dims)
    return Domain(tuple(definition.dims[k] for k in kept), tuple(flags[k] for k in kept))


def formula_index(dims: Shape, variables: Sequence[IntExpr]) -> list[IntExpr]:
    """The index for a formula over `dims`, given a variable for each dimension that is not of size
    1."""
    remaining = iter(variables)
    return [0 if n == 1 else next(remaining) for n in dims]


def evaluate(
    definition: Computed, em: Emitter, variables: Sequence[IntExpr]
) -> tuple[Node, IntExpr]:
    """The node that the definition stores, and where, with its loop variables given."""
    index = formula_index(definition.dims, variables)
    node = definition.formula(em, index)
    if definition.reduction is not None:
        node = _reduce(definition, em, node)
    if definition.finish is not None:
        node = definition.finish(em, node)
    return node, definition.store(em, index)


def _reduce(definition: Computed, em: Emitter, node: Node) -> Node:
    assert definition.reduction is not None
    if any(r and n != 1 for r, n in zip(definition.reduced, definition.dims, strict=True)):
        return em.reduce(definition.reduction, node)
    return em.const(0, "i64") if definition.reduction.startswith("arg") else node


def analyse(definition: Computed, bound: Collection[str] = ()) -> Access:
    """Evaluate a definition over its natural domain; `bound`: the symbols to look for."""
    domain = natural_domain(definition)
    symbols = domain.symbols()
    em = emitter_for(domain, symbols)
    _, write = evaluate(definition, em, symbols)
    reads: dict[str, set[IntExpr]] = {}
    operators = dear = 0
    for node in em.nodes:
        if isinstance(node, Load):
            reads.setdefault(node.buffer, set()).add(node.index)
        elif isinstance(node, Op):
            operators += 1
            dear += node.name in DEAR
    needs = _symbols_in(definition, em, write) & set(bound) if bound else frozenset()
    if definition.updates is not None:  # at places that nobody else reads or writes at a point
        write = symbol(f"place_in_{definition.buffer.name}")
        reads[definition.updates.name] = {write}
    return Access(definition, domain, reads, write, operators, dear, needs)


def _symbols_in(definition: Computed, em: Emitter, write: IntExpr) -> frozenset[str]:
    """The names of the symbols in a definition's sizes and indices."""
    buffer = definition.buffer
    sizes = (*definition.dims, *buffer.shape, *buffer.strides, write, *index_exprs(em.nodes))
    return frozenset(str(s) for size in sizes for s in symbols(size))


def emitter_for(domain: Domain, symbols: Sequence[Expr], without: Collection[Expr] = ()) -> Emitter:
    """An emitter whose loops are the domain's, but for those `without`."""
    loops = zip(map(LoopVar, symbols, domain.extents), domain.inner, strict=True)
    kept = [(v, inner) for v, inner in loops if v.symbol not in without]
    outer = tuple(v for v, inner in kept if not inner)
    return Emitter(outer, tuple(v for v, inner in kept if inner))
