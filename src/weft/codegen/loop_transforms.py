"""Kernel → kernel: reorders loops by strides, merges and splits them.

Place in the pipeline: after `kernels.py` has evaluated a group's formulas over its domain, before a
target sees the kernel. Loops that walk memory in one stride are merged; loops whose indices are
quotients and remainders (a reshape of a transposed tensor) are split::

    for d0 in parallel(4):                      for i0 in parallel(393216):
        for d1 in parallel(128):        →           v0 = in0[i0]
            for d2 in parallel(768):                …
                v0 = in0[98304*d0 + 768*d1 + d2]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cmp_to_key
from typing import Final

from weft.codegen.ir.loop_ir import IndexValue, Indirect, Kernel, Load, LoopVar, Reduce, stride
from weft.codegen.values import estimate
from weft.shapes.algebra.atoms import FloorDiv, Mod
from weft.shapes.algebra.expr import Expr, IntExpr, loop_index, operands, subs

Loops = list[LoopVar]

SHORTEST_PIECE: Final = 16
"""The fewest points of the inner loop if a loop is split in two: enough for a vector."""


def simplify_loops(kernel: Kernel, *, cut: bool = False) -> Kernel:
    """Reorder, merge and rename the loops of a new kernel (its nodes are changed in place).

    `cut`: also split loops if that makes indices linear.
    """
    if cut:
        _cut_outer_loops(kernel)
    exprs = _index_exprs(kernel)
    table = _Strides(exprs)
    fixed = any(isinstance(n, Reduce) and n.kind.startswith("arg") for n in kernel.nodes)
    in_turn = any(s.mode != "assign" for s in kernel.stores)
    accesses = _access_exprs(kernel)
    loops = list(kernel.outer)
    outer = _merge(loops if in_turn else _order_loops(loops, accesses, table), table)
    inner = list(kernel.inner) if fixed else _order_loops(list(kernel.inner), accesses, table)
    mapping: dict[Expr, IntExpr] = {}
    kernel.outer = _rename(outer, "i", mapping)
    kernel.inner = _rename(_merge(inner, table), "r", mapping)
    _substitute(kernel, mapping)
    return kernel


def _cut_outer_loops(kernel: Kernel) -> None:
    """Split a loop over `v` in two if indices have `v // n` or `v % n` (n a divisor).

    Otherwise vectors along `v` would be gathered from memory that consists of runs of n elements.
    """
    number = 0
    pending, done = list(kernel.outer), []
    while pending:
        loop = pending.pop(0)
        size = _piece(loop, kernel)
        if size is None:
            done.append(loop)
            continue
        assert isinstance(loop.extent, int)
        pieces = loop.extent // size
        first, second = (loop_index(f"c{number + k}", n) for k, n in enumerate((pieces, size)))
        number += 2
        _substitute(kernel, {loop.symbol: first * size + second})
        pending[:0] = [LoopVar(first, pieces), LoopVar(second, size)]
    kernel.outer = tuple(done)


def _piece(loop: LoopVar, kernel: Kernel) -> int | None:
    """The largest size of the pieces that a loop should be split into, or None."""
    extent = loop.extent
    if not isinstance(extent, int):
        return None
    divisors = [
        n
        for expr in dict.fromkeys(_index_exprs(kernel))
        for of, n in divisions(expr)
        if of is loop.symbol and SHORTEST_PIECE <= n < extent and extent % n == 0
    ]
    return max(divisors, default=None)


def divisions(expr: IntExpr) -> Iterator[tuple[IntExpr, int]]:
    """Pairs of what is divided and the divisor (also of remainders), anywhere in an expression."""
    if isinstance(expr, int):
        return
    for atom in expr.atoms():
        parts = operands(atom)
        if isinstance(atom, FloorDiv | Mod) and isinstance(parts[1], int):
            yield parts[0], parts[1]
        for part in parts:
            yield from divisions(part)


class _Strides:
    """Coefficients of loop variables in all index expressions; None for one that is not linear."""

    def __init__(self, exprs: Sequence[IntExpr]) -> None:
        self.exprs = [e for e in dict.fromkeys(exprs) if not isinstance(e, int)]
        self._columns: dict[Expr, dict[IntExpr, IntExpr | None]] = {}

    def column(self, variable: Expr) -> dict[IntExpr, IntExpr | None]:
        """The coefficient of `variable` in each expression that has it."""
        coefficients = self._columns.get(variable)
        if coefficients is None:
            coefficients = {e: stride(e, variable) for e in self.exprs if variable in e.symbols}
            self._columns[variable] = coefficients
        return coefficients


def _access_exprs(kernel: Kernel) -> list[IntExpr]:
    """Indices of loads and stores (a store counts twice: writing partial cache lines is most
    expensive)."""
    loads = [n.index for n in kernel.nodes if isinstance(n, Load)]
    return loads + [s.index for s in kernel.stores for _ in range(2)]


def _index_exprs(kernel: Kernel) -> list[IntExpr]:
    values = [n.expr for n in kernel.nodes if isinstance(n, IndexValue)]
    sizes = [n.size for n in kernel.nodes if isinstance(n, Indirect)]
    return values + sizes + _access_exprs(kernel)


def _order_loops(loops: Loops, accesses: list[IntExpr], table: _Strides) -> Loops:
    """Loops with larger strides outside, by majority of the accesses; otherwise in the given
    order."""
    if len(loops) < 2:
        return loops
    position = {v.symbol: k for k, v in enumerate(loops)}

    def compare(left: LoopVar, right: LoopVar) -> int:
        first, second = table.column(left.symbol), table.column(right.symbol)
        votes = 0
        for expr in accesses:
            a, b = _size(first.get(expr, 0)), _size(second.get(expr, 0))
            if a and b:
                votes += (a < b) - (a > b)
        return votes or position[left.symbol] - position[right.symbol]

    return sorted(loops, key=cmp_to_key(compare))


def _size(stride: IntExpr | None) -> int:
    """Magnitude for comparisons."""
    if stride is None:
        return 0
    return abs(estimate(stride))


def _merge(loops: Loops, table: _Strides) -> list[list[LoopVar]]:
    """Runs of loops that can be merged: the outer one's stride is the inner one's times its
    extent."""
    runs: list[list[LoopVar]] = []
    for loop in loops:
        if runs and _is_one_stride(runs[-1][-1], loop, table):
            runs[-1].append(loop)
        else:
            runs.append([loop])
    return runs


def _is_one_stride(outer: LoopVar, inner: LoopVar, table: _Strides) -> bool:
    first, second = table.column(outer.symbol), table.column(inner.symbol)
    for expr in {**first, **second}:
        a, b = first.get(expr, 0), second.get(expr, 0)
        if a is None or b is None:
            return False
        if (b * inner.extent - a) != 0:
            return False
    return True


def _rename(runs: list[Loops], prefix: str, mapping: dict[Expr, IntExpr]) -> tuple[LoopVar, ...]:
    """One loop for each run; the run's last variable becomes it, the others zero."""
    result: list[LoopVar] = []
    for number, loops in enumerate(runs):
        extent: IntExpr = 1
        for loop in loops:
            extent = extent * loop.extent
            mapping[loop.symbol] = 0
        variable = loop_index(f"{prefix}{number}", extent)
        mapping[loops[-1].symbol] = variable
        result.append(LoopVar(variable, extent))
    return tuple(result)


def _substitute(kernel: Kernel, mapping: dict[Expr, IntExpr]) -> None:
    for node in kernel.nodes:
        if isinstance(node, Load):
            node.index = subs(node.index, mapping)
        elif isinstance(node, IndexValue):
            replaced = subs(node.expr, mapping)
            assert isinstance(replaced, Expr)
            node.expr = replaced
    for store in kernel.stores:
        store.index = subs(store.index, mapping)
