"""How a kernel's iteration domain is cut into the tiles that one Triton program computes.

Place in the pipeline: the first step of `target.py` for each kernel; `emit.py` follows the result.

Each loop variable belongs to one *axis* of the tile: `x` (outer variables, flattened), `y` (one
outer variable, when some access is contiguous along it while others are along the last one: a
transpose), `z` (the remaining outer variables of such a kernel, one point a program) and `r` (inner
variables).

    kernel                          tile                    programs
    pointwise                       [XBLOCK]                ceil(x / XBLOCK)
    pointwise, transposing          [YBLOCK, XBLOCK]        z * ceil(y / YBLOCK) * ceil(x / XBLOCK)
    reduction, row fits             [XBLOCK, RBLOCK >= r]   ceil(x / XBLOCK)
    reduction, row does not fit     [XBLOCK, RBLOCK] looped ceil(x / XBLOCK)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, final

from weft.codegen.ir.dtypes import ITEM_SIZE
from weft.codegen.ir.loop_ir import Kernel, Load, LoopVar, Op, number_of_points, stride
from weft.codegen.ir.scalar_ops import DEAR
from weft.codegen.occupancy import LARGEST_TILE, OUTER_REDUCTION_COLUMNS, SECTOR
from weft.shapes.algebra.expr import Expr, symbols

POINTWISE_BLOCK: Final = 1024
TRANSPOSE_BLOCK: Final = 64
LOOPED_BLOCK: Final = 4096
QUICK: Final = frozenset({"exp", "exp2", "sigmoid"})
"""Functions that are a few instructions here."""
ELEMENTS_PER_WARP: Final = 32 * 16
"""Sixteen elements a thread keep enough loads in flight without spilling."""


Measure = Callable[[Expr | int], Expr | int]
"""Returns the assumed value of a symbolic extent for choosing a tile, or the extent itself."""


@final
@dataclass(frozen=True)
class Axis:
    """Loop variables flattened into one tile dimension of `block` elements (the last varies
    fastest). `whole`: a symbolic extent is a multiple of the block."""

    name: str
    variables: tuple[LoopVar, ...]
    block: int
    whole: bool = False

    @property
    def extent(self) -> Expr | int:
        """Number of points along the axis."""
        return number_of_points(self.variables)

    @property
    def needs_mask(self) -> bool:
        """Whether a tile can reach past the extent."""
        return not is_whole(self) if isinstance(self.extent, int) else not self.whole


@final
@dataclass(frozen=True)
class Tiling:
    """The tile of one program; `axes` are its dimensions, in order."""

    axes: tuple[Axis, ...]
    z_variables: tuple[LoopVar, ...]
    persistent: bool
    num_warps: int

    def measured(self, measure: Measure) -> Tiling:
        """The same tiling, with axes whose extents are multiples of their blocks marked as such."""
        axes = tuple(replace(a, whole=is_whole(a, measure)) for a in self.axes)
        return replace(self, axes=axes)

    def axis(self, name: str) -> Axis | None:
        """The axis called `name`, if the tile has it."""
        return next((a for a in self.axes if a.name == name), None)


def is_whole(axis: Axis, measure: Measure = lambda extent: extent) -> bool:
    """Whether the extent, as measured, is a positive multiple of the block. (A program for the
    other axes reads a block even if the extent is 0.)"""
    extent = measure(axis.extent)
    return isinstance(extent, int) and extent > 0 and extent % axis.block == 0


def choose_tiling(kernel: Kernel, measure: Measure = lambda extent: extent) -> Tiling:
    """The tile shape for `kernel`, from its extents (as measured) and access strides."""
    if kernel.inner:
        return _reduction_tiling(kernel, measure)
    transposed = _transposed_variable(kernel)
    if transposed is not None:
        return _transpose_tiling(kernel, transposed, measure)
    total = measure(number_of_points(kernel.outer))
    block = POINTWISE_BLOCK
    if isinstance(total, int):
        block = min(block, max(32, next_power_of_two(total)))
    warps = 4 if block >= 512 else 1
    return Tiling((Axis("x", kernel.outer, block),), (), True, warps)


def next_power_of_two(value: int) -> int:
    """The smallest power of two that is at least `value`."""
    return 1 << max(0, value - 1).bit_length()


def _accesses(kernel: Kernel) -> Iterator[tuple[Expr | int, int]]:
    """(index, item size) of every load and store."""
    sizes = {b.name: ITEM_SIZE[b.dtype] for b in kernel.buffers}
    for node in kernel.nodes:
        if isinstance(node, Load):
            yield node.index, sizes[node.buffer]
    for store in kernel.stores:
        yield store.index, sizes[store.buffer]


def _transposed_variable(kernel: Kernel) -> LoopVar | None:
    """The outer variable along which an access is contiguous that is not along the last one, or
    None."""
    if len(kernel.outer) < 2:
        return None
    *others, last = kernel.outer
    for index, _ in _accesses(kernel):
        if stride(index, last.symbol) in (0, 1):
            continue
        for variable in others:
            if stride(index, variable.symbol) == 1:
                return variable
    return None


def _transpose_tiling(kernel: Kernel, variable: LoopVar, measure: Measure) -> Tiling:
    last = kernel.outer[-1]
    rest = tuple(v for v in kernel.outer if v is not variable and v is not last)
    y = Axis("y", (variable,), _clip(TRANSPOSE_BLOCK, measure(variable.extent)))
    x = Axis("x", (last,), _clip(TRANSPOSE_BLOCK, measure(last.extent)))
    return Tiling((y, x), rest, True, 4 if x.block * y.block >= 1024 else 1)


def _clip(block: int, extent: Expr | int) -> int:
    return min(block, next_power_of_two(extent)) if isinstance(extent, int) else block


def _reduction_tiling(kernel: Kernel, measure: Measure) -> Tiling:
    points = measure(number_of_points(kernel.outer))
    row = measure(number_of_points(kernel.inner))
    across, along = _contiguous_bytes(kernel)
    if across and across >= along:
        return _outer_reduction_tiling(kernel, points, row)
    fits = isinstance(row, int) and row <= LARGEST_TILE
    if fits and isinstance(row, int):
        r_block = next_power_of_two(row)
    else:
        r_block = _clip(LOOPED_BLOCK // (SECTOR if across else 1), row)
    x_block = max(1, min(_clip(32, points), 1024 // r_block))
    if across:  # a tensor with the other order is read in whole sectors
        x_block = max(x_block, min(_clip(SECTOR, points), LARGEST_TILE // r_block))
    warps = max(1, min(32, next_power_of_two(x_block * r_block // ELEMENTS_PER_WARP)))
    axes = (Axis("x", kernel.outer, x_block), Axis("r", kernel.inner, r_block))
    return Tiling(axes, (), fits, warps)


def _outer_reduction_tiling(kernel: Kernel, points: Expr | int, row: Expr | int) -> Tiling:
    x_block = _clip(OUTER_REDUCTION_COLUMNS, points)
    dear = any(isinstance(n, Op) and n.name in DEAR - QUICK and n.inner for n in kernel.nodes)
    room = LOOPED_BLOCK // 2 if dear else LOOPED_BLOCK  # more of them would spill
    r_block = _clip(max(1, room // x_block), row)
    fits = isinstance(row, int) and row <= r_block
    axes = (Axis("x", kernel.outer, x_block), Axis("r", kernel.inner, r_block))
    return Tiling(axes, (), fits, max(1, min(8, x_block * r_block // ELEMENTS_PER_WARP)))


def _contiguous_bytes(kernel: Kernel) -> tuple[int, int]:
    """The bytes per point that are contiguous along the last outer variable only, and along the
    last inner one only. Accesses with one element a row, or one for all rows, do not count."""
    if not kernel.outer:
        return 0, 1
    across = along = 0
    outer, inner = ({v.symbol for v in loops} for loops in (kernel.outer, kernel.inner))
    last, last_inner = kernel.outer[-1].symbol, kernel.inner[-1].symbol
    for index, size in _accesses(kernel):
        moving = symbols(index)
        if not moving.isdisjoint(outer) and not moving.isdisjoint(inner):
            across += size * (stride(index, last) == 1)
            along += size * (stride(index, last_inner) == 1)
    return across, along
