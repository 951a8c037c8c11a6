"""Prints a kernel as C++ source, following its `Plan`.

Place in the pipeline: `target.py` calls `emit`; the text goes to `runtime/compile_pool.py`.

The text is canonical: loop variables, sizes and buffers are renamed by position, so that equal kernels give
equal texts and are compiled once. `y = x.exp().sum(-1)` over a 32 x 768 matrix becomes

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

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Final, final

from weft.codegen.cpp.plan import (
    CHUNK_WORK,
    COMPARISONS,
    HEAVY,
    MAX_CHUNKS,
    STRIP_TRIPS,
    Plan,
    Stage,
    make_plan,
    position_type,
    stride,
    trips,
)
from weft.codegen.cpp.segments import known_values, segments
from weft.codegen.cpp.spelling import C_TYPE, FUNCTION, HEADER, REDUCTION, literal
from weft.codegen.cpp.tiles import Tile
from weft.codegen.dtypes import FLOAT_TYPES
from weft.codegen.loop_ir import (
    Const,
    IndexValue,
    Indirect,
    Kernel,
    Load,
    LoopVar,
    Node,
    Op,
    Reduce,
    Store,
    operands,
)
from weft.shapes.expr import IntExpr, symbol_of, symbols
from weft.shapes.printing import c_text

ENTRY: Final = "weft_kernel"
"""The exported function: int weft_kernel(void* const* buffers, const int64_t* sizes)."""


def emit(kernel: Kernel, vector_bytes: int) -> str:
    """The translation unit of `kernel`."""
    return _Emitter(make_plan(kernel, vector_bytes)).text()


@final
class _Emitter:
    """Prints one kernel."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.kernel = plan, plan.kernel
        self.lines: list[str] = []
        self.indent = 0
        self.names = _canonical_names(plan.kernel)
        self.buffers = {b.name: f"b{i}" for i, b in enumerate(self.kernel.buffers)}
        self.memory = {b.name: C_TYPE[b.dtype] for b in self.kernel.buffers}
        self.rows: dict[int, str] = {}  # node -> its row buffer, while it is read
        self.done: set[int] = set()
        self.in_tile = False
        self.known: dict[int, bool] = {}  # boolean nodes that are constant where we print
        self.vector_name = self.names[_name(plan.vector)] if plan.vector else ""

    # -- the file -------------------------------------------------------------------------------------

    def text(self) -> str:
        """The whole file: headers, body, entry point."""
        plan = self.plan
        headers = _headers(self.kernel) | ({"tile.h"} if plan.tile else set())
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
        self.entry_point()
        return "\n".join(self.lines) + "\n"

    @contextmanager
    def body(self, name: str, count: str = "") -> Iterator[None]:
        """A function over a range of points; with `count`, each point is divided into that many."""
        self.done.clear()
        with self.block(f"static void {name}(Arguments& a, int64_t begin, int64_t end)"):
            self.parameters()
            dependent = _loop_dependent(self.kernel)
            self.outer_nodes(lambda n: n.id not in dependent)
            with self.block("for (int64_t point = begin; point < end; ++point)"):
                self.point_indices(count)
                yield

    # -- reductions divided between threads -----------------------------------------------------------

    def split_bodies(self) -> None:
        """`partial` reduces one chunk of one point into scratch memory; `body` combines the chunks."""
        stage = self.plan.stages[0]
        with self.block("struct Partial", ";"):
            for r in stage.reductions:
                self.line(f"decltype({self.begin(r)}) acc{r.id};")
        with self.body("partial", "a.chunks"):
            self.line("Partial& partial = ((Partial*)a.scratch)[point];")
            self.chunk_bounds()
            self.point(lambda: self.partial(stage))
        with self.body("body"):
            self.line("const Partial* const partials = (const Partial*)a.scratch + point * a.chunks;")
            self.point(lambda: self.combine(stage))

    def chunk_bounds(self) -> None:
        assert self.plan.split is not None
        extent, unit = self.index(self.plan.split.extent), self.split_unit()
        self.line(f"const int64_t units = (({extent}) + {unit - 1}) / {unit};")
        self.line(f"const int64_t chunk_begin = units * chunk / a.chunks * {unit};")
        self.line(
            f"const int64_t chunk_end = weft_min(units * (chunk + 1) / a.chunks * {unit}, {extent});")

    def split_unit(self) -> int:
        """Chunks begin at multiples of this."""
        return self.plan.step if self.plan.split is self.plan.vector else 1

    def partial(self, stage: Stage) -> None:
        self.outer_nodes(lambda n: not self.plan.stage_of[n.id])
        for number, name in self.accumulators(stage).items():
            self.line(f"partial.acc{number} = {name};")

    def combine(self, stage: Stage) -> None:
        for r in stage.reductions:
            self.line(f"auto acc{r.id} = {self.begin(r)};")
        with self.block("for (int64_t chunk = 0; chunk < a.chunks; ++chunk)"):
            for r in stage.reductions:
                kind = REDUCTION[r.kind]
                self.line(f"acc{r.id} = {kind}::combine(acc{r.id}, partials[chunk].acc{r.id});")
        for r in stage.reductions:
            self.finish(r, f"acc{r.id}")
        self.after_stages()

    def parameters(self) -> None:
        for i, buffer in enumerate(self.kernel.buffers):
            const = "const " if buffer.mode == "in" else ""
            kind = f"{const}{C_TYPE[buffer.dtype]}*"
            self.line(f"[[maybe_unused]] {kind} const b{i} = ({kind})a.buffers[{i}];")
        self.sizes("a.sizes")

    def sizes(self, source: str) -> None:
        for i in range(len(self.kernel.sizes)):
            self.line(f"[[maybe_unused]] const int64_t s{i} = {source}[{i}];")

    def entry_point(self) -> None:
        exported = 'extern "C" __attribute__((visibility("default")))'
        with self.block(f"{exported} int {ENTRY}(void* const* buffers, const int64_t* sizes)"):
            self.sizes("sizes")
            counts = [self.index(v.extent) for v in self.plan.points]
            if self.plan.tile is not None:
                counts.append(self.row_blocks(self.plan.tile))
            if self.plan.block:
                counts.append(self.blocks())
            points = _product(counts)
            if self.plan.split is None:
                self.line(f"return run(body, buffers, sizes, {points}, {self.cost()});")
            else:
                self.split_entry(points)

    def split_entry(self, points: str) -> None:
        self.line(f"const int64_t points = {points}, cost = {self.cost()};")
        self.line(f"alignas(64) Partial scratch[{MAX_CHUNKS}];")
        self.line(f"const int64_t most = weft_min({MAX_CHUNKS} / weft_max(points, 1), cost / {CHUNK_WORK});")
        self.line("Arguments a{buffers, sizes, 0, scratch, weft_max(most, 1)};")
        self.line("run(partial, a, points * a.chunks, cost / a.chunks);")
        self.line("if (!a.error) body(a, 0, points);")
        self.line("return a.error;")

    def cost(self) -> str:
        """Work of one point, in about the time of one element; 0 keeps the kernel on one thread."""
        if any(store.mode == "add" for store in self.kernel.stores):
            return "0"
        plan = self.plan
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

    # -- levels ---------------------------------------------------------------------------------------

    def point_indices(self, chunks: str = "") -> None:
        """The loop variables of one point, from its number."""
        variables = [(self.names[_name(v)], self.index(v.extent)) for v in self.plan.points]
        if self.plan.tile is not None:
            variables.append(("row_block", self.row_blocks(self.plan.tile)))
        if self.plan.block:
            variables.append(("block", self.blocks()))
        if chunks:
            variables.append(("chunk", chunks))
        rest = "point"
        for position, (name, extent) in reversed(list(enumerate(variables))):
            if position == 0:
                self.line(f"[[maybe_unused]] const int64_t {name} = {rest};")
            else:
                self.line(f"[[maybe_unused]] const int64_t {name} = {rest} % ({extent});")
                rest = f"{rest} / ({extent})"

    def point(self, lanes: Callable[[], None] | None = None) -> None:
        """One point: all of it, or a run of the vectorised outer loop."""
        plan, lanes = self.plan, lanes or self.lanes
        if plan.tile is not None and not self.in_tile:
            self.tile(plan.tile)
            return
        if plan.vector is None or plan.vector_inner:
            lanes()
            return
        self.outer_nodes(lambda n: not plan.varies(n) and not plan.stage_of[n.id])
        self.vector_loop(plan.vector, *self.block_bounds(), lanes)

    def block_bounds(self) -> tuple[str, str]:
        """The part of a vectorised outer loop that belongs to one point."""
        assert self.plan.vector is not None
        extent, block = self.index(self.plan.vector.extent), self.plan.block
        if not block:
            return "0", extent
        return f"block * {block}", f"weft_min(block * {block} + {block}, {extent})"

    # -- tiles of transposed loads --------------------------------------------------------------------

    def row_blocks(self, tile: Tile) -> str:
        return f"(({self.index(tile.rows.extent)}) + {tile.height - 1}) / {tile.height}"

    def tile(self, tile: Tile) -> None:
        """Copy the tiles of one block of rows, then go through its rows."""
        assert self.plan.vector is not None
        row, extent = self.names[_name(tile.rows)], self.index(tile.rows.extent)
        self.line(f"const int64_t row_begin = row_block * {tile.height};")
        self.line(f"const int64_t row_end = weft_min(row_begin + {tile.height}, {extent});")
        low, high = self.block_bounds() if self.plan.block else ("0", self.index(self.plan.vector.extent))
        self.line(f"const int64_t column_begin = {low}, column_end = {high};")
        corner = {_name(tile.rows): "row_begin", _name(self.plan.vector): "column_begin"}
        for node in self.kernel.nodes:
            if isinstance(node, Load) and node.id in tile.loads:
                self.copy_tile(node, tile, corner)
        with self.block(f"for (int64_t {row} = row_begin; {row} < row_end; ++{row})"):
            self.in_tile = True
            self.point()
            self.in_tile = False

    def copy_tile(self, node: Load, tile: Tile, corner: dict[str, str]) -> None:
        assert self.plan.vector is not None
        step = stride(node.index, self.plan.vector.symbol)
        assert step is not None
        source = f"{self.buffers[node.buffer]} + ({c_text(node.index, self.names | corner)})"
        self.line(f"alignas(64) {self.memory[node.buffer]} tile{node.id}[{tile.height * tile.width}];")
        size = "row_end - row_begin, column_end - column_begin"
        self.line(f"load_tile<{tile.width}>(tile{node.id}, {source}, {self.index(step)}, {size});")

    def tile_load(self, node: Load, tile: Tile) -> str:
        row = self.names[_name(tile.rows)]
        offset = f"({row} - row_begin) * {tile.width} + {self.vector_name} - column_begin"
        return f"load<L, P>(tile{node.id} + ({offset}), n)"

    def lanes(self) -> None:
        """Everything of one point, or of the lanes of one vector of points."""
        for number, stage in enumerate(self.plan.stages):
            self.outer_nodes(lambda n, known=number: self.plan.stage_of[n.id] <= known)  # type: ignore[misc]
            self.stage(stage)
        self.after_stages()

    def after_stages(self) -> None:
        """What follows the inner loops: the rest of the outer level and its stores."""
        self.outer_nodes(lambda n: True)
        for store in self.kernel.stores:
            if not store.inner:
                self.store(store)

    def outer_nodes(self, wanted: Callable[[Node], bool]) -> None:
        """The outer-level nodes not yet printed that are `wanted` and whose operands are printed."""
        for node in self.kernel.nodes:
            if node.inner or node.id in self.done or isinstance(node, Reduce) or not wanted(node):
                continue
            self.node(node)

    # -- inner loops ----------------------------------------------------------------------------------

    def stage(self, stage: Stage) -> None:
        """One run over the inner loops."""
        names = self.accumulators(stage)
        for reduction in stage.reductions:
            self.finish(reduction, names[reduction.id])

    def accumulators(self, stage: Stage) -> dict[int, str]:
        """The inner loops of a stage; the names of the accumulators that they leave."""
        saved = set(self.done)
        for node in stage.kept:
            self.line(f"alignas(64) {_row_type(node)} row{node.id}[{self.row_length()}];")
        flushed = [r for r in stage.reductions if self.is_flushed(r)]
        names = {r.id: f"{'total' if r in flushed else 'acc'}{r.id}" for r in stage.reductions}
        for reduction in stage.reductions:
            self.line(f"auto {names[reduction.id]} = {self.begin(reduction)};")
        self.inner_loops(list(self.plan.loops), stage, flushed)
        self.done = saved
        return names

    def inner_loops(self, loops: list[LoopVar], stage: Stage, flushed: list[Reduce]) -> None:
        """The sequential loops around, then the innermost one: vectorised, or in strips."""
        plan = self.plan
        if len(loops) > (0 if plan.vector_inner else 1):
            name, (low, high) = self.names[_name(loops[0])], self.bounds(loops[0])
            with self.block(f"for (int64_t {name} = {low}; {name} < {high}; ++{name})"):
                self.inner_loops(loops[1:], stage, flushed)
            return
        innermost = plan.vector if plan.vector_inner else loops[0] if loops else None
        if innermost is None:
            self.stage_body(stage)
            return
        low, high = self.bounds(innermost)
        if not flushed:
            self.innermost(innermost, low, high, stage)
            return
        length = STRIP_TRIPS * (plan.step if plan.vector_inner else 1)
        with self.block(f"for (int64_t strip = {low}; strip < {high}; strip += {length})"):
            for r in flushed:
                self.line(f"auto acc{r.id} = {self.begin(r)};")
            self.innermost(innermost, "strip", f"weft_min(strip + {length}, {high})", stage)
            for r in flushed:
                self.line(f"total{r.id} = Sum::combine(total{r.id}, acc{r.id});")

    def bounds(self, variable: LoopVar) -> tuple[str, str]:
        """Where an inner loop begins and ends."""
        if variable is self.plan.split:
            return "chunk_begin", "chunk_end"
        return "0", self.index(variable.extent)

    def innermost(self, variable: LoopVar, low: str, high: str, stage: Stage) -> None:
        if self.plan.vector_inner:
            self.vector_loop(variable, low, high, lambda: self.stage_body(stage))
            return
        name = self.names[_name(variable)]
        with self.block(f"for (int64_t {name} = {low}; {name} < {high}; ++{name})"):
            self.stage_body(stage)

    def vector_loop(self, variable: LoopVar, low: str, high: str, body: Callable[[], None]) -> None:
        """The vectorised loop, once per segment in which all comparisons of its variable are known."""
        parts = segments(self.kernel, variable) if self.plan.step < trips(variable.extent) else []
        if not parts:
            self.vector_segment(variable.extent, low, high, body)
            return
        whole = low == "0" and high == self.index(variable.extent)
        for start, end in parts:
            self.known = known_values(self.kernel, variable, start)
            saved = set(self.done)
            first, last = str(start), str(end)
            if not whole:
                first, last = f"weft_max({low}, {start})", f"weft_min({high}, {end})"
            aligned = start % self.plan.step == 0 == end % self.plan.step
            self.vector_segment(end - start if whole or aligned else None, first, last, body)
            self.done, self.known = saved, {}

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
        loop = "full_loop" if divisible else "vector_loop"
        with self.block(f"{loop}<S>({low}, {high}, [&]({name}) LAMBDA", ");"):
            body()

    def stage_body(self, stage: Stage) -> None:
        """What one iteration of the innermost loop does."""
        for node in stage.reused:
            self.rows[node.id] = f"row{node.id}"
            self.read_row(node)
        for node in stage.nodes:
            if not (isinstance(node, Const) or node.id in self.done):
                self.node(node)
        for node in stage.kept:
            self.write_row(node)
        for reduction in stage.reductions:
            self.accumulate(reduction)
        for store in stage.stores:
            self.store(store)

    # -- row buffers ----------------------------------------------------------------------------------

    def row_length(self) -> int:
        extents = [v.extent for v in self.kernel.inner if isinstance(v.extent, int)]
        return max(1, prod(extents)) * (1 if self.row_by_points() else self.plan.step)

    def row_by_points(self) -> bool:
        """Does a row hold one element per inner point (and not a vector of lanes)?"""
        return self.plan.vector_inner or self.plan.vector is None

    def row_position(self) -> str:
        position = self.index(self.inner_position())
        return position if self.row_by_points() else f"({position}) * S"

    def inner_position(self) -> IntExpr:
        """The number of an inner point, in the order of the loops as printed."""
        plan = self.plan
        order = [*plan.loops, *([plan.vector] if plan.vector_inner and plan.vector else [])]
        return _flat_position(order)

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

    # -- reductions -----------------------------------------------------------------------------------

    def is_wide(self, reduction: Reduce) -> bool:
        """Does its accumulator have one value per lane?"""
        return self.plan.vector_inner or self.plan.varies(reduction.value)

    def is_flushed(self, reduction: Reduce) -> bool:
        """Is a float sum so long that it needs partial sums?"""
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
        flat = _flat_position(self.kernel.inner)
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
        if self.plan.vector_inner or (reduction.kind.startswith("arg") and not self.is_wide(reduction)):
            self.define(reduction, f"{kind}::fold({accumulator})")
        elif reduction.kind.startswith("arg"):
            self.define(reduction, f"{kind}::positions({accumulator})")
        else:
            self.define(reduction, accumulator)

    # -- nodes ----------------------------------------------------------------------------------------

    def node(self, node: Node) -> None:
        """Define one node's value, unless it is known here."""
        if node.id in self.known:
            self.done.add(node.id)
        else:
            _PRINT[type(node)](self, node)

    def define(self, node: Node, text: str) -> None:
        self.line(f"const auto v{node.id} = {text};")
        self.done.add(node.id)

    def use(self, node: Node) -> str:
        """A node's value as it is: a vector if it varies, else a scalar."""
        if node.id in self.known:
            return f"scalar({str(self.known[node.id]).lower()})"
        if isinstance(node, Const):
            return f"scalar<{C_TYPE[node.dtype]}>({literal(node.value, node.dtype)})"
        return f"v{node.id}"

    def wide(self, node: Node) -> str:
        """A node's value as a vector."""
        text = self.use(node)
        varies = self.plan.varies(node) and node.id not in self.known
        return text if varies else f"splat<L, P>({text})"

    def const(self, node: Const) -> None:
        self.done.add(node.id)  # printed where it is used

    def index_value(self, node: IndexValue) -> None:
        kind = "int32_t" if node.id in self.plan.narrow else "int64_t"
        start = f"scalar<{kind}>({self.index(node.expr)})"
        if not self.plan.varies(node):
            self.define(node, start)
            return
        assert self.plan.vector is not None
        step = stride(node.expr, self.plan.vector.symbol)
        if step is not None:
            self.define(node, f"steps<L, P>({start}, {self.index(step)})")
        else:
            self.define(node, f"make<{kind}, L, P>({self.per_lane(node.expr, ())})")

    def indirect(self, node: Indirect) -> None:
        wide = self.plan.varies(node)
        flags = f"{str(node.wrap).lower()}, {str(node.check).lower()}"
        mask = "scalar(true)" if node.mask is None else self.use(node.mask)
        if wide:
            mask = "splat<L, P>(scalar(true))" if node.mask is None else self.wide(node.mask)
        value = self.wide(node.value) if wide else self.use(node.value)
        name = self.names[symbol_of(node.symbol).name]
        self.line(f"Indices<{'S' if wide else '1'}> {name};")
        count = "n" if wide else "Full{}"
        call = f"resolve<{flags}>({name}, {value}, {self.index(node.size)}, {mask}, {count})"
        self.line(f"if (!{call}) {{ a.error = 1; return; }}")
        shape = "L, P" if wide else "1, 1"
        self.define(node, f"load<{shape}>({name}.at, Full{{}})")

    def load(self, node: Load) -> None:
        if node.mask is not None and node.mask.id in self.known:
            if self.known[node.mask.id]:
                self.unmasked_load(node)
            else:
                text = f"scalar<{C_TYPE[node.dtype]}>({literal(node.other, node.dtype)})"
                self.define(node, f"splat<L, P>({text})" if self.plan.varies(node) else text)
            return
        address = f"{self.buffers[node.buffer]} + ({self.index(node.index, node.indirect)})"
        if not self.plan.varies(node):
            self.define(node, self.guarded(node, f"load1({address})"))
            return
        if node.mask is None or not self.plan.varies(node.mask):
            self.define(node, self.guarded(node, self.vector_load(node)))
        elif self.step_of(node.index, node.indirect) == 1:
            self.define(node, f"load_masked<L, P>({address}, n, {self.mask_arguments(node)})")
        else:
            at = self.per_lane(node.index, node.indirect, self.buffers[node.buffer])
            kind = self.memory[node.buffer]
            text = f"gather_masked<L, P, {kind}>({at}, n, {self.mask_arguments(node)})"
            self.define(node, text)

    def unmasked_load(self, node: Load) -> None:
        if self.plan.varies(node):
            self.define(node, self.vector_load(node))
        else:
            address = f"{self.buffers[node.buffer]} + ({self.index(node.index, node.indirect)})"
            self.define(node, f"load1({address})")

    def vector_load(self, node: Load) -> str:
        """A vector of elements: beside each other, the same one, or gathered."""
        if self.plan.tile is not None and node.id in self.plan.tile.loads:
            return self.tile_load(node, self.plan.tile)
        address = f"{self.buffers[node.buffer]} + ({self.index(node.index, node.indirect)})"
        step = self.step_of(node.index, node.indirect)
        if step == 1:
            return f"load<L, P>({address}, n)"
        if step == 0:
            return f"splat<L, P>(load1({address}))"
        at = self.per_lane(node.index, node.indirect, self.buffers[node.buffer])
        return f"gather<L, P, {self.memory[node.buffer]}>({at}, n)"

    def mask_arguments(self, node: Load) -> str:
        assert node.mask is not None
        return f"{self.use(node.mask)}, {literal(node.other, node.dtype)}"

    def guarded(self, node: Load, text: str) -> str:
        """A load under a mask that is the same in all lanes."""
        if node.mask is None:
            return text
        other = f"scalar<{C_TYPE[node.dtype]}>({literal(node.other, node.dtype)})"
        if self.plan.varies(node):
            other = f"splat<L, P>({other})"
        return f"value({self.use(node.mask)}) ? {text} : {other}"

    def step_of(self, index: IntExpr, indirect: Sequence[Indirect]) -> IntExpr | None:
        """Elements between lanes; None if they must be gathered one by one."""
        if self.plan.vector is None or any(self.plan.varies(i) for i in indirect):
            return None
        return stride(index, self.plan.vector.symbol)

    def op(self, node: Op) -> None:
        wide = self.plan.varies(node)
        spelled = self.wide if wide else self.use
        if node.name == "where" and node.args[0].id in self.known:
            self.define(node, spelled(node.args[1 if self.known[node.args[0].id] else 2]))
            return
        if node.name in COMPARISONS and any(a.id in self.plan.narrow for a in node.args):
            arguments = ", ".join(self.narrow(a, wide) for a in node.args)
        else:
            arguments = ", ".join(spelled(a) for a in node.args)
        name = FUNCTION.get(node.name, node.name)
        if node.name == "cast":
            name = f"cast<{C_TYPE[node.dtype]}>"
        self.define(node, f"{name}({arguments})")

    def narrow(self, node: Node, wide: bool) -> str:
        """An operand of a comparison of 32-bit indices."""
        if not isinstance(node, Const):
            return self.wide(node) if wide else self.use(node)
        text = f"scalar<int32_t>({int(node.value)})"
        return f"splat<L, P>({text})" if wide else text

    # -- stores ---------------------------------------------------------------------------------------

    def store(self, store: Store) -> None:
        buffer = self.buffers[store.buffer]
        address = f"{buffer} + ({self.index(store.index, store.indirect)})"
        step = self.step_of(store.index, store.indirect)
        wide = self.is_wide_store(store)
        value = self.wide(store.value) if wide else self.use(store.value)
        if store.mode == "add":
            at = self.per_lane(store.index, store.indirect, buffer)
            self.line(f"accumulate({at}, {value}, {'n' if wide else 'Full{}'});")
        elif not wide:
            self.line(f"store1({address}, {value});")
        elif step == 1:
            self.line(f"store({address}, {value}, n);")
        else:
            at = self.per_lane(store.index, store.indirect, buffer)
            self.line(f"scatter<{self.memory[store.buffer]}>({at}, {value}, n);")

    def is_wide_store(self, store: Store) -> bool:
        plan = self.plan
        if plan.vector is None:
            return False
        if plan.vector_inner:
            return store.inner
        return True

    # -- text -----------------------------------------------------------------------------------------

    def index(self, expr: IntExpr, indirect: Iterable[Indirect] = ()) -> str:
        """An index expression at the current point (lane 0)."""
        return c_text(expr, self.names | self.indirect_names(indirect, "0"))

    def indirect_names(self, indirect: Iterable[Indirect], lane: str) -> dict[str, str]:
        found = {}
        for node in indirect:
            name = symbol_of(node.symbol).name
            found[name] = f"{self.names[name]}.at[{lane if self.plan.varies(node) else '0'}]"
        return found

    def per_lane(self, expr: IntExpr, indirect: Iterable[Indirect], buffer: str = "") -> str:
        """A C++ function of the lane number that gives the index, or the address in `buffer`."""
        names = self.names | self.indirect_names(indirect, "lane_")
        declared = ""
        if self.plan.vector is not None:
            names[_name(self.plan.vector)] = f"{self.vector_name}_"
            declared = f"const int64_t {self.vector_name}_ = {self.vector_name} + lane_; "
        text = f"{buffer} + ({c_text(expr, names)})" if buffer else f"(int64_t)({c_text(expr, names)})"
        return f"[&]([[maybe_unused]] int lane_) {{ {declared}return {text}; }}"

    def line(self, text: str) -> None:
        self.lines.append("  " * self.indent + text)

    @contextmanager
    def block(self, head: str, end: str = "") -> Iterator[None]:
        self.line(f"{head} {{")
        self.indent += 1
        yield
        self.indent -= 1
        self.line("}" + end)


_PRINT: Final[dict[type, Callable[..., None]]] = {
    Const: _Emitter.const,
    IndexValue: _Emitter.index_value,
    Indirect: _Emitter.indirect,
    Load: _Emitter.load,
    Op: _Emitter.op,
}


def _name(variable: LoopVar | None) -> str:
    assert variable is not None
    return symbol_of(variable.symbol).name


def _canonical_names(kernel: Kernel) -> dict[str, str]:
    """C names of all symbols, by position."""
    names: dict[str, str] = {}
    for prefix, variables in (("i", kernel.outer), ("r", kernel.inner)):
        names |= {_name(v): f"{prefix}{i}" for i, v in enumerate(variables)}
    names |= {symbol_of(s).name: f"s{i}" for i, s in enumerate(kernel.sizes)}
    indirect = [n for n in kernel.nodes if isinstance(n, Indirect)]
    return names | {symbol_of(n.symbol).name: f"j{i}" for i, n in enumerate(indirect)}


def _headers(kernel: Kernel) -> set[str]:
    found = {"core.h"}
    found |= {HEADER[n.name] for n in kernel.nodes if isinstance(n, Op) and n.name in HEADER}
    if any(isinstance(n, Reduce) for n in kernel.nodes):
        found.add("reduce.h")
    if any(b.dtype == "f16" for b in kernel.buffers):
        found.add("half.h")
    return found


def _own_index(node: Node) -> IntExpr:
    if isinstance(node, Load):
        return node.index
    return node.expr if isinstance(node, IndexValue) else 0


def _loop_dependent(kernel: Kernel) -> set[int]:
    """Ids of the nodes that cannot be computed before all loops."""
    found: set[int] = set()
    loops = {v.symbol for v in (*kernel.outer, *kernel.inner)}
    for node in kernel.nodes:
        depends = isinstance(node, Reduce | Indirect) or not loops.isdisjoint(
            symbols(_own_index(node)))  # fmt: skip
        if depends or node.inner or any(o.id in found for o in operands(node)):
            found.add(node.id)
    return found


def _row_type(node: Node) -> str:
    return C_TYPE[node.dtype]


def _flat_position(variables: Iterable[LoopVar]) -> IntExpr:
    position: IntExpr = 0
    for variable in variables:
        position = position * variable.extent + variable.symbol
    return position


def _product(factors: Iterable[str]) -> str:
    wanted = [f"(int64_t)({f})" for f in factors if f != "1"]
    return " * ".join(wanted) or "1"
