"""Prints scalar nodes and stores as C++ statements: loads, operators, indices.

Place in the pipeline: the lowest layer of the printer; `loop_nests.py` puts loops around it.

A node becomes one line, `const auto v3 = add(v1, v2);`: a vector if it differs between the lanes of
the vectorised loop, else a scalar that is widened where it meets vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import reduce
from math import inf, prod
from typing import Final

from weft.codegen.cpp.loop_splitting import Segment
from weft.codegen.cpp.plan import BACKWARDS, SHUFFLED_STEPS, Plan
from weft.codegen.cpp.spelling import C_TYPE, FUNCTION, literal
from weft.codegen.cpp.tiles import Tile
from weft.codegen.ir.loop_ir import (
    Const,
    IndexValue,
    Indirect,
    Kernel,
    Load,
    LoopVar,
    Node,
    Op,
    Store,
    stride,
)
from weft.codegen.ir.scalar_ops import COMPARISONS
from weft.shapes.algebra.atoms import Atom, FloorDiv, Mod, Symbol
from weft.shapes.algebra.bounds import lower_bound, upper_bound
from weft.shapes.algebra.expr import Expr, IntExpr, split_linear, symbol_of, symbols
from weft.shapes.algebra.expr import operands as operands_of
from weft.shapes.algebra.printing import c_text

MOST_STEP: Final = 2**24
"""Elements between lanes, up to which their places fit in 32 bits."""
MOST_IN_FLOAT: Final = 2**22
"""Integers below it are divided exactly in float (`include/indices.h`)."""


class NodeWriter:
    """Prints the nodes of one kernel; keeps track of what is printed."""

    def __init__(self, plan: Plan) -> None:
        self.plan, self.kernel = plan, plan.kernel
        self.lines: list[str] = []
        self.indent = 0
        self.names = _canonical_names(plan.kernel)
        self.buffers = {b.name: f"b{i}" for i, b in enumerate(self.kernel.buffers)}
        self.memory = {b.name: C_TYPE[b.dtype] for b in self.kernel.buffers}
        self.sizes = frozenset(self.kernel.sizes)
        self.size_parts: dict[str, str] = {}  # text of an index's part -> its name
        self.head = 0  # the line of the function where these names are defined
        self.rows: dict[int, str] = {}  # node -> its row buffer, while it is read
        self.done: set[int] = set()
        self.in_tile = False
        self.divisors: set[int] = set()  # numbers of the call that vectors are divided by
        self.owner_tests = 0  # the different answers to which thread's a store is
        self.segment = Segment(0, 0, {}, {}, frozenset())  # what is known in this part
        self.vector_name = self.names[name_of(plan.vector)] if plan.vector else ""

    def begin_sizes(self, source: str) -> None:
        """Begin a function: the sizes of the call, and a place for values computed from them."""
        for i in range(len(self.kernel.sizes)):
            self.line(f"[[maybe_unused]] const int64_t s{i} = {source}[{i}];")
        self.size_parts, self.head = {}, len(self.lines)

    # -- nodes ---------------------------------------------------------------------------------

    def node(self, node: Node) -> None:
        """Define one node's value, unless it is defined in this scope."""
        if any(node.id in ids for ids in (self.segment.unused, self.segment.same,
                                          self.plan.settled)):
            self.done.add(node.id)
        else:
            _PRINT[type(node)](self, node)

    def define(self, node: Node, text: str) -> None:
        self.line(f"const auto v{node.id} = {text};")
        self.done.add(node.id)

    def use(self, node: Node) -> str:
        """A node's value as it is: a vector if it varies, else a scalar."""
        node = self.segment.same.get(node.id, node)
        if node.id in self.known:
            return f"scalar({str(self.known[node.id]).lower()})"
        if isinstance(node, Const):
            return f"scalar<{C_TYPE[node.dtype]}>({literal(node.value, node.dtype)})"
        return f"v{node.id}"

    def wide(self, node: Node) -> str:
        """A node's value as a vector."""
        node = self.segment.same.get(node.id, node)
        text = self.use(node)
        varies = self.plan.varies(node) and node.id not in self.known
        return text if varies else f"splat<L, P>({text})"

    @property
    def known(self) -> dict[int, bool]:
        """The boolean nodes that are constant in this part of the loop."""
        return self.segment.known

    def mask_of(self, node: Load) -> Node | None:
        return None if node.mask is None else self.segment.same.get(node.mask.id, node.mask)

    def const(self, node: Const) -> None:
        self.done.add(node.id)  # printed where it is used

    def index_value(self, node: IndexValue) -> None:
        kind = "int32_t" if node.id in self.plan.narrow else "int64_t"
        start = f"scalar<{kind}>({self.index(node.expr, node.indirect)})"
        if not self.plan.varies(node):
            self.define(node, start)
            return
        step = self.step_of(node.expr, node.indirect)
        if step is not None:
            self.define(node, f"steps<L, P>({start}, {self.index(step)})")
        elif places := self.places(node.expr, node.indirect):
            self.define(node, f"cast<{kind}>({places})")
        else:
            self.define(node, f"make<{kind}, L, P>({self.per_lane(node.expr, node.indirect)})")

    def indirect(self, node: Indirect) -> None:
        wide = self.plan.varies(node)
        flags = f"{str(node.wrap).lower()}, {str(node.check).lower()}"
        spelled = self.wide if wide else self.use
        used = "" if node.mask is None else f", {spelled(node.mask)}"
        value, count = spelled(node.value), "n" if wide else "Full{}"
        name = self.names[symbol_of(node.symbol).name]
        self.line(f"Indices<{'S' if wide else '1'}> {name};")
        call = f"resolve<{flags}>({name}, {value}, {self.index(node.size)}{used}, {count})"
        self.line(f"if (!{call}) {{ a.error = 1; return; }}")
        shape = "L, P" if wide else "1, 1"
        self.define(node, f"load<{shape}>({name}.at, Full{{}})")

    def load(self, node: Load) -> None:
        mask = self.mask_of(node)
        if mask is not None and mask.id in self.known:
            if self.known[mask.id]:
                self.unmasked_load(node)
            else:
                text = f"scalar<{C_TYPE[node.dtype]}>({literal(node.other, node.dtype)})"
                self.define(node, f"splat<L, P>({text})" if self.plan.varies(node) else text)
            return
        address = f"{self.buffers[node.buffer]} + ({self.index(node.index, node.indirect)})"
        if not self.plan.varies(node):
            self.define(node, self.guarded(node, f"load1({address})"))
            return
        if mask is None or not self.plan.varies(mask):
            self.define(node, self.guarded(node, self.vector_load(node)))
        elif self.step_of(node.index, node.indirect) == 1:
            self.define(node, f"load_masked<L, P>({address}, n, {self.mask_arguments(node)})")
        else:
            self.define(node, self.gathered(node, f", {self.mask_arguments(node)}"))

    def unmasked_load(self, node: Load) -> None:
        if self.plan.varies(node):
            self.define(node, self.vector_load(node))
        else:
            address = f"{self.buffers[node.buffer]} + ({self.index(node.index, node.indirect)})"
            self.define(node, f"load1({address})")

    def vector_load(self, node: Load) -> str:
        """A vector of elements: adjacent ones, one repeated, or gathered."""
        if self.plan.tile is not None and node.id in self.plan.tile.loads:
            return self.tile_load(node, self.plan.tile)
        address = f"{self.buffers[node.buffer]} + ({self.index(node.index, node.indirect)})"
        step = self.step_of(node.index, node.indirect)
        if step == 1:
            return f"load<L, P>({address}, n)"
        if step == 0:
            return f"splat<L, P>(load1({address}))"
        if step in SHUFFLED_STEPS:
            return f"load_every<{step}, L, P>({address}, n)"
        if step == BACKWARDS:
            return f"load_backwards<L, P>({address}, n)"
        return self.gathered(node, "")

    def gathered(self, node: Load, mask: str) -> str:
        """Elements that are not adjacent: loaded by a vector of positions if there is one, else
        lane by lane."""
        buffer, kind = self.buffers[node.buffer], self.memory[node.buffer]
        places = self.lane_places(node.index, node.indirect)
        if places is not None:
            start, offsets = places
            return f"gather_at<L, P>({buffer} + ({start}), {offsets}, n{mask})"
        at = self.per_lane(node.index, node.indirect, buffer)
        return f"gather{'_masked' * bool(mask)}<L, P, {kind}>({at}, n{mask})"

    def lane_places(
        self, index: IntExpr, indirect: Sequence[Indirect]
    ) -> tuple[str, str] | None:
        """A load's index as a start that all lanes share, and a vector that is added to it."""
        assert self.plan.vector is not None
        varying = [i for i in indirect if self.plan.varies(i)]
        if not varying and stride(index, self.plan.vector.symbol) is None:
            own = _terms_with(index, self.plan.vector.symbol)
            offsets = self.places(own, indirect)
            return (self.index(index - own, indirect), offsets) if offsets else None
        terms = []
        for node in varying:
            parts = split_linear(index, node.symbol)
            slope, index = parts if parts is not None else (None, index)
            if not isinstance(slope, int):
                return None
            terms.append(f"v{node.id}" if slope == 1 else f"mul(v{node.id}, {_wide_int(slope)})")
        step = stride(index, self.plan.vector.symbol)
        if not isinstance(step, int) or abs(step) > MOST_STEP:
            return None
        if step or not terms:
            terms.append(f"steps<L, P>(scalar<{'int64_t' if terms else 'int32_t'}>(0), {step})")
        uniform = [i for i in indirect if not self.plan.varies(i)]
        return self.index(index, uniform), reduce(lambda a, b: f"add({a}, {b})", terms)

    def mask_arguments(self, node: Load) -> str:
        assert node.mask is not None
        return f"{self.use(node.mask)}, {literal(node.other, node.dtype)}"

    def guarded(self, node: Load, text: str) -> str:
        """A load under a mask that is the same in all lanes."""
        mask = self.mask_of(node)
        if mask is None:
            return text
        other = f"scalar<{C_TYPE[node.dtype]}>({literal(node.other, node.dtype)})"
        if self.plan.varies(node):
            other = f"splat<L, P>({other})"
        return f"value({self.use(mask)}) ? {text} : {other}"

    def step_of(self, index: IntExpr, indirect: Sequence[Indirect]) -> IntExpr | None:
        """The distance of elements between lanes; None if they must be gathered one by one."""
        if self.plan.vector is None or any(self.plan.varies(i) for i in indirect):
            return None
        return stride(index, self.plan.vector.symbol)

    def op(self, node: Op) -> None:
        wide = self.plan.varies(node)
        spelled = self.wide if wide else self.use
        if node.name == "divisor":
            used, value = spelled(node.args[0]), spelled(node.args[1])
            count = "n" if wide else "Full{}"
            self.line(f"if (has_zero({used}, {value}, {count})) {{ a.error = 2; return; }}")
            self.define(node, value)
            return
        if node.name == "where" and node.args[0].id in self.known:
            self.define(node, spelled(node.args[1 if self.known[node.args[0].id] else 2]))
            return
        if node.name in COMPARISONS and any(a.id in self.plan.narrow for a in node.args):
            arguments = ", ".join(self.narrow(a, wide) for a in node.args)
        elif wide and node.name == "div" and node.args[1].id in self.divisors:
            arguments = f"{self.wide(node.args[0])}, d{node.args[1].id}"
        else:
            arguments = ", ".join(spelled(a) for a in node.args)
        name = FUNCTION.get(node.name, node.name)
        if node.name == "cast":
            name = f"cast<{C_TYPE[node.dtype]}>"
        self.define(node, f"{name}({arguments})")

    def narrow(self, node: Node, wide: bool) -> str:
        """An operand of a comparison of 32-bit indices."""
        if node.id in self.plan.narrow:
            return self.wide(node) if wide else self.use(node)
        if isinstance(node, Const):
            text = f"scalar<int32_t>({int(node.value)})"
        else:
            text = f"limited({self.use(node)})"
        return f"splat<L, P>({text})" if wide else text

    def tile_load(self, node: Load, tile: Tile) -> str:
        return f"load<L, P>(tile{node.id} + ({self.in_tile_at(tile)}), n)"

    def in_tile_at(self, tile: Tile) -> str:
        """The current vector's position in a tile."""
        row = self.names[name_of(tile.rows)]
        return f"({row} - row_begin) * {tile.width} + {self.vector_name} - column_begin"

    # -- stores --------------------------------------------------------------------------------

    def stores(self, stores: Sequence[Store]) -> None:
        """Print stores in order; those that fill memory together become one."""
        left = list(stores)
        while left:
            together = self.interleaved(left)
            test = self.owner_test(self.kernel.stores.index(left[0]))
            with self.block(f"if ({test})") if self.owner_tests > 1 else nullcontext():
                self.stores_together(together)
            left = [s for s in left if s not in together]

    def stores_together(self, together: Sequence[Store]) -> None:
        first = together[0]
        if len(together) == 1:
            self.store(first)
            return
        address = f"{self.buffers[first.buffer]} + ({self.index(first.index, first.indirect)})"
        values = ", ".join(self.wide(s.value) for s in together)
        self.line(f"store_interleaved({address}, n, {values});")

    def owner_test(self, number: int) -> str:
        """Is what a store (by position) writes this thread's?"""
        owner = self.plan.owners.get(number)
        name = "" if owner is None else self.names[symbol_of(owner.symbol).name]
        place = f"{name}.at[0]" if name else "point"
        low, high = (f"{edge}_{name}" if name else edge for edge in ("low", "high"))
        return f"{place} >= {low} && {place} < {high}"

    def interleaved(self, stores: Sequence[Store]) -> list[Store]:
        """The stores that fill the gaps of the first one, in the order of their elements."""
        first = stores[0]
        step = None if self.tiled(first) else self.step_of(first.index, first.indirect)
        if step not in SHUFFLED_STEPS or not self.is_wide_store(first) or first.mode != "assign":
            return [first]
        partners: dict[IntExpr, Store] = {
            s.index - first.index: s for s in stores
            if (s.buffer, s.mode) == (first.buffer, first.mode) and self.is_wide_store(s)
        }
        lowest = min((k for k in partners if isinstance(k, int)), default=0)
        run = [partners.get(lowest + k) for k in range(int(step))]
        return [first] if None in run else [s for s in run if s is not None]

    def store(self, store: Store) -> None:
        buffer = self.buffers[store.buffer]
        address = f"{buffer} + ({self.index(store.index, store.indirect)})"
        step = self.step_of(store.index, store.indirect)
        wide = self.is_wide_store(store)
        value = self.wide(store.value) if wide else self.use(store.value)
        if store.mode != "assign":
            self.combining_store(store, address, value, step)
        elif (tile := self.tiled(store)) is not None:
            number = self.kernel.stores.index(store)
            self.line(f"store(made{number} + ({self.in_tile_at(tile)}), {value}, n);")
        elif not wide:
            self.line(f"store1({address}, {value});")
        elif step == 1:
            self.line(f"store({address}, {value}, n);")
        else:
            at = self.per_lane(store.index, store.indirect, buffer)
            self.line(f"scatter<{self.memory[store.buffer]}>({at}, {value}, n);")

    def combining_store(
        self, store: Store, address: str, value: str, step: IntExpr | None
    ) -> None:
        """Combine the value with what is there; lane by lane where lanes may conflict."""
        if not self.is_wide_store(store):
            self.line(f"store1({address}, {store.mode}(load1({address}), {value}));")
        elif step == 1:
            self.line(f"store({address}, {store.mode}(load<L, P>({address}, n), {value}), n);")
        else:
            at = self.per_lane(store.index, store.indirect, self.buffers[store.buffer])
            combine = f"[](auto a, auto b) LAMBDA {{ return {store.mode}(a, b); }}"
            self.line(f"accumulate({at}, {value}, n, {combine});")

    def tiled(self, store: Store) -> Tile | None:
        """The tile that a store fills."""
        tile = self.plan.tile
        return tile if tile and self.kernel.stores.index(store) in tile.stores else None

    def is_wide_store(self, store: Store) -> bool:
        plan = self.plan
        if plan.vector is None:
            return False
        if plan.vector_inner:
            return store.inner
        return True

    # -- text ----------------------------------------------------------------------------------

    def index(self, expr: IntExpr, indirect: Iterable[Indirect] = ()) -> str:
        """An index expression at the current point (lane 0)."""
        return c_text(expr, self.names | self.indirect_names(indirect, "0"), self.size_part)

    def size_part(self, atom: Atom, text: str) -> str:
        """The name of a part of an index that depends on sizes alone: computed once, before the
        loops (compilers move products there, but neither divisions nor minima)."""
        if not _known_ahead(atom, self.sizes):
            return text
        if text not in self.size_parts:
            name = self.size_parts[text] = f"h{len(self.size_parts)}"
            self.lines.insert(self.head, f"  const int64_t {name} = {text};")
            self.head += 1
        return self.size_parts[text]

    def indirect_names(self, indirect: Iterable[Indirect], lane: str) -> dict[str, str]:
        elements = {}
        for node in indirect:
            name = symbol_of(node.symbol).name
            elements[name] = f"{self.names[name]}.at[{lane if self.plan.varies(node) else '0'}]"
        return elements

    def per_lane(self, expr: IntExpr, indirect: Iterable[Indirect], buffer: str = "") -> str:
        """A C++ function of the lane number that gives the index, or the address in `buffer`."""
        names = self.names | self.indirect_names(indirect, "lane_")
        declared = ""
        if self.plan.vector is not None:
            names[name_of(self.plan.vector)] = f"{self.vector_name}_"
            declared = f"const int64_t {self.vector_name}_ = {self.vector_name} + lane_; "
        index = c_text(expr, names)
        text = f"{buffer} + ({index})" if buffer else f"(int64_t)({index})"
        return f"[&]([[maybe_unused]] int lane_) {{ {declared}return {text}; }}"

    def places(self, expr: IntExpr, indirect: Sequence[Indirect]) -> str | None:
        """A vector of 32-bit integers that has the index's value in each lane; None if what it is
        computed from may be larger."""
        assert self.plan.vector is not None
        largest = _largest_operand(expr, self.plan.vector.symbol)
        if any(self.plan.varies(i) for i in indirect) or largest >= 2**31:
            return None
        real = "float" if largest < MOST_IN_FLOAT else "double"
        name = f"{self.vector_name}_"
        names = self.names | self.indirect_names(indirect, "0")
        text = c_text(expr, names | {name_of(self.plan.vector): name})
        lanes = f"places<{real}, L, P>({self.vector_name})"
        return f"[&](auto {name}) LAMBDA {{ return ({text}).at; }}({lanes})"

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
    Const: NodeWriter.const,
    IndexValue: NodeWriter.index_value,
    Indirect: NodeWriter.indirect,
    Load: NodeWriter.load,
    Op: NodeWriter.op,
}


def _wide_int(number: int) -> str:
    return f"splat<L, P>(scalar<int64_t>({number}))"


def name_of(variable: LoopVar | None) -> str:
    assert variable is not None
    return symbol_of(variable.symbol).name


def _terms_with(index: IntExpr, variable: Expr) -> IntExpr:
    """The terms of a sum that depend on `variable`."""
    terms = {} if isinstance(index, int) else index.terms
    dependent: IntExpr = 0
    for monomial, coefficient in terms.items():
        if any(variable in atom.expr.symbols for atom in monomial):
            dependent += prod((atom.expr for atom in monomial), start=coefficient)
    return dependent


def _largest_operand(expr: IntExpr, variable: Expr) -> float:
    """An upper bound of the value, and of all that is divided or compared in computing it."""
    largest: float = max(-lower_bound(expr), upper_bound(expr))
    for atom in () if isinstance(expr, int) else expr.atoms():
        if isinstance(atom, Symbol) or variable not in atom.expr.symbols:
            continue
        if isinstance(atom, FloorDiv | Mod) and (
            variable in symbols(atom.right) or lower_bound(atom.right) < 1
        ):
            return inf
        largest = max(largest, *(_largest_operand(part, variable) for part in operands_of(atom)))
    return largest


def _known_ahead(atom: Atom, sizes: frozenset[IntExpr]) -> bool:
    """Whether part of an index depends on sizes alone, without a division by what may be 0."""
    if isinstance(atom, FloorDiv | Mod) and lower_bound(atom.right) < 1:
        return False
    parts = [o for o in operands_of(atom) if not isinstance(o, int)]
    return all(
        o.symbols <= sizes and all(_known_ahead(a, sizes) for a in o.atoms())
        for o in parts
    )


def _canonical_names(kernel: Kernel) -> dict[str, str]:
    """C names of all symbols, by position."""
    names: dict[str, str] = {}
    for prefix, variables in (("i", kernel.outer), ("r", kernel.inner)):
        names |= {name_of(v): f"{prefix}{i}" for i, v in enumerate(variables)}
    names |= {symbol_of(s).name: f"s{i}" for i, s in enumerate(kernel.sizes)}
    indirect = [n for n in kernel.nodes if isinstance(n, Indirect)]
    return names | {symbol_of(n.symbol).name: f"j{i}" for i, n in enumerate(indirect)}
