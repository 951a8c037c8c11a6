"""Prints the loop nests of a kernel: what one point of its outer loops does.

Place in the pipeline: above the statements of `nodes.py`, `stores.py`, `reductions.py` and
`row_buffers.py`; `points.py` puts the loop over points around it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import final

from weft.codegen.cpp.indices import name_of
from weft.codegen.cpp.loop_splitting import Segment, is_cut
from weft.codegen.cpp.nodes import NodeWriter
from weft.codegen.cpp.plan import STRIP_TRIPS
from weft.codegen.cpp.reductions import ReductionWriter
from weft.codegen.cpp.row_buffers import RowBufferWriter
from weft.codegen.cpp.stores import StoreWriter
from weft.codegen.ir.loop_ir import Const, LoopVar, Reduce
from weft.codegen.ir.loop_nests import LoopNest
from weft.shapes.algebra.expr import IntExpr


@final
class LoopNestWriter:
    """Prints the nests of inner loops, one after the other."""

    def __init__(self, nodes: NodeWriter) -> None:
        self.nodes, self.indices, self.scope = nodes, nodes.indices, nodes.scope
        self.plan, self.kernel, self.text = nodes.plan, nodes.kernel, nodes.text
        self.stores = StoreWriter(nodes)
        self.reductions = ReductionWriter(nodes)
        self.rows = RowBufferWriter(nodes)

    def write_all(self) -> None:
        """Everything of one point, or of the lanes of one vector of points."""
        for number, nest in enumerate(self.plan.nests):
            self.nodes.write_outer(lambda n, known=number: self.plan.nest_of[n.id] <= known)  # type: ignore[misc]
            self._write(nest)
        self.write_rest()

    def write_rest(self) -> None:
        """Print what follows the inner loops: the rest of the outer level and its stores."""
        self.nodes.write_outer(lambda n: True)
        self.stores.write([s for s in self.kernel.stores if not s.inner])

    def _write(self, nest: LoopNest) -> None:
        names = self.accumulators(nest)
        for reduction in nest.reductions:
            self.reductions.finish(reduction, names[reduction.id])

    def accumulators(self, nest: LoopNest) -> dict[int, str]:
        """Print the inner loops of a nest; returns the names of their accumulators."""
        with self.scope.block():
            for node in nest.kept:
                self.rows.declare(node)
            flushed = list(filter(self.reductions.is_flushed, nest.reductions))
            names = {r.id: f"{'total' if r in flushed else 'acc'}{r.id}" for r in nest.reductions}
            for reduction in nest.reductions:
                self.text.line(f"auto {names[reduction.id]} = {self.reductions.begin(reduction)};")
            self._inner_loops(self.plan.loops, nest, flushed)
        return names

    # -- the loops, from the outermost ---------------------------------------------------------

    def _inner_loops(
        self, loops: Sequence[LoopVar], nest: LoopNest, flushed: list[Reduce]
    ) -> None:
        """The sequential loops around, then the innermost one: vectorised, or in strips."""
        plan = self.plan
        if len(loops) > (0 if plan.vector_inner else 1):
            with self.counting_loop(loops[0], *self.bounds(loops[0])):
                self._inner_loops(loops[1:], nest, flushed)
            return
        innermost = plan.vector if plan.vector_inner else loops[0] if loops else None
        if innermost is None:
            self.body(nest)
        elif flushed:
            self._strips(innermost, nest, flushed)
        else:
            self._innermost(innermost, *self.bounds(innermost), nest)

    def _strips(self, innermost: LoopVar, nest: LoopNest, flushed: list[Reduce]) -> None:
        """The innermost loop in strips, whose partial sums are added up."""
        low, high = self.bounds(innermost)
        length = STRIP_TRIPS * (self.plan.step if self.plan.vector_inner else 1)
        with self.text.block(f"for (int64_t strip = {low}; strip < {high}; strip += {length})"):
            for r in flushed:
                self.text.line(f"auto acc{r.id} = {self.reductions.begin(r)};")
            self._innermost(innermost, "strip", f"weft_min(strip + {length}, {high})", nest)
            for r in flushed:
                self.text.line(f"total{r.id} = Sum::combine(total{r.id}, acc{r.id});")

    def _innermost(self, variable: LoopVar, low: str, high: str, nest: LoopNest) -> None:
        if self.plan.vector_inner:
            parts = self.plan.segments if is_cut(nest.nodes, self.plan.segments) else []
            self.vector_loop(variable, low, high, lambda: self.body(nest), parts)
            return
        with self.counting_loop(variable, low, high):
            self.body(nest)

    def body(self, nest: LoopNest) -> None:
        """What one iteration of the innermost loop does."""
        scope = self.scope
        for node in nest.reused:
            self.rows.read(node)
        for node in nest.nodes:
            if not (isinstance(node, Const) or node.id in scope.defined):
                self.nodes.write(node)
        for node in nest.kept:
            if node.id in scope.known or node.id not in scope.segment.unused:
                self.rows.write(node)
        for reduction in nest.reductions:
            self.reductions.accumulate(reduction)
        self.stores.write(nest.stores)

    # -- one loop ------------------------------------------------------------------------------

    def bounds(self, variable: LoopVar) -> tuple[str, str]:
        """Where an inner loop begins and ends."""
        if variable is self.plan.split:
            return "chunk_begin", "chunk_end"
        return "0", self.indices.index(variable.extent)

    def counting_loop(
        self, variable: LoopVar, low: str, high: str
    ) -> AbstractContextManager[None]:
        """A sequential loop of a variable over [low, high), around what is printed inside."""
        name = self.indices.names[name_of(variable)]
        return self.text.block(f"for (int64_t {name} = {low}; {name} < {high}; ++{name})")

    def vector_loop(
        self, variable: LoopVar, low: str, high: str, body: Callable[[], None],
        parts: Sequence[Segment],
    ) -> None:
        """The vectorised loop, once per segment in which all comparisons of its variable are known.
        """
        if not parts:
            self.vector_segment(variable.extent, low, high, body)
            return
        whole = low == "0" and high == self.indices.index(variable.extent)
        for part in parts:
            with self.scope.block(part):
                first, last = self.indices.index(part.start), self.indices.index(part.stop)
                aligned = all(isinstance(edge, int) and edge % self.plan.step == 0
                              for edge in (part.start, part.stop))
                if not whole:
                    first, last = f"weft_max({low}, {first})", f"weft_min({high}, {last})"
                length = part.stop - part.start if whole or aligned else None
                self.vector_segment(length, first, last, body)

    def vector_segment(
        self, length: IntExpr | None, low: str, high: str, body: Callable[[], None]
    ) -> None:
        """A loop over [low, high), of `length` points if that is known."""
        step = self.plan.step
        name = f"[[maybe_unused]] int64_t {self.indices.vector_name}, [[maybe_unused]] auto n"
        if isinstance(length, int) and length < step and low.isdecimal() and high.isdecimal():
            with self.text.block(f"[&]({name}) LAMBDA", f"({low}, {length});"):
                body()
            return
        divisible = isinstance(length, int) and length % step == 0
        loop = "full_loop<S>" if divisible else f"vector_loop<S{', Whole' * self.plan.in_two}>"
        with self.text.block(f"{loop}({low}, {high}, [&]({name}) LAMBDA", ");"):
            body()
