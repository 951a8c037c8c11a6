"""Prints the copies of a tile: transposed loads before its rows, transposed stores after them.

Place in the pipeline: `tiles.py` chooses the tile, `points.py` prints the loops over its rows::

    alignas(64) float tile0[4096];
    transpose_tile(tile0, 64, b0 + (…), 1024, row_end - row_begin, column_end - column_begin);
    for (int64_t i0 = row_begin; i0 < row_end; ++i0) {
      …
    }
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import final

from weft.codegen.cpp.indices import IndexWriter, name_of
from weft.codegen.cpp.tiles import Tile
from weft.codegen.ir.loop_ir import Load, Store, stride


@final
class TileWriter:
    """Prints what surrounds the rows of one block."""

    def __init__(self, indices: IndexWriter, tile: Tile) -> None:
        self.indices, self.text, self.tile = indices, indices.text, tile
        self.kernel, self.vector = indices.plan.kernel, indices.plan.vector

    @contextmanager
    def rows(self, low: str, high: str) -> Iterator[None]:
        """A loop over the rows of one block, of the columns in [low, high); the tiles of loads are
        copied before it, those of stores after it."""
        tile, stores = self.tile, self.kernel.stores
        row = self.indices.names[name_of(tile.rows)]
        extent = self.indices.index(tile.rows.extent)
        self.text.line(f"const int64_t row_begin = row_block * {tile.height};")
        self.text.line(f"const int64_t row_end = weft_min(row_begin + {tile.height}, {extent});")
        self.text.line(f"const int64_t column_begin = {low}, column_end = {high};")
        for node in self.kernel.nodes:
            if isinstance(node, Load) and node.id in tile.loads:
                self._declare(f"tile{node.id}", node.buffer)
                source, step = self._turned(node)
                self.text.line(f"transpose_tile(tile{node.id}, {tile.width}, {source}, {step}, "
                               "row_end - row_begin, column_end - column_begin);")
        for number in sorted(tile.stores):
            self._declare(f"made{number}", stores[number].buffer)
        with self.text.block(f"for (int64_t {row} = row_begin; {row} < row_end; ++{row})"):
            yield
        for number in sorted(tile.stores):
            target, step = self._turned(stores[number])
            self.text.line(f"transpose_tile({target}, {step}, made{number}, {tile.width}, "
                           "column_end - column_begin, row_end - row_begin);")

    def _declare(self, name: str, buffer: str) -> None:
        elements = self.tile.height * self.tile.width
        self.text.line(f"alignas(64) {self.indices.memory[buffer]} {name}[{elements}];")

    def _turned(self, access: Load | Store) -> tuple[str, str]:
        """The address of a tile's first element in memory, and the distance of its columns."""
        assert self.vector is not None
        step = stride(access.index, self.vector.symbol)
        assert step is not None
        return self.indices.corner(access, self.tile), self.indices.index(step)
