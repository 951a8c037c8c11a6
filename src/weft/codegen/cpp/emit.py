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
    HEAVY,
    STRIP_TRIPS,
    Plan,
    Stage,
    make_plan,
    position_type,
    stride,
)
from weft.codegen.cpp.spelling import C_TYPE, FUNCTION, HEADER, REDUCTION, literal
from weft.codegen.dtypes import FLOAT_TYPES
from weft.codegen.loop_ir import (
    Const,
    Indirect,
    IndexValue,
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
        self.vector_name = self.names[_name(plan.vector)] if plan.vector else ""

    # -- the file -------------------------------------------------------------------------------------

    def text(self) -> str:
        """The whole file: headers, body, entry point."""
        plan = self.plan
        for header in sorted(_headers(self.kernel)):
            self.line(f'#include "{header}"')
        self.line("using namespace weft;")
        lanes = f"L = {plan.lanes}, P = {plan.parts}, S = L * P"
        self.line(f"[[maybe_unused]] static constexpr int {lanes};")
        with self.block("static void body(Arguments& a, int64_t begin, int64_t end)"):
            self.parameters()
            dependent = _loop_dependent(self.kernel)
            self.outer_nodes(lambda n: n.id not in dependent)
            with self.block("for (int64_t point = begin; point < end; ++point)"):
                self.point_indices()
                self.point()
        self.entry_point()
        return "\n".join(self.lines) + "\n"

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
            points = _product([*counts, self.blocks()] if self.plan.block else counts)
            self.line(f"return run(body, buffers, sizes, {points}, {self.cost()});")

    def cost(self) -> str:
        """Work of one point, in about the time of one element; 0 keeps the kernel on one thread."""
        if any(store.mode == "add" for store in self.kernel.stores):
            return "0"
        plan = self.plan
        per_element = sum(HEAVY.get(n.name, 1) for n in self.kernel.nodes if isinstance(n, Op))
        factors: list[str] = [str(1 + per_element // 4)]
        factors += [self.index(v.extent) for v in self.kernel.inner]
        if plan.vector is not None and not plan.vector_inner:
            factors.append(str(plan.block) if plan.block else self.index(plan.vector.extent))
        return _product(factors)

    def blocks(self) -> str:
        assert self.plan.vector is not None
        block = self.plan.block
        return f"(({self.index(self.plan.vector.extent)}) + {block - 1}) / {block}"

    # -- levels ---------------------------------------------------------------------------------------

    def point_indices(self) -> None:
        """The loop variables of one point, from its number."""
        variables = [(self.names[_name(v)], self.index(v.extent)) for v in self.plan.points]
        if self.plan.block:
            variables.append(("block", self.blocks()))
        rest = "point"
        for position, (name, extent) in reversed(list(enumerate(variables))):
            if position == 0:
                self.line(f"[[maybe_unused]] const int64_t {name} = {rest};")
            else:
                self.line(f"[[maybe_unused]] const int64_t {name} = {rest} % ({extent});")
                rest = f"{rest} / ({extent})"

    def point(self) -> None:
        """One point: all of it, or a run of the vectorised outer loop."""
        plan = self.plan
        if plan.vector is None or plan.vector_inner:
            self.lanes()
            return
        self.outer_nodes(lambda n: not plan.varies(n) and not plan.stage_of[n.id])
        extent = self.index(plan.vector.extent)
        low, high = "0", extent
        if plan.block:
            low, high = f"block * {plan.block}", f"weft_min(block * {plan.block} + {plan.block}, {extent})"
        self.vector_loop(plan.vector, low, high, self.lanes)

    def lanes(self) -> None:
        """Everything of one point, or of the lanes of one vector of points."""
        for number, stage in enumerate(self.plan.stages):
            self.outer_nodes(lambda n, known=number: self.plan.stage_of[n.id] <= known)  # type: ignore[misc]
            self.stage(stage)
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
        saved = set(self.done)
        for node in stage.kept:
            self.line(f"alignas(64) {_row_type(node)} row{node.id}[{self.row_length()}];")
        flushed = [r for r in stage.reductions if self.is_flushed(r)]
        for reduction in stage.reductions:
            name = "total" if reduction in flushed else "acc"
            self.line(f"auto {name}{reduction.id} = {self.begin(reduction)};")
        self.inner_loops(list(self.plan.loops), stage, flushed)
        self.done = saved
        for reduction in stage.reductions:
            self.finish(reduction, "total" if reduction in flushed else "acc")

    def inner_loops(self, loops: list[LoopVar], stage: Stage, flushed: list[Reduce]) -> None:
        """The sequential loops around, then the innermost one: vectorised, or in strips."""
        plan = self.plan
        if len(loops) > (0 if plan.vector_inner else 1):
            name, extent = self.names[_name(loops[0])], self.index(loops[0].extent)
            with self.block(f"for (int64_t {name} = 0; {name} < {extent}; ++{name})"):
                self.inner_loops(loops[1:], stage, flushed)
            return
        innermost = plan.vector if plan.vector_inner else loops[0] if loops else None
        if innermost is None:
            self.stage_body(stage)
            return
        extent = self.index(innermost.extent)
        if not flushed:
            self.innermost(innermost, "0", extent, stage)
            return
        length = STRIP_TRIPS * (plan.step if plan.vector_inner else 1)
        with self.block(f"for (int64_t strip = 0; strip < {extent}; strip += {length})"):
            for r in flushed:
                self.line(f"auto acc{r.id} = {self.begin(r)};")
            self.innermost(innermost, "strip", f"weft_min(strip + {length}, {extent})", stage)
            for r in flushed:
                self.line(f"total{r.id} = Sum::combine(total{r.id}, acc{r.id});")

    def innermost(self, variable: LoopVar, low: str, high: str, stage: Stage) -> None:
        if self.plan.vector_inner:
            self.vector_loop(variable, low, high, lambda: self.stage_body(stage))
            return
        name = self.names[_name(variable)]
        with self.block(f"for (int64_t {name} = {low}; {name} < {high}; ++{name})"):
            self.stage_body(stage)

    def vector_loop(self, variable: LoopVar, low: str, high: str, body: Callable[[], None]) -> None:
        step, extent = self.plan.step, variable.extent
        divisible = isinstance(extent, int) and extent % step == 0
        name = self.names[_name(variable)]
        if isinstance(extent, int) and extent < step and low == "0":
            with self.block(f"[&]([[maybe_unused]] int64_t {name}, auto n) LAMBDA", f"(0, {extent});"):
                body()
            return
        loop = "full_loop" if divisible else "vector_loop"
        head = f"{loop}<S>({low}, {high}, [&]([[maybe_unused]] int64_t {name}, [[maybe_unused]] auto n) LAMBDA"
        with self.block(head, ");"):
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

    def finish(self, reduction: Reduce, name: str) -> None:
        accumulator, kind = f"{name}{reduction.id}", REDUCTION[reduction.kind]
        if self.plan.vector_inner or (reduction.kind.startswith("arg") and not self.is_wide(reduction)):
            self.define(reduction, f"{kind}::fold({accumulator})")
        elif reduction.kind.startswith("arg"):
            self.define(reduction, f"{kind}::positions({accumulator})")
        else:
            self.define(reduction, accumulator)

    # -- nodes ----------------------------------------------------------------------------------------

    def node(self, node: Node) -> None:
        """Define one node's value."""
        _PRINT[type(node)](self, node)

    def define(self, node: Node, text: str) -> None:
        self.line(f"const auto v{node.id} = {text};")
        self.done.add(node.id)

    def use(self, node: Node) -> str:
        """A node's value as it is: a vector if it varies, else a scalar."""
        if isinstance(node, Const):
            return f"scalar<{C_TYPE[node.dtype]}>({literal(node.value, node.dtype)})"
        return f"v{node.id}"

    def wide(self, node: Node) -> str:
        """A node's value as a vector."""
        text = self.use(node)
        return text if self.plan.varies(node) else f"splat<L, P>({text})"

    def const(self, node: Const) -> None:
        self.done.add(node.id)  # printed where it is used

    def index_value(self, node: IndexValue) -> None:
        if not self.plan.varies(node):
            self.define(node, f"scalar<int64_t>({self.index(node.expr)})")
            return
        assert self.plan.vector is not None
        step = stride(node.expr, self.plan.vector.symbol)
        if step is not None:
            start = f"scalar<int64_t>({self.index(node.expr)})"
            self.define(node, f"steps<L, P>({start}, {self.index(step)})")
        else:
            self.define(node, f"make<int64_t, L, P>({self.per_lane(node.expr, ())})")

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
        self.done.add(node.id)

    def load(self, node: Load) -> None:
        address = f"{self.buffers[node.buffer]} + ({self.index(node.index, node.indirect)})"
        if not self.plan.varies(node):
            self.define(node, self.guarded(node, f"load1({address})"))
            return
        masked = node.mask is not None and self.plan.varies(node.mask)
        step = self.step_of(node.index, node.indirect)
        kind = self.memory[node.buffer]
        if step == 0:
            text = f"splat<L, P>(load1({address}))" if not masked else None
        else:
            text = f"load<L, P>({address}, n)" if step == 1 else None
        if step == 1 and masked:
            text = f"load_masked<L, P>({address}, n, {self.mask_arguments(node)})"
        if text is None:
            at = self.per_lane(node.index, node.indirect, self.buffers[node.buffer])
            if masked:
                text = f"gather_masked<L, P, {kind}>({at}, n, {self.mask_arguments(node)})"
            else:
                text = f"gather<L, P, {kind}>({at}, n)"
        self.define(node, text if masked else self.guarded(node, text))

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
        arguments = ", ".join(self.wide(a) if wide else self.use(a) for a in node.args)
        name = FUNCTION.get(node.name, node.name)
        if node.name == "cast":
            name = f"cast<{C_TYPE[node.dtype]}>"
        self.define(node, f"{name}({arguments})")

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
