"""Prints a kernel as C++ source, following its `Plan`.

Place in the pipeline: `target.py` calls `emit`; the text goes to `runtime/compile_pool.py`.

The text is canonical: loop variables, sizes and buffers are renamed by position, so that equal
kernels give equal texts and are compiled once. `y = x.exp().sum(-1)` over a 32 x 768 matrix becomes

    static void body(Arguments& a, int64_t begin, int64_t end) {
      const float* b0 = (const float*)a.buffers[0];
      float* b1 = (float*)a.buffers[1];
      for (int64_t point = begin; point < end; ++point) {
        const int64_t i0 = point;
        auto acc2 = Sum::begin<float, L, P>();
        full_loop<S>(0, 768, [&](int64_t r0, auto n) LAMBDA {
          const auto v0 = load<L, P>(b0 + (768*i0+r0), n);
          const auto v1 = exp(v0);
          acc2 = Sum::next(acc2, v1, n);
        });
        const auto v2 = Sum::fold(acc2);
        store1(b1 + (i0), v2);
      }
    }
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, final

from weft.codegen.cpp.loop_nests import LoopNestWriter
from weft.codegen.cpp.nodes import name_of
from weft.codegen.cpp.plan import (
    BACKWARDS,
    CHUNK_WORK,
    DEAR,
    HEAVY,
    MAX_CHUNKS,
    SHUFFLED_STEPS,
    LoopNest,
    Plan,
    accesses,
    make_plan,
)
from weft.codegen.cpp.spelling import C_TYPE, REDUCTION, headers_of
from weft.codegen.cpp.tiles import Tile
from weft.codegen.ir.loop_ir import (
    Const,
    IndexValue,
    Indirect,
    Kernel,
    Load,
    Node,
    Op,
    Reduce,
    Store,
    operands,
    stride,
)
from weft.runtime.compile_pool import ENTRY
from weft.shapes.algebra.expr import IntExpr, symbol_of, symbols
from weft.shapes.algebra.printing import c_text

MOST_INLINED: Final = 4
"""An expensive function that is called more often is not inlined: each of hundreds of sines would
take the compiler 20 ms, and a call costs little compared to one."""


def emit(kernel: Kernel, vector_bytes: int) -> str:
    """The translation unit of `kernel`."""
    plan = make_plan(kernel, vector_bytes)
    longer = make_plan(kernel, vector_bytes, keep_rows=False) if plan.row_capacity else None
    return KernelWriter(plan, longer).text()


@final
@dataclass(frozen=True, slots=True)
class Counters:
    """The loop variables of a point with the expressions of their extents; `counted`: they are
    incremented."""

    variables: tuple[tuple[str, str], ...]
    counted: bool


@final
class KernelWriter(LoopNestWriter):
    """Prints one kernel; also with the plan for rows that are too long for row buffers, if there is
    one."""

    def __init__(self, plan: Plan, longer: Plan | None = None) -> None:
        super().__init__(plan)
        self.longer = longer

    # -- the file ------------------------------------------------------------------------------

    def text(self) -> str:
        """The whole file: headers, body, entry point."""
        plan = self.plan
        headers = _headers(plan)
        for header in sorted(headers):
            self.line(f'#include "{header}"')
        self.line("using namespace weft;")
        lanes = f"L = {plan.lanes}, P = {plan.parts}, S = L * P"
        self.line(f"[[maybe_unused]] static constexpr int {lanes};")
        if plan.split is not None:
            self.split_bodies()
        else:
            with self.body("body"):
                self.point()
        if self.longer is not None:
            self.plan = self.longer
            with self.body("body_of_long_rows"):
                self.point()
            self.plan = plan
        self.entry_point()
        return "\n".join(_with_functions_apart(self.lines)) + "\n"

    @contextmanager
    def body(self, name: str, count: str = "") -> Iterator[None]:
        """A function over a range of points; with `count`, each point is divided into that many."""
        self.done.clear()
        if self.plan.in_two:
            self.line("template <bool Whole>")
        with self.block(f"static void {name}(Arguments& a, int64_t begin, int64_t end)"):
            self.parameters()
            dependent = _loop_dependent(self.kernel)
            self.outer_nodes(lambda n: n.id not in dependent)
            self.find_divisors(dependent)
            counters = self.counters(count)
            self.owned_rows()
            with self.block("for (int64_t point = begin; point < end; ++point)"):
                self.point_indices(counters)
                yield
                self.advance(counters)

    def owned_rows(self) -> None:
        """The part of the points, and of the rows that each index chooses, that are this thread's.
        """
        for owner in dict.fromkeys(self.plan.owners.values()):
            size, name = self.index(owner.size), self.names[symbol_of(owner.symbol).name]
            self.line(f"const int64_t low_{name} = part_of(a, {size}, 0), "
                      f"high_{name} = part_of(a, {size}, 1);")
        if self.plan.owners:
            self.line("[[maybe_unused]] const int64_t low = part_of(a, end, 0), "
                      "high = part_of(a, end, 1);")

    @contextmanager
    def owned_point(self) -> Iterator[None]:
        """What is done at a point if any of it is this thread's."""
        plan = self.plan
        if plan.owners or not (plan.vector is None or plan.vector_inner):
            self.outer_nodes(plan.is_known_at_points)
        if not plan.owners:
            yield
            return
        tests = dict.fromkeys(map(self.owner_test, range(len(self.kernel.stores))))
        self.owner_tests = len(tests)
        with self.block(f"if ({' || '.join(tests)})"):
            yield

    def find_divisors(self, dependent: set[int]) -> None:
        """Find the divisors of vectors that are known before all loops: division by a power of two
        becomes a product (as compilers do for constants)."""
        plan = self.plan
        self.divisors = {
            n.args[1].id for n in self.kernel.nodes
            if isinstance(n, Op) and n.name == "div" and plan.varies(n)
            and n.args[1].id not in dependent and not isinstance(n.args[1], Const)}
        for number in sorted(self.divisors):
            self.line(f"const auto d{number} = divisor(v{number});")

    # -- reductions divided between threads ----------------------------------------------------

    def split_bodies(self) -> None:
        """`partial` reduces one chunk of one point into scratch memory; `body` combines the chunks.
        """
        nest = self.plan.nests[0]
        with self.block("struct Partial", ";"):
            for r in nest.reductions:
                self.line(f"decltype({self.begin(r)}) acc{r.id};")
        with self.body("partial", "a.chunks"):
            self.line("Partial& partial = ((Partial*)a.scratch)[point];")
            self.chunk_bounds()
            self.point(lambda: self.partial(nest))
        with self.body("body"):
            first = "(const Partial*)a.scratch + point * a.chunks"
            self.line(f"const Partial* const partials = {first};")
            self.point(lambda: self.combine(nest))

    def chunk_bounds(self) -> None:
        assert self.plan.split is not None
        extent, unit = self.index(self.plan.split.extent), self.split_unit()
        self.line(f"const int64_t units = (({extent}) + {unit - 1}) / {unit};")
        self.line(f"const int64_t chunk_begin = units * chunk / a.chunks * {unit};")
        last = f"units * (chunk + 1) / a.chunks * {unit}"
        self.line(f"const int64_t chunk_end = weft_min({last}, {extent});")

    def split_unit(self) -> int:
        """Chunks begin at multiples of this number."""
        return self.plan.step if self.plan.split is self.plan.vector else 1

    def partial(self, nest: LoopNest) -> None:
        self.outer_nodes(lambda n: not self.plan.nest_of[n.id])
        for number, name in self.accumulators(nest).items():
            self.line(f"partial.acc{number} = {name};")

    def combine(self, nest: LoopNest) -> None:
        for r in nest.reductions:
            self.line(f"auto acc{r.id} = {self.begin(r)};")
        with self.block("for (int64_t chunk = 0; chunk < a.chunks; ++chunk)"):
            for r in nest.reductions:
                kind = REDUCTION[r.kind]
                self.line(f"acc{r.id} = {kind}::combine(acc{r.id}, partials[chunk].acc{r.id});")
        for r in nest.reductions:
            self.finish(r, f"acc{r.id}")
        self.after_nests()

    def parameters(self) -> None:
        for i, buffer in enumerate(self.kernel.buffers):
            const = "const " if buffer.mode == "in" else ""
            kind = f"{const}{C_TYPE[buffer.dtype]}*"
            self.line(f"[[maybe_unused]] {kind} const b{i} = ({kind})a.buffers[{i}];")
        self.begin_sizes("a.sizes")

    def entry_point(self) -> None:
        exported = 'extern "C" __attribute__((visibility("default")))'
        with self.block(f"{exported} int {ENTRY}(void* const* buffers, const int64_t* sizes)"):
            self.begin_sizes("sizes")
            counts = [self.index(v.extent) for v in self.plan.points]
            if self.plan.tile is not None:
                counts.append(self.row_blocks(self.plan.tile))
            if self.plan.block:
                counts.append(self.blocks())
            points = _product(counts)
            if self.plan.split is None:
                run = "run_owned" if self.plan.owners else "run"
                body = self.body_name()
                self.line(f"return {run}({body}, buffers, sizes, {points}, {self.cost()});")
            else:
                self.split_entry(points)

    def body_name(self) -> str:
        body = self.version("body", self.plan)
        if self.longer is None:
            return body
        row = _product(self.index(v.extent) for v in self.kernel.inner)
        longer = self.version("body_of_long_rows", self.longer)
        return f"{row} <= {self.plan.row_capacity} ? {body} : {longer}"

    def version(self, body: str, plan: Plan) -> str:
        """The body for sizes that a plan suits."""
        if not plan.in_two:
            return body
        rests = [self.index(edge % plan.step) for edge in plan.edges]
        whole = " && ".join(f"{rest} == 0" for rest in rests)
        return f"({whole} ? {body}<true> : {body}<false>)"

    def split_entry(self, points: str) -> None:
        self.line(f"const int64_t points = {points}, cost = {self.cost()};")
        self.line(f"alignas(64) Partial scratch[{MAX_CHUNKS}];")
        self.line(f"const int64_t room = {MAX_CHUNKS} / weft_max(points, 1);")
        self.line(f"const int64_t most = weft_min(room, cost / {CHUNK_WORK});")
        self.line("Arguments a{buffers, sizes, 0, scratch, weft_max(most, 1)};")
        self.line("run(partial, a, points * a.chunks, cost / a.chunks);")
        self.line("if (!a.error) body(a, 0, points);")
        self.line("return a.error;")

    def cost(self) -> str:
        """The work of one point, in elements; 0 keeps the kernel on one thread."""
        plan = self.plan
        if plan.one_thread:
            return "0"
        per_element = sum(HEAVY.get(n.name, 1) for n in self.kernel.nodes if isinstance(n, Op))
        factors: list[str] = [str(1 + per_element // 4)]
        factors += [self.index(v.extent) for v in self.kernel.inner]
        if plan.tile is not None:
            factors.append(str(plan.tile.height))
        if plan.vector is not None and not plan.vector_inner:
            factors.append(str(plan.block) if plan.block else self.index(plan.vector.extent))
        return _product(factors)

    def blocks(self) -> str:
        assert self.plan.vector is not None
        block = self.plan.block
        return f"(({self.index(self.plan.vector.extent)}) + {block - 1}) / {block}"

    # -- levels --------------------------------------------------------------------------------

    def counters(self, chunks: str = "") -> Counters:
        """The loop variables of a point.

        If an extent is a size of the call, they are incremented from those of the first point:
        divisions by numbers that are only known then are slow.
        """
        variables = [(self.names[name_of(v)], self.index(v.extent)) for v in self.plan.points]
        if self.plan.tile is not None:
            variables.append(("row_block", self.row_blocks(self.plan.tile)))
        if self.plan.block:
            variables.append(("block", self.blocks()))
        if chunks:
            variables.append(("chunk", chunks))
        counted = any(not extent.isdecimal() for _, extent in variables[1:])
        if counted:
            named = [(name, f"n_{name}") for name, _ in variables]
            for (_, extent), (_, count) in zip(variables, named, strict=True):
                self.line(f"[[maybe_unused]] const int64_t {count} = {extent};")
            variables = named
            self.divide("begin", [(f"at_{name}", count) for name, count in named], "int64_t")
        return Counters(tuple(variables), counted)

    def point_indices(self, counters: Counters) -> None:
        if not counters.counted:
            self.divide("point", counters.variables, "const int64_t")
            return
        for name, _ in counters.variables:
            self.line(f"[[maybe_unused]] const int64_t {name} = at_{name};")

    def divide(self, number: str, variables: Sequence[tuple[str, str]], kind: str) -> None:
        """The loop variables of the point with this number."""
        for position, (name, extent) in reversed(list(enumerate(variables))):
            if position == 0:
                self.line(f"[[maybe_unused]] {kind} {name} = {number};")
            else:
                self.line(f"[[maybe_unused]] {kind} {name} = {number} % ({extent});")
                number = f"{number} / ({extent})"

    def advance(self, counters: Counters) -> None:
        """Go on to the next point."""
        if not counters.counted:
            return
        text = f"++at_{counters.variables[0][0]};"
        for name, count in counters.variables[1:]:
            text = f"if (++at_{name} == {count}) {{ at_{name} = 0; {text} }}"
        self.line(text)

    def point(self, lanes: Callable[[], None] | None = None) -> None:
        """One point: all of it, or a run of the vectorised outer loop."""
        plan, lanes = self.plan, lanes or self.lanes
        if plan.tile is not None and not self.in_tile:
            self.tile(plan.tile)
            return
        with self.owned_point():
            for _ in self.branches():
                self.loops_of_point(lanes)

    def loops_of_point(self, lanes: Callable[[], None]) -> None:
        plan = self.plan
        if plan.vector is None or plan.vector_inner:
            lanes()
        elif plan.swept:
            self.sweep(plan.vector, plan.nests[0], *self.block_bounds())
        else:
            self.vector_loop(plan.vector, *self.block_bounds(), lanes, plan.segments)

    def branches(self) -> Iterator[None]:
        """Print the loops once for each range of points in which the comparisons of a variable are
        known."""
        if self.plan.branches is None:
            yield
            return
        variable, parts = self.plan.branches
        name, around = self.names[name_of(variable)], self.segment
        for part in parts:
            self.segment, saved = part, set(self.done)
            low, high = self.index(part.start), self.index(part.stop)
            with self.block(f"if ({name} >= {low} && {name} < {high})"):
                yield
            self.done, self.segment = saved, around

    def block_bounds(self) -> tuple[str, str]:
        """The part of a vectorised outer loop that belongs to one point."""
        assert self.plan.vector is not None
        extent, block = self.index(self.plan.vector.extent), self.plan.block
        if not block:
            return "0", extent
        return f"block * {block}", f"weft_min(block * {block} + {block}, {extent})"

    # -- tiles of transposed loads and stores --------------------------------------------------

    def row_blocks(self, tile: Tile) -> str:
        return f"(({self.index(tile.rows.extent)}) + {tile.height - 1}) / {tile.height}"

    def tile(self, tile: Tile) -> None:
        """Copy the loads' tiles of one block of rows, run over its rows, copy the stores' tiles."""
        assert self.plan.vector is not None
        row, extent = self.names[name_of(tile.rows)], self.index(tile.rows.extent)
        self.line(f"const int64_t row_begin = row_block * {tile.height};")
        self.line(f"const int64_t row_end = weft_min(row_begin + {tile.height}, {extent});")
        whole = "0", self.index(self.plan.vector.extent)
        low, high = self.block_bounds() if self.plan.block else whole
        self.line(f"const int64_t column_begin = {low}, column_end = {high};")
        for node in self.kernel.nodes:
            if isinstance(node, Load) and node.id in tile.loads:
                self.begin_tile(f"tile{node.id}", node.buffer, tile)
                source, step = self.turned(node, tile)
                self.line(f"transpose_tile(tile{node.id}, {tile.width}, {source}, {step}, "
                          "row_end - row_begin, column_end - column_begin);")
        for number in sorted(tile.stores):
            self.begin_tile(f"made{number}", self.kernel.stores[number].buffer, tile)
        with self.block(f"for (int64_t {row} = row_begin; {row} < row_end; ++{row})"):
            self.in_tile = True
            self.point()
            self.in_tile = False
        for number in sorted(tile.stores):
            target, step = self.turned(self.kernel.stores[number], tile)
            self.line(f"transpose_tile({target}, {step}, made{number}, {tile.width}, "
                      "column_end - column_begin, row_end - row_begin);")

    def begin_tile(self, name: str, buffer: str, tile: Tile) -> None:
        self.line(f"alignas(64) {self.memory[buffer]} {name}[{tile.height * tile.width}];")

    def turned(self, access: Load | Store, tile: Tile) -> tuple[str, str]:
        """The address of a tile's first element in memory, and the distance of its columns."""
        assert self.plan.vector is not None
        corner = {name_of(tile.rows): "row_begin", name_of(self.plan.vector): "column_begin"}
        step = stride(access.index, self.plan.vector.symbol)
        assert step is not None
        at = c_text(access.index, self.names | corner)
        return f"{self.buffers[access.buffer]} + ({at})", self.index(step)

    def lanes(self) -> None:
        """Everything of one point, or of the lanes of one vector of points."""
        for number, nest in enumerate(self.plan.nests):
            self.outer_nodes(lambda n, known=number: self.plan.nest_of[n.id] <= known)  # type: ignore[misc]
            self.nest(nest)
        self.after_nests()


def _with_functions_apart(lines: list[str]) -> list[str]:
    """The text with expensive functions that it calls often moved into functions of their own."""
    text = "\n".join(lines)
    calls = Counter(re.findall(r"= (\w+)\(", text))
    names = [n for n, k in sorted(calls.items()) if k > MOST_INLINED and HEAVY.get(n, 0) >= DEAR]
    if not names:
        return lines
    text = re.sub(rf"= ({'|'.join(names)})\(", r"= \1_apart(", text)
    functions = "\n".join(
        "template <class... V> static __attribute__((noinline)) "
        f"auto {name}_apart(V... x) {{ return {name}(x...); }}" for name in names
    )
    return [text.replace("using namespace weft;", f"using namespace weft;\n{functions}", 1)]


def _headers(plan: Plan) -> set[str]:
    kernel = plan.kernel
    headers = {"core.h"}.union(*(headers_of(n) for n in kernel.nodes if isinstance(n, Op)))
    if any(isinstance(n, Reduce) for n in kernel.nodes):
        headers.add("reduce.h")
    if any(b.dtype == "f16" for b in kernel.buffers):
        headers.add("half.h")
    if plan.tile is not None:
        headers.add("tile.h")
    if plan.vector is not None and any(
        stride(a.index, plan.vector.symbol) in (*SHUFFLED_STEPS, BACKWARDS)
        for a in accesses(kernel)
    ):
        headers.add("strided.h")
    return headers


def _own_index(node: Node) -> IntExpr:
    if isinstance(node, Load):
        return node.index
    return node.expr if isinstance(node, IndexValue) else 0


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


def _product(factors: Iterable[str]) -> str:
    wanted = [f"(int64_t)({f})" for f in factors if f != "1"]
    return " * ".join(wanted) or "1"
