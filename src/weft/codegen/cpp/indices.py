"""Names in a C++ function, and index expressions spelled with them.

Place in the pipeline: the lowest of the writers; `nodes.py` and all above ask it. Names are
canonical - loop variables i0, r0, sizes s0, buffers b0, indices from memory j0, by position -, so
that equal kernels are equal texts::

    768*i0 + j0      →      b0 + (768*i0+j0.at[0])
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from math import inf, prod
from typing import Final, final

from weft.codegen.cpp.plan import Plan
from weft.codegen.cpp.spelling import C_TYPE
from weft.codegen.cpp.tiles import Tile
from weft.codegen.ir.loop_ir import Indirect, Kernel, Load, LoopVar, Store, stride
from weft.codegen.source_text import SourceText
from weft.shapes.algebra.atoms import Atom, FloorDiv, Mod, Symbol
from weft.shapes.algebra.bounds import lower_bound, upper_bound
from weft.shapes.algebra.expr import Expr, IntExpr, split_linear, symbol_of, symbols
from weft.shapes.algebra.expr import operands as operands_of
from weft.shapes.algebra.printing import c_text

MOST_STEP: Final = 2**24
"""Elements between lanes, up to which their places fit in 32 bits."""
MOST_IN_FLOAT: Final = 2**22
"""Integers below it are divided exactly in float (`include/indices.h`)."""


@final
class IndexWriter:
    """Spells the index expressions of one function, and declares what they are made of."""

    def __init__(self, plan: Plan, text: SourceText) -> None:
        self.plan, self.text = plan, text
        self.names = _canonical_names(plan.kernel)
        self.buffers = {b.name: f"b{i}" for i, b in enumerate(plan.kernel.buffers)}
        self.memory = {b.name: C_TYPE[b.dtype] for b in plan.kernel.buffers}
        self.vector_name = self.names[name_of(plan.vector)] if plan.vector else ""
        self._sizes = frozenset(plan.kernel.sizes)
        self._size_parts: dict[str, str] = {}  # text of an index's part -> its name
        self._head = 0  # the line of the function where these names are defined

    # -- declarations --------------------------------------------------------------------------

    def declare_buffers(self) -> None:
        """The buffers of the call."""
        for i, buffer in enumerate(self.plan.kernel.buffers):
            const = "const " if buffer.mode == "in" else ""
            kind = f"{const}{C_TYPE[buffer.dtype]}*"
            self.text.line(f"[[maybe_unused]] {kind} const b{i} = ({kind})a.buffers[{i}];")

    def declare_sizes(self, source: str) -> None:
        """The sizes of the call, and a place for values computed from them."""
        for i in range(len(self.plan.kernel.sizes)):
            self.text.line(f"[[maybe_unused]] const int64_t s{i} = {source}[{i}];")
        self._head = len(self.text.lines)

    def _size_part(self, atom: Atom, text: str) -> str:
        """The name of a part of an index that depends on sizes alone: computed once, before the
        loops (compilers move products there, but neither divisions nor minima)."""
        if not _known_ahead(atom, self._sizes):
            return text
        if text not in self._size_parts:
            name = self._size_parts[text] = f"h{len(self._size_parts)}"
            self.text.lines.insert(self._head, f"  const int64_t {name} = {text};")
            self._head += 1
        return self._size_parts[text]

    # -- one index -----------------------------------------------------------------------------

    def index(self, expr: IntExpr, indirect: Iterable[Indirect] = ()) -> str:
        """An index expression at the current point (lane 0)."""
        return c_text(expr, self.names | self._indirect_names(indirect, "0"), self._size_part)

    def address(self, access: Load | Store) -> str:
        """Where the element of the current point (lane 0) is."""
        at = self.index(access.index, access.indirect)
        return f"{self.buffers[access.buffer]} + ({at})"

    def corner(self, access: Load | Store, tile: Tile) -> str:
        """Where the first element of a tile is, in the tensor."""
        assert self.plan.vector is not None
        corner = {name_of(tile.rows): "row_begin", name_of(self.plan.vector): "column_begin"}
        at = c_text(access.index, self.names | corner)
        return f"{self.buffers[access.buffer]} + ({at})"

    def within_tile(self, tile: Tile) -> str:
        """The current vector's position in a tile."""
        row = self.names[name_of(tile.rows)]
        return f"({row} - row_begin) * {tile.width} + {self.vector_name} - column_begin"

    def _indirect_names(self, indirect: Iterable[Indirect], lane: str) -> dict[str, str]:
        elements = {}
        for node in indirect:
            name = symbol_of(node.symbol).name
            elements[name] = f"{self.names[name]}.at[{lane if self.plan.varies(node) else '0'}]"
        return elements

    # -- the indices of all lanes --------------------------------------------------------------

    def step(self, index: IntExpr, indirect: Sequence[Indirect]) -> IntExpr | None:
        """The distance of elements between lanes; None if they must be gathered one by one."""
        if self.plan.vector is None or any(self.plan.varies(i) for i in indirect):
            return None
        return stride(index, self.plan.vector.symbol)

    def per_lane(self, expr: IntExpr, indirect: Iterable[Indirect], buffer: str = "") -> str:
        """A C++ function of the lane number that gives the index, or the address in `buffer`."""
        names = self.names | self._indirect_names(indirect, "lane_")
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
        names = self.names | self._indirect_names(indirect, "0")
        text = c_text(expr, names | {name_of(self.plan.vector): name})
        lanes = f"places<{real}, L, P>({self.vector_name})"
        return f"[&](auto {name}) LAMBDA {{ return ({text}).at; }}({lanes})"

    def start_and_offsets(
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


def name_of(variable: LoopVar | None) -> str:
    """The name of a loop variable's symbol."""
    assert variable is not None
    return symbol_of(variable.symbol).name


def _wide_int(number: int) -> str:
    return f"splat<L, P>(scalar<int64_t>({number}))"


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
