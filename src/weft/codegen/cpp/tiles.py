"""Transposed loads and stores: copied in tiles, so that neither memory nor vectors are strided.

Place in the pipeline: asked by `plan.py`; `tile_copies.py` prints the copies.

A load that has a long stride along the vectorised variable, but is contiguous along another outer
variable (the tile's rows), is copied for a block of rows at once: `out[i, j] = x[j, i]` becomes

    for each block of 64 rows i and 64 columns j:
        tile[i][j] = x[j][i]        # reads runs of 64 elements; transposes in registers
        for i in block: for j in block: out[i, j] = tile[i][j]

A store of that kind (one of several results, laid out otherwise) fills a tile, which is copied
after the rows of the block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from weft.codegen.ir.dtypes import ITEM_SIZE
from weft.codegen.ir.loop_ir import Kernel, Load, LoopVar, Store, stride
from weft.shapes.algebra.expr import Expr, IntExpr

TILE_BYTES: Final = 48 << 10
"""Space of all tiles of a kernel: they stay in the caches next to the core."""
COLUMNS: Final = 64
"""Columns of a tile where the vectorised variable is an outer one."""
HEIGHTS: Final = (64, 32, 16)
COST: Final = 0.25
"""Cost of a tiled load or store per element; 1.5 is that of a strided one."""
LEFT_COST: Final = 2.0
"""The cost of an element at the rim of a tile, where no whole block is transposed in registers."""


@final
@dataclass(frozen=True)
class Tile:
    """`height` rows along the outer variable `rows`, `width` columns, for each of `loads` and
    `stores`."""

    rows: LoopVar
    height: int
    width: int
    loads: frozenset[int]  # node ids
    stores: frozenset[int]  # positions among the kernel's stores


def choose_tile(kernel: Kernel, v: LoopVar, varying: frozenset[int]) -> Tile | None:
    """The best tile if `v` is vectorised; None without transposed loads or stores."""
    width = _width(kernel, v)
    candidates = [u for u in kernel.outer if u is not v]
    if not width or not candidates:
        return None
    transposed = {u: _transposed_loads(kernel, v.symbol, u.symbol, varying) for u in candidates}
    rows = max(candidates, key=lambda u: len(transposed[u][0]) + len(transposed[u][1]))
    loads, stores = transposed[rows]
    if not (loads or stores) or (
            isinstance(rows.extent, int) and rows.extent < HEIGHTS[-1] // 2):
        return None
    written = {b.name: ITEM_SIZE[b.dtype] for b in kernel.buffers}
    row_bytes = sum(width * ITEM_SIZE[load.dtype] for load in loads)
    row_bytes += sum(width * written[kernel.stores[k].buffer] for k in stores)
    height = next((h for h in HEIGHTS if h * row_bytes <= TILE_BYTES), None)
    if height is None:
        return None
    return Tile(rows, height, width, frozenset(n.id for n in loads), frozenset(stores))


def tile_cost(tile: Tile | None, v: LoopVar, vector_bytes: int) -> float:
    """The cost of one of a tile's loads or stores per element, if `v` is vectorised."""
    if tile is None:
        return 0.0
    block = max(1, vector_bytes // 4)
    whole = 1.0
    for extent in (tile.rows.extent, v.extent):
        if isinstance(extent, int) and extent > 0:
            whole *= extent // block * block / extent
    return COST * whole + LEFT_COST * (1 - whole)


def _width(kernel: Kernel, v: LoopVar) -> int:
    """The number of columns of a tile; 0 if tiles are not possible."""
    if not kernel.inner:
        return COLUMNS
    only = kernel.inner == (v,)
    return v.extent if only and isinstance(v.extent, int) and v.extent > 1 else 0


def _transposed_loads(
    kernel: Kernel, v: Expr, u: Expr, varying: frozenset[int]
) -> tuple[list[Load], list[int]]:
    """Loads that are contiguous along `u` and strided along `v`, and the positions of such
    stores."""
    loads = [
        node
        for node in kernel.nodes
        if isinstance(node, Load) and node.id in varying and node.mask is None
        and _is_turned(node, v, u)
    ]
    stores = [k for k, store in enumerate(kernel.stores)
              if store.mode == "assign" and _is_turned(store, v, u)]
    return loads, stores


def _is_turned(access: Load | Store, v: Expr, u: Expr) -> bool:
    index = access.index
    return not access.indirect and stride(index, u) == 1 and _is_long(stride(index, v))


def _is_long(step: IntExpr | None) -> bool:
    return step is not None and not (isinstance(step, int) and step in (0, 1))
