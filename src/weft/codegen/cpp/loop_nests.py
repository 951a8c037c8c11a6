"""Prints the loop nests of a kernel, with their reductions and row buffers.

Place in the pipeline: between `nodes.py` (statements) and `emit.py` (the translation unit).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from math import prod

from weft.codegen.cpp.loop_splitting import Segment, is_cut
from weft.codegen.cpp.nodes import NodeWriter, name_of
from weft.codegen.cpp.plan import STRIP_TRIPS, SWEPT_ROWS, LoopNest, position_type, trips
from weft.codegen.cpp.spelling import C_TYPE, REDUCTION
from weft.codegen.ir.dtypes import FLOAT_TYPES
from weft.codegen.ir.loop_ir import Const, Load, LoopVar, Node, Reduce, flat_position, stride
from weft.shapes.algebra.expr import IntExpr, subs


class LoopNestWriter(NodeWriter):
    """Prints the nests of inner loops, one after the other."""

    def outer_nodes(self, wanted: Callable[[Node], bool]) -> None:
        """The `wanted` outer-level nodes that are not yet printed and whose operands are."""
        for node in self.kernel.nodes:
            if node.inner or node.id in self.done or isinstance(node, Reduce) or not wanted(node):
                continue
            self.node(node)

    def after_nests(self) -> None:
        """Print what follows the inner loops: the rest of the outer level and its stores."""
        self.outer_nodes(lambda n: True)
        self.stores([s for s in self.kernel.stores if not s.inner])

    # -- inner loops ---------------------------------------------------------------------------

    def nest(self, nest: LoopNest) -> None:
        """One run over the inner loops."""
        names = self.accumulators(nest)
        for reduction in nest.reductions:
            self.finish(reduction, names[reduction.id])

    def accumulators(self, nest: LoopNest) -> dict[int, str]:
        """Print the inner loops of a nest; returns the names of their accumulators."""
        saved = set(self.done)
        for node in nest.kept:
            self.line(f"alignas(64) {_row_type(node)} row{node.id}[{self.row_length()}];")
        flushed = [r for r in nest.reductions if self.is_flushed(r)]
        names = {r.id: f"{'total' if r in flushed else 'acc'}{r.id}" for r in nest.reductions}
        for reduction in nest.reductions:
            self.line(f"auto {names[reduction.id]} = {self.begin(reduction)};")
        self.inner_loops(list(self.plan.loops), nest, flushed)
        self.done = saved
        return names

    def inner_loops(self, loops: list[LoopVar], nest: LoopNest, flushed: list[Reduce]) -> None:
        """The sequential loops around, then the innermost one: vectorised, or in strips."""
        plan = self.plan
        if len(loops) > (0 if plan.vector_inner else 1):
            with self.counting_loop(loops[0], *self.bounds(loops[0])):
                self.inner_loops(loops[1:], nest, flushed)
            return
        innermost = plan.vector if plan.vector_inner else loops[0] if loops else None
        if innermost is None:
            self.nest_body(nest)
            return
        low, high = self.bounds(innermost)
        if not flushed:
            self.innermost(innermost, low, high, nest)
            return
        length = STRIP_TRIPS * (plan.step if plan.vector_inner else 1)
        with self.block(f"for (int64_t strip = {low}; strip < {high}; strip += {length})"):
            for r in flushed:
                self.line(f"auto acc{r.id} = {self.begin(r)};")
            self.innermost(innermost, "strip", f"weft_min(strip + {length}, {high})", nest)
            for r in flushed:
                self.line(f"total{r.id} = Sum::combine(total{r.id}, acc{r.id});")

    def bounds(self, variable: LoopVar) -> tuple[str, str]:
        """Where an inner loop begins and ends."""
        if variable is self.plan.split:
            return "chunk_begin", "chunk_end"
        return "0", self.index(variable.extent)

    def counting_loop(
        self, variable: LoopVar, low: str, high: str
    ) -> AbstractContextManager[None]:
        """A sequential loop of a variable over [low, high), around what is printed inside."""
        name = self.names[name_of(variable)]
        return self.block(f"for (int64_t {name} = {low}; {name} < {high}; ++{name})")

    def innermost(self, variable: LoopVar, low: str, high: str, nest: LoopNest) -> None:
        if self.plan.vector_inner:
            parts = self.plan.segments if is_cut(nest.nodes, self.plan.segments) else []
            self.vector_loop(variable, low, high, lambda: self.nest_body(nest), parts)
            return
        with self.counting_loop(variable, low, high):
            self.nest_body(nest)

    def vector_loop(
        self, variable: LoopVar, low: str, high: str, body: Callable[[], None],
        parts: list[Segment],
    ) -> None:
        """The vectorised loop, once per segment in which all comparisons of its variable are known.
        """
        if not parts:
            self.vector_segment(variable.extent, low, high, body)
            return
        whole = low == "0" and high == self.index(variable.extent)
        around = self.segment
        for part in parts:
            self.segment, saved = part, set(self.done)
            first, last = self.index(part.start), self.index(part.stop)
            aligned = all(isinstance(edge, int) and edge % self.plan.step == 0
                          for edge in (part.start, part.stop))
            if not whole:
                first, last = f"weft_max({low}, {first})", f"weft_min({high}, {last})"
            length = part.stop - part.start if whole or aligned else None
            self.vector_segment(length, first, last, body)
            self.done, self.segment = saved, around

    def vector_segment(
        self, length: IntExpr | None, low: str, high: str, body: Callable[[], None]
    ) -> None:
        """A loop over [low, high), of `length` points if that is known."""
        step = self.plan.step
        name = f"[[maybe_unused]] int64_t {self.vector_name}, [[maybe_unused]] auto n"
        if isinstance(length, int) and length < step and low.isdecimal() and high.isdecimal():
            with self.block(f"[&]({name}) LAMBDA", f"({low}, {length});"):
                body()
            return
        divisible = isinstance(length, int) and length % step == 0
        loop = "full_loop<S>" if divisible else f"vector_loop<S{', Whole' * self.plan.in_two}>"
        with self.block(f"{loop}({low}, {high}, [&]({name}) LAMBDA", ");"):
            body()

    def nest_body(self, nest: LoopNest) -> None:
        """What one iteration of the innermost loop does."""
        for node in nest.reused:
            self.rows[node.id] = f"row{node.id}"
            self.read_row(node)
        for node in nest.nodes:
            if not (isinstance(node, Const) or node.id in self.done):
                self.node(node)
        for node in nest.kept:
            if node.id in self.known or node.id not in self.segment.unused:
                self.write_row(node)
        for reduction in nest.reductions:
            self.accumulate(reduction)
        self.stores(nest.stores)

    # -- row by row ----------------------------------------------------------------------------

    def sweep(self, columns: LoopVar, nest: LoopNest, low: str, high: str) -> None:
        """Print all rows of neighbouring columns, row by row, then what follows their
        reductions."""
        saved = set(self.done)
        position = f"({self.vector_name} - ({low})) / S"
        count = -(-(self.plan.block or trips(columns.extent)) // self.plan.step)
        flushed = [r for r in nest.reductions if self.is_flushed(r)]
        for r, name in [(r, f"accs{r.id}") for r in nest.reductions] + [
            (r, f"totals{r.id}") for r in flushed
        ]:
            self.line(f"alignas(64) decltype({self.begin(r)}) {name}[{count}];")
            self.line(f"for (auto& one : {name}) one = {self.begin(r)};")
        if flushed:
            self.line("int64_t rows = 0;")
        *around, rows = self.plan.loops
        with ExitStack() as loops:
            for loop in around:
                loops.enter_context(self.counting_loop(loop, *self.bounds(loop)))
            first, last = self.bounds(rows)
            text = f"for (int64_t row = {first}; row < {last}; row += {SWEPT_ROWS})"
            loops.enter_context(self.block(text))
            self.line(f"const int64_t row_end = weft_min(row + {SWEPT_ROWS}, {last});")
            self.vector_segment(
                columns.extent, low, high, lambda: self.swept_rows(rows, nest, position))
            if flushed:
                self.flush(flushed, count)
        self.done = set(saved)
        sums = {r: f"accs{r.id}[{position}]" for r in nest.reductions}
        for r in flushed:
            sums[r] = f"Sum::combine(totals{r.id}[{position}], {sums[r]})"
        self.vector_segment(columns.extent, low, high, lambda: self.swept_results(sums))
        self.done = saved

    def swept_rows(self, rows: LoopVar, nest: LoopNest, position: str) -> None:
        """What a few rows do to one vector of columns, whose sums stay in registers meanwhile."""
        self.column_nodes()
        for r in nest.reductions:
            self.line(f"auto acc{r.id} = accs{r.id}[{position}];")
        with self.counting_loop(rows, "row", "row_end"):
            self.prefetch(rows, nest)
            self.nest_body(nest)
        for r in nest.reductions:
            self.line(f"accs{r.id}[{position}] = acc{r.id};")

    def swept_results(self, sums: dict[Reduce, str]) -> None:
        """What follows the reductions of one vector of columns."""
        self.column_nodes()
        for reduction, text in sums.items():
            self.finish(reduction, text)
        self.after_nests()

    def column_nodes(self) -> None:
        """Print what is known about columns before all rows."""
        self.outer_nodes(lambda n: not self.plan.nest_of[n.id])

    def prefetch(self, rows: LoopVar, nest: LoopNest) -> None:
        """Prefetch a row of the next few: long computations leave few loads in flight."""
        if self.plan.parts > 1:
            return
        for node in nest.nodes:
            if not isinstance(node, Load) or node.indirect or not self.plan.varies(node):
                continue
            following = subs(node.index, {rows.symbol: rows.symbol + SWEPT_ROWS})
            if following != node.index:
                where = f"{self.buffers[node.buffer]} + ({self.index(following)})"
                self.line(f"__builtin_prefetch({where});")

    def flush(self, flushed: list[Reduce], count: int) -> None:
        """Keep long float sums accurate by starting new partial sums."""
        with (
            self.block(f"if (++rows % {STRIP_TRIPS // SWEPT_ROWS} == 0)"),
            self.block(f"for (int64_t k = 0; k < {count}; ++k)"),
        ):
            for r in flushed:
                self.line(f"totals{r.id}[k] = Sum::combine(totals{r.id}[k], accs{r.id}[k]);")
                self.line(f"accs{r.id}[k] = {self.begin(r)};")

    # -- row buffers ---------------------------------------------------------------------------

    def row_length(self) -> int:
        extents = [v.extent for v in self.kernel.inner if isinstance(v.extent, int)]
        points = self.plan.row_capacity or max(1, prod(extents))
        return points * (1 if self.row_by_points() else self.plan.step)

    def row_by_points(self) -> bool:
        """Whether a row buffer holds one element per inner point (and not a vector of lanes)."""
        return self.plan.vector_inner or self.plan.vector is None

    def row_position(self) -> str:
        position = self.index(self.inner_position())
        return position if self.row_by_points() else f"({position}) * S"

    def inner_position(self) -> IntExpr:
        """The number of an inner point, in the order of the loops as printed."""
        plan = self.plan
        order = [*plan.loops, *([plan.vector] if plan.vector_inner and plan.vector else [])]
        return flat_position(order)

    def write_row(self, node: Node) -> None:
        where = f"row{node.id} + ({self.row_position()})"
        if not self.plan.varies(node) and self.row_by_points() and self.plan.vector is None:
            self.line(f"store1({where}, {self.use(node)});")
        else:
            self.line(f"store({where}, {self.wide(node)}, {self.row_count()});")

    def read_row(self, node: Node) -> None:
        where = f"row{node.id} + ({self.row_position()})"
        if self.plan.vector is None:
            self.define(node, f"load1({where})")
        elif self.plan.varies(node):
            self.define(node, f"load<L, P>({where}, {self.row_count()})")
        else:  # written to all lanes
            self.define(node, f"load1({where})")

    def row_count(self) -> str:
        return "n" if self.plan.vector_inner else "Full{}"

    # -- reductions ----------------------------------------------------------------------------

    def is_wide(self, reduction: Reduce) -> bool:
        """Whether the accumulator has one value per lane."""
        return self.plan.vector_inner or self.plan.varies(reduction.value)

    def is_flushed(self, reduction: Reduce) -> bool:
        """Whether it is a float sum so long that it needs partial sums."""
        if reduction.kind != "sum" or reduction.dtype not in FLOAT_TYPES:
            return False
        extents = [v.extent for v in self.kernel.inner]
        if not all(isinstance(e, int) for e in extents):
            return True
        trips = prod(e for e in extents if isinstance(e, int))
        return trips > STRIP_TRIPS * (self.plan.step if self.plan.vector_inner else 1)

    def begin(self, reduction: Reduce) -> str:
        shape = "L, P" if self.is_wide(reduction) else "1, 1"
        kinds = C_TYPE[reduction.value.dtype]
        if reduction.kind.startswith("arg"):
            kinds += f", {C_TYPE[position_type(self.kernel, reduction)]}"
        return f"{REDUCTION[reduction.kind]}::begin<{kinds}, {shape}>()"

    def accumulate(self, reduction: Reduce) -> None:
        wide = self.is_wide(reduction)
        value = self.wide(reduction.value) if wide else self.use(reduction.value)
        arguments = [f"acc{reduction.id}", value]
        if reduction.kind.startswith("arg"):
            arguments.append(self.position(position_type(self.kernel, reduction), wide))
        arguments.append("n" if self.plan.vector_inner else "Full{}")
        call = f"{REDUCTION[reduction.kind]}::next({', '.join(arguments)})"
        self.line(f"acc{reduction.id} = {call};")

    def position(self, dtype: str, wide: bool) -> str:
        """The row-major position in the inner domain, for argmax and argmin."""
        flat = flat_position(self.kernel.inner)
        text = f"scalar<{C_TYPE[dtype]}>({self.index(flat)})"
        if not wide:
            return text
        if not self.plan.vector_inner:
            return f"splat<L, P>({text})"
        assert self.plan.vector is not None
        step = stride(flat, self.plan.vector.symbol)
        assert step is not None
        return f"steps<L, P>({text}, {self.index(step)})"

    def finish(self, reduction: Reduce, accumulator: str) -> None:
        kind = REDUCTION[reduction.kind]
        is_arg = reduction.kind.startswith("arg")
        if self.plan.vector_inner or (is_arg and not self.is_wide(reduction)):
            self.define(reduction, f"{kind}::fold({accumulator})")
        elif is_arg:
            self.define(reduction, f"{kind}::positions({accumulator})")
        else:
            self.define(reduction, accumulator)


def _row_type(node: Node) -> str:
    return C_TYPE[node.dtype]
