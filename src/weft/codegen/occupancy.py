"""Whether a kernel would leave most of a GPU idle.

Place in the pipeline: used by `scheduling/schedule.py` before it merges groups on a GPU, and by
`triton/split_reductions.py` and `lowering/variance.py`, which cut long rows into pieces. A
reduction with few results and long rows is split into two kernels. This is not possible if a third
member reads its results at every point of the rows again (a batch norm of 64 channels, normalised
in the same kernel): then one program computes each row::

    leaves_gpu_idle(domain, members)    # [(written buffer, accesses, ...)]
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from weft.codegen.domain import Domain
from weft.shapes.algebra.expr import Expr, IntExpr, symbols

ENOUGH_PROGRAMS: Final = 264
"""Two programs for each of an H200's 132 multiprocessors."""
SHORTEST_PIECE: Final = 256
"""Smallest piece of a row for a program of its own, in elements."""
OUTER_REDUCTION_COLUMNS: Final = 64
"""Neighbouring results that one program computes where they lie side by side in memory."""
LARGEST_TILE: Final = 16384
"""Elements that a program can hold in registers, and so need not read again."""
SECTOR: Final = 16
"""Half-precision elements that memory moves at a time."""
WORTH_A_KERNEL: Final = 8_000_000
"""Elements by which reading is delayed, beyond which two more launches are cheaper (~10 µs)."""

Member = tuple[bool, str, Collection[str], Iterable[IntExpr]]
"""Whether it is a reduction; the buffer that it writes; those that it reads; its loop variables."""


def wanted_pieces(results: int, columns: int, row: int) -> int:
    """The number of pieces to cut rows into, so that enough programs, which compute `columns`
    results each, have work; less than two if whole rows are as fast."""
    if not _is_delayed(results, columns, row):
        return 0
    return min(-(-ENOUGH_PROGRAMS * columns // results), row // SHORTEST_PIECE)


def _is_delayed(results: int, columns: int, row: int) -> bool:
    """Whether programs of `columns` results are so few that two more launches are cheaper."""
    programs = -(-results // columns)
    return results * row * (ENOUGH_PROGRAMS / max(1, programs) - 1) > WORTH_A_KERNEL


def leaves_gpu_idle(
    domain: Domain, members: Sequence[Member], reads: Mapping[str, Collection[IntExpr]]
) -> bool:
    """Whether a kernel over `domain` with these members, in order, and these accesses leaves the
    GPU idle."""
    if not domain.is_reduction or not _reads_results_again(domain, members):
        return False
    flags = list(zip(domain.extents, domain.inner, strict=True))
    results = math.prod([n for n, inner in flags if not inner])
    row = math.prod([n for n, inner in flags if inner])
    if not isinstance(results, int) or not isinstance(row, int):
        return False
    columns = OUTER_REDUCTION_COLUMNS if _contiguous_along_results(domain, reads) else 1
    return _is_delayed(results, columns, row)


def turns_inside_rows(domain: Domain, indices: Iterable[IntExpr]) -> bool:
    """Whether some of a reduction's tensors are contiguous along its long rows, others across them.

    A tile that is read one way and written the other costs less in a kernel of its own.
    """
    flags = list(zip(domain.symbols(), domain.extents, domain.inner, strict=True))
    inner = {s for s, _, reduced in flags if reduced}
    row = math.prod([n for _, n, reduced in flags if reduced])
    if not inner or (isinstance(row, int) and row <= LARGEST_TILE // SECTOR):
        return False
    outer = {s for s, _, reduced in flags if not reduced}
    along = {
        s in inner for index in indices if isinstance(index, Expr)
        if not index.symbols.isdisjoint(inner) and not index.symbols.isdisjoint(outer)
        for s in index.symbols if index.coeff(s) == 1
    }
    return len(along) == 2


def _reads_results_again(domain: Domain, members: Sequence[Member]) -> bool:
    """Whether a member computes at every point of a row with the result of a reduction of the
    row."""
    row = {s for s, inner in zip(domain.symbols(), domain.inner, strict=True) if inner}
    late: set[str] = set()
    for reduces, written, read, variables in members:
        depends = not late.isdisjoint(read)
        if depends and any(not row.isdisjoint(symbols(v)) for v in variables):
            return True
        if depends or reduces:
            late.add(written)
    return False


def _contiguous_along_results(domain: Domain, reads: Mapping[str, Collection[IntExpr]]) -> bool:
    """Whether more reads are contiguous along the last dimension of the results than along the last
    one of the row."""
    symbols_of = list(zip(domain.symbols(), domain.inner, strict=True))
    outer = [s for s, inner in symbols_of if not inner]
    row = [s for s, inner in symbols_of if inner]
    if not outer:
        return False
    indices = [e for exprs in reads.values() for e in exprs if isinstance(e, Expr)]
    along = sum(e.coeff(outer[-1]) == 1 for e in indices if not _is_without(e, row))
    return along > sum(e.coeff(row[-1]) == 1 for e in indices)


def _is_without(index: Expr, variables: Sequence[Expr]) -> bool:
    return symbols(index).isdisjoint(variables)
