"""Prints sums of neighbouring columns row by row: processors fetch ahead along rows.

Place in the pipeline: beside `loop_nests.py`, for plans that are `swept`. The sums of a block of
columns are carried in arrays through all rows, a few rows at a time in registers::

    for each 4 rows: for each vector of columns:
        acc = accs[column];  for row in these 4: acc += x[row, column];  accs[column] = acc
    for each vector of columns: what follows the sums
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import final

from weft.codegen.cpp.loop_nests import LoopNestWriter
from weft.codegen.cpp.plan import STRIP_TRIPS, SWEPT_ROWS, trips
from weft.codegen.ir.loop_ir import Load, LoopVar, Reduce
from weft.codegen.ir.loop_nests import LoopNest
from weft.shapes.algebra.expr import subs


@final
class SweptColumnsWriter:
    """Prints the one loop nest of a swept kernel, whose vectorised variable counts the columns."""

    def __init__(self, nests: LoopNestWriter, columns: LoopVar, low: str, high: str) -> None:
        self.nests, self.nodes, self.indices = nests, nests.nodes, nests.indices
        self.plan, self.text, self.reductions = nests.plan, nests.text, nests.reductions
        self.columns, self.low, self.high = columns, low, high
        self.nest: LoopNest = nests.plan.nests[0]
        self.flushed = list(filter(self.reductions.is_flushed, self.nest.reductions))
        self.vectors = -(-(self.plan.block or trips(columns.extent)) // self.plan.step)
        self.position = f"({self.indices.vector_name} - ({low})) / S"

    def write(self) -> None:
        """Print all rows, row by row, then what follows their reductions."""
        with self.nests.scope.block():
            self._declare_sums()
            self._rows()
        sums = {r: f"accs{r.id}[{self.position}]" for r in self.nest.reductions}
        for r in self.flushed:
            sums[r] = f"Sum::combine(totals{r.id}[{self.position}], {sums[r]})"
        with self.nests.scope.block():
            self.nests.vector_segment(
                self.columns.extent, self.low, self.high, lambda: self._results(sums))

    def _declare_sums(self) -> None:
        for r, name in [(r, f"accs{r.id}") for r in self.nest.reductions] + [
            (r, f"totals{r.id}") for r in self.flushed
        ]:
            begin = self.reductions.begin(r)
            self.text.line(f"alignas(64) decltype({begin}) {name}[{self.vectors}];")
            self.text.line(f"for (auto& one : {name}) one = {begin};")
        if self.flushed:
            self.text.line("int64_t rows = 0;")

    def _rows(self) -> None:
        """The loops over rows, the last one a few at a time, around those over columns."""
        *around, rows = self.plan.loops
        with ExitStack() as loops:
            for loop in around:
                loops.enter_context(self.nests.counting_loop(loop, *self.nests.bounds(loop)))
            first, last = self.nests.bounds(rows)
            text = f"for (int64_t row = {first}; row < {last}; row += {SWEPT_ROWS})"
            loops.enter_context(self.text.block(text))
            self.text.line(f"const int64_t row_end = weft_min(row + {SWEPT_ROWS}, {last});")
            self.nests.vector_segment(
                self.columns.extent, self.low, self.high, lambda: self._few_rows(rows))
            if self.flushed:
                self._flush()

    def _few_rows(self, rows: LoopVar) -> None:
        """What a few rows do to one vector of columns, whose sums stay in registers meanwhile."""
        self._column_nodes()
        for r in self.nest.reductions:
            self.text.line(f"auto acc{r.id} = accs{r.id}[{self.position}];")
        with self.nests.counting_loop(rows, "row", "row_end"):
            self._prefetch(rows)
            self.nests.body(self.nest)
        for r in self.nest.reductions:
            self.text.line(f"accs{r.id}[{self.position}] = acc{r.id};")

    def _results(self, sums: dict[Reduce, str]) -> None:
        """What follows the reductions of one vector of columns."""
        self._column_nodes()
        for reduction, accumulator in sums.items():
            self.reductions.finish(reduction, accumulator)
        self.nests.write_rest()

    def _column_nodes(self) -> None:
        """Print what is known about columns before all rows."""
        self.nodes.write_outer(lambda n: not self.plan.nest_of[n.id])

    def _prefetch(self, rows: LoopVar) -> None:
        """Prefetch a row of the next few: long computations leave few loads in flight."""
        if self.plan.parts > 1:
            return
        for node in self.nest.nodes:
            if not isinstance(node, Load) or node.indirect or not self.plan.varies(node):
                continue
            following = subs(node.index, {rows.symbol: rows.symbol + SWEPT_ROWS})
            if following != node.index:
                buffer, at = self.indices.buffers[node.buffer], self.indices.index(following)
                self.text.line(f"__builtin_prefetch({buffer} + ({at}));")

    def _flush(self) -> None:
        """Keep long float sums accurate by starting new partial sums."""
        with (
            self.text.block(f"if (++rows % {STRIP_TRIPS // SWEPT_ROWS} == 0)"),
            self.text.block(f"for (int64_t k = 0; k < {self.vectors}; ++k)"),
        ):
            for r in self.flushed:
                self.text.line(
                    f"totals{r.id}[k] = Sum::combine(totals{r.id}[k], accs{r.id}[k]);")
                self.text.line(f"accs{r.id}[k] = {self.reductions.begin(r)};")
