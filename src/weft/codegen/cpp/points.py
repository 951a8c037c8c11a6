"""Prints a C++ function over a range of points, which is what one thread does.

Place in the pipeline: between `loop_nests.py`, what one point does, and `emit.py`, the whole text::

    static void body(Arguments& a, int64_t begin, int64_t end) {
      …                                       // buffers, sizes, what is known before all loops
      for (int64_t point = begin; point < end; ++point) {
        const int64_t i0 = point;
        …
      }
    }
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import final

from weft.codegen.cpp.indices import IndexWriter, name_of
from weft.codegen.cpp.loop_nests import LoopNestWriter
from weft.codegen.cpp.nodes import NodeWriter
from weft.codegen.cpp.plan import Plan
from weft.codegen.cpp.swept_columns import SweptColumnsWriter
from weft.codegen.cpp.tile_copies import TileWriter
from weft.codegen.ir.loop_ir import IndexValue, Indirect, Kernel, Load, Node, Reduce, operands
from weft.codegen.source_text import SourceText
from weft.shapes.algebra.expr import IntExpr, symbol_of, symbols

Variables = Sequence[tuple[str, str]]
"""Loop variables of a point, with the expressions of their extents."""


def point_variables(plan: Plan, indices: IndexWriter) -> list[tuple[str, str]]:
    """The loop variables that the number of a point stands for, the last one fastest."""
    variables = [(indices.names[name_of(v)], indices.index(v.extent)) for v in plan.points]
    if plan.tile is not None:
        variables.append(("row_block", _blocks(indices, plan.tile.rows.extent, plan.tile.height)))
    if plan.block:
        assert plan.vector is not None
        variables.append(("block", _blocks(indices, plan.vector.extent, plan.block)))
    return variables


def _blocks(indices: IndexWriter, extent: IntExpr, length: int) -> str:
    return f"(({indices.index(extent)}) + {length - 1}) / {length}"


@final
@dataclass(frozen=True, slots=True)
class Counters:
    """The loop variables of a point; `counted`: they are incremented."""

    variables: Variables
    counted: bool


@final
class PointsWriter:
    """Prints one function over points."""

    def __init__(self, plan: Plan, text: SourceText) -> None:
        self.plan, self.kernel, self.text = plan, plan.kernel, text
        self.nodes = NodeWriter(plan, text)
        self.nests = LoopNestWriter(self.nodes)
        self.indices = self.nodes.indices

    @contextmanager
    def function(self, name: str, chunks: str = "") -> Iterator[None]:
        """The function around what is printed for one point; with the expression `chunks`, each
        point is divided into that many."""
        if self.plan.in_two:
            self.text.line("template <bool Whole>")
        with self.text.block(f"static void {name}(Arguments& a, int64_t begin, int64_t end)"):
            self.indices.declare_buffers()
            self.indices.declare_sizes("a.sizes")
            dependent = _loop_dependent(self.kernel)
            self.nodes.write_outer(lambda n: n.id not in dependent)
            self.nodes.declare_divisors(dependent)
            counters = self._declare_counters(chunks)
            self._declare_owned()
            with self.text.block("for (int64_t point = begin; point < end; ++point)"):
                self._define_variables(counters)
                yield
                self._advance(counters)

    # -- the variables of a point --------------------------------------------------------------

    def _declare_counters(self, chunks: str) -> Counters:
        """The loop variables of a point.

        If an extent is a size of the call, they are incremented from those of the first point:
        divisions by numbers that are only known then are slow.
        """
        variables = point_variables(self.plan, self.indices)
        if chunks:
            variables.append(("chunk", chunks))
        counted = any(not extent.isdecimal() for _, extent in variables[1:])
        if counted:
            named = [(name, f"n_{name}") for name, _ in variables]
            for (_, extent), (_, count) in zip(variables, named, strict=True):
                self.text.line(f"[[maybe_unused]] const int64_t {count} = {extent};")
            variables = named
            self._divide("begin", [(f"at_{name}", count) for name, count in named], "int64_t")
        return Counters(variables, counted)

    def _define_variables(self, counters: Counters) -> None:
        if not counters.counted:
            self._divide("point", counters.variables, "const int64_t")
            return
        for name, _ in counters.variables:
            self.text.line(f"[[maybe_unused]] const int64_t {name} = at_{name};")

    def _divide(self, number: str, variables: Variables, kind: str) -> None:
        """The loop variables of the point with this number."""
        for position, (name, extent) in reversed(list(enumerate(variables))):
            if position == 0:
                self.text.line(f"[[maybe_unused]] {kind} {name} = {number};")
            else:
                self.text.line(f"[[maybe_unused]] {kind} {name} = {number} % ({extent});")
                number = f"{number} / ({extent})"

    def _advance(self, counters: Counters) -> None:
        """Go on to the next point."""
        if not counters.counted:
            return
        text = f"++at_{counters.variables[0][0]};"
        for name, count in counters.variables[1:]:
            text = f"if (++at_{name} == {count}) {{ at_{name} = 0; {text} }}"
        self.text.line(text)

    # -- the points of one thread --------------------------------------------------------------

    def _declare_owned(self) -> None:
        """The part of the points, and of the rows that each index chooses, that are this thread's.
        """
        for owner in dict.fromkeys(self.plan.owners.values()):
            size = self.indices.index(owner.size)
            name = self.indices.names[symbol_of(owner.symbol).name]
            self.text.line(f"const int64_t low_{name} = part_of(a, {size}, 0), "
                           f"high_{name} = part_of(a, {size}, 1);")
        if self.plan.owners:
            self.text.line("[[maybe_unused]] const int64_t low = part_of(a, end, 0), "
                           "high = part_of(a, end, 1);")

    @contextmanager
    def _owned(self) -> Iterator[None]:
        """What is done at a point if any of it is this thread's."""
        plan = self.plan
        if plan.owners or not (plan.vector is None or plan.vector_inner):
            self.nodes.write_outer(plan.is_known_at_points)
        tests = self.nests.stores.owner_tests()
        if not tests:
            yield
            return
        with self.text.block(f"if ({' || '.join(tests)})"):
            yield

    # -- one point -----------------------------------------------------------------------------

    def point(self, lanes: Callable[[], None] | None = None) -> None:
        """One point: all of it, or a run of the vectorised outer loop; `lanes` prints what is done
        for each vector (default: all loop nests)."""
        lanes = lanes or self.nests.write_all
        if self.plan.tile is None:
            self._branches(lanes)
            return
        with TileWriter(self.indices, self.plan.tile).rows(*self._block_bounds()):
            self._branches(lanes)

    def _branches(self, lanes: Callable[[], None]) -> None:
        """Print the loops once for each range of points in which the comparisons of a variable are
        known."""
        with self._owned():
            if self.plan.branches is None:
                self._loops(lanes)
                return
            variable, parts = self.plan.branches
            name = self.indices.names[name_of(variable)]
            for part in parts:
                low, high = self.indices.index(part.start), self.indices.index(part.stop)
                with (
                    self.nodes.scope.block(part),
                    self.text.block(f"if ({name} >= {low} && {name} < {high})"),
                ):
                    self._loops(lanes)

    def _loops(self, lanes: Callable[[], None]) -> None:
        plan = self.plan
        if plan.vector is None or plan.vector_inner:
            lanes()
        elif plan.swept:
            SweptColumnsWriter(self.nests, plan.vector, *self._block_bounds()).write()
        else:
            self.nests.vector_loop(plan.vector, *self._block_bounds(), lanes, plan.segments)

    def _block_bounds(self) -> tuple[str, str]:
        """The part of the vectorised loop that belongs to one point."""
        assert self.plan.vector is not None
        extent, block = self.indices.index(self.plan.vector.extent), self.plan.block
        if not block:
            return "0", extent
        return f"block * {block}", f"weft_min(block * {block} + {block}, {extent})"


def _loop_dependent(kernel: Kernel) -> set[int]:
    """Ids of the nodes that cannot be computed before all loops."""
    dependent: set[int] = set()
    loops = {v.symbol for v in (*kernel.outer, *kernel.inner)}
    for node in kernel.nodes:
        depends = isinstance(node, Reduce | Indirect) or not loops.isdisjoint(
            symbols(_own_index(node)))
        if depends or node.inner or any(o.id in dependent for o in operands(node)):
            dependent.add(node.id)
    return dependent


def _own_index(node: Node) -> IntExpr:
    if isinstance(node, Load):
        return node.index
    return node.expr if isinstance(node, IndexValue) else 0
