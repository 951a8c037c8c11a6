"""Splits a reduction with few results and long rows into two kernels, so that it fills the GPU.

Place in the pipeline: an optional step of `target.py` before tiling. A sum of 16M elements to one
scalar would otherwise be one program; column sums of a tall matrix a dozen.

    before:  out[i]         = sum over r < R of value(i, r)
    after:   partial[c, i]  = sum over l < L of value(i, c*L + l)     # rows of C * I programs
             out[i]         = sum over c < C of partial[c, i]         # then what followed the sum

What is stored at inner level is stored by the first kernel (a gradient and its column sums, the
bias's gradient, are one kernel that must not run on twelve multiprocessors). Only kernels whose
reductions, and whose stores at inner level, do not depend on a reduction are split.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, final

from weft.codegen.ir.dtypes import DType
from weft.codegen.ir.loop_ir import (
    Const,
    IndexValue,
    Indirect,
    Kernel,
    KernelBuilder,
    Load,
    LoopVar,
    Node,
    Op,
    Reduce,
    Scalar,
    flat_position,
    number_of_points,
    operands,
    stride,
)
from weft.codegen.ir.visitor import NodeVisitor
from weft.codegen.occupancy import ENOUGH_PROGRAMS, SHORTEST_PIECE
from weft.codegen.triton.tiling import Measure, Tiling
from weft.shapes.algebra.expr import Expr, IntExpr, loop_index, subs

WRITING: Final = 4
"""How many times more programs are needed to fill the GPU if each one computes and stores its whole
row."""
FEWEST_SHORT_PIECES: Final = 3
"""Fewer of the shortest pieces are not worth a second kernel (~2 µs)."""
SHORTEST_TILE: Final = 2048
"""Elements that a program computes at once."""
WORK: Final = 1024
"""Operations for each row that are worth a program of its own..."""
STORE: Final = 8
"""... where a store counts as so many."""
SPLITTABLE: Final = frozenset({"sum", "prod", "max", "min", "any", "all", "argmax", "argmin"})

_INT_BITS: Final[dict[DType, int]] = {"i64": 63, "i32": 31, "i16": 15, "i8": 7}


Partials = dict[str, tuple[DType, IntExpr]]
"""Buffers between the two kernels: name → (dtype, elements)."""


@final
@dataclass(frozen=True)
class Split:
    """`first` fills the partial buffers, `second` combines them."""

    first: Kernel
    second: Kernel
    partials: Partials


def split_reduction(kernel: Kernel, tiling: Tiling) -> Split | None:
    """The two kernels, or None if one is enough or the kernel cannot be split."""
    chunks = choose_chunks(kernel, tiling, lambda extent: extent)
    return None if chunks < 2 else split_in(kernel, chunks)


def choose_chunks(kernel: Kernel, tiling: Tiling, measure: Measure) -> int:
    """The number of pieces to compute each row in; less than two: not split."""
    if not _splittable(kernel):
        return 0
    symbolic = not isinstance(number_of_points(kernel.inner), int)
    points, row = measure(number_of_points(kernel.outer)), measure(number_of_points(kernel.inner))
    if not isinstance(points, int) or not isinstance(row, int):
        return 0
    x_axis = tiling.axis("x")
    width = 1 if x_axis is None else x_axis.block
    programs = -(-points // width)
    stores = any(s.inner for s in kernel.stores)
    target = ENOUGH_PROGRAMS * (WRITING if stores else 1)
    shortest = _shortest_piece(kernel, width)
    chunks = min(-(-2 * target // max(1, programs)), row // shortest)
    if programs >= target or chunks < (2 if shortest == SHORTEST_PIECE else FEWEST_SHORT_PIECES):
        return 0
    if symbolic:
        return 1 << (chunks.bit_length() - 1)  # few specializations for many sizes
    even = _even_chunks(row, chunks)
    return even if 2 * even > chunks else chunks


def _shortest_piece(kernel: Kernel, width: int) -> int:
    """The fewest elements of a row that are worth a program, which computes `width` rows at a time:
    the fewer, the more is done for each."""
    operations = sum(isinstance(n, Op) for n in kernel.nodes)
    work = operations + STORE * sum(s.inner for s in kernel.stores)
    return min(SHORTEST_PIECE, max(SHORTEST_TILE // width, WORK // max(1, work)))


def _even_chunks(row: int, wanted: int) -> int:
    """The largest divisor of `row` that is at most `wanted`: no masks, simpler indices."""
    return next((n for n in range(wanted, 1, -1) if row % n == 0), 1)


def _splittable(kernel: Kernel) -> bool:
    reduces = _reduces(kernel)
    if not reduces or any(s.mode != "assign" for s in kernel.stores):
        return False
    depends: set[int] = set()
    for node in kernel.nodes:
        if any(o.id in depends or isinstance(o, Reduce) for o in operands(node)):
            if isinstance(node, Reduce):
                return False
            depends.add(node.id)
    late = depends | {r.id for r in reduces}
    if any(s.inner and (s.value.id in late or s.indirect) for s in kernel.stores):
        return False
    return all(r.kind in SPLITTABLE for r in reduces)


def split_in(kernel: Kernel, chunks: int, *, even: bool = False) -> Split:
    """The two kernels for rows in so many pieces (fewer if that covers rows of known length).

    even: all pieces have the same length, though that does not follow from the sizes' expressions.
    """
    row = number_of_points(kernel.inner)
    length = row // chunks if even else (row + (chunks - 1)) // chunks
    if isinstance(row, int) and isinstance(length, int):
        chunks = -(-row // length)
    whole = even or chunks * length == row
    first, partials = _of_pieces(kernel, chunks, length, whole)
    return Split(first, _of_rows(kernel, chunks, partials), partials)


def _of_pieces(
    kernel: Kernel, chunks: int, length: IntExpr, whole: bool
) -> tuple[Kernel, Partials]:
    """The kernel that reduces each piece of a row, and computes all that is stored along the
    row; unless the pieces are `whole`, the last one may end early."""
    points, row = number_of_points(kernel.outer), number_of_points(kernel.inner)
    chunk, step = loop_index("c0", chunks), loop_index("l0", length)
    flat = chunk * length + step
    first = KernelBuilder(
        (LoopVar(chunk, chunks), *kernel.outer) if _columns(kernel) else
        (*kernel.outer, LoopVar(chunk, chunks)),
        (LoopVar(step, length),),
    )
    memory = {b.name: b.dtype for b in kernel.buffers}
    copy = _Copy(first, _decode(flat, kernel.inner), memory)
    valid = None if whole else first.op("lt", first.index(flat), _number(first, row))
    position = flat_position(kernel.outer)
    partials: Partials = {}
    for number, reduce in enumerate(_reduces(kernel)):
        value = copy.under(valid, reduce.value)
        if valid is not None:
            identity = first.const(identity_value(reduce.kind, value.dtype), value.dtype)
            value = first.op("where", valid, value, identity)
        results = {f"partial{number}": first.reduce(reduce.kind.removeprefix("arg"), value)}
        if reduce.kind.startswith("arg"):
            place = first.reduce(reduce.kind, value)
            start = first.index(chunk * length)
            results[f"partial{number}_at"] = first.op("add", place, start)
        for name, result in results.items():
            first.store(name, result.dtype, chunk * points + position, result, inner=False)
            partials[name] = (result.dtype, chunks * points)
    for store in kernel.stores:
        if store.inner:
            value = copy.under(valid, store.value)
            first.store(store.buffer, memory[store.buffer], copy.index(store.index), value,
                        inner=True, mask=valid)
    return first.build(f"{kernel.name}_parts", kernel.origins), partials


def _of_rows(kernel: Kernel, chunks: int, partials: Partials) -> Kernel:
    """The kernel that reduces the pieces' results, and computes all that is stored once a row."""
    points = number_of_points(kernel.outer)
    position = flat_position(kernel.outer)
    memory = {b.name: b.dtype for b in kernel.buffers}
    again = loop_index("c1", chunks)
    second = KernelBuilder(kernel.outer, (LoopVar(again, chunks),))
    combine = _Copy(second, {}, memory)
    for number, reduce in enumerate(_reduces(kernel)):
        name = f"partial{number}"
        part = second.load(name, partials[name][0], again * points + position)
        result = second.reduce(reduce.kind, part)
        if reduce.kind.startswith("arg"):  # chunk; position from the first kernel
            best = second.indirect(result, chunks, wrap=False, check=False)
            result = second.load(f"{name}_at", "i64", best * points + position)
        combine.copies[reduce.id] = result
    for store in kernel.stores:
        if store.inner:
            continue
        index = combine.index(store.index, store.indirect)
        value = combine.node(store.value)
        second.store(store.buffer, memory[store.buffer], index, value, inner=False)
    return second.build(f"{kernel.name}_total", kernel.origins)


def _reduces(kernel: Kernel) -> list[Reduce]:
    return [n for n in kernel.nodes if isinstance(n, Reduce)]


def _number(builder: KernelBuilder, value: IntExpr) -> Node:
    return builder.const(value, "i64") if isinstance(value, int) else builder.index(value)


def _columns(kernel: Kernel) -> bool:
    """Whether what varies along the rows is contiguous along the last outer variable (which must
    stay innermost)."""
    if not kernel.outer:
        return False
    last = kernel.outer[-1].symbol
    return any(isinstance(n, Load) and n.inner and stride(n.index, last) == 1
               for n in kernel.nodes)


def _decode(flat: IntExpr, variables: tuple[LoopVar, ...]) -> dict[Expr, IntExpr]:
    """Loop variables as functions of their flat index, the last one fastest."""
    values: dict[Expr, IntExpr] = {}
    for position in range(len(variables) - 1, -1, -1):
        variable = variables[position]
        values[variable.symbol] = flat if position == 0 else flat % variable.extent
        flat = flat // variable.extent
    return values


def identity_value(kind: str, dtype: DType) -> Scalar:
    """The neutral element of a reduction."""
    if kind in ("sum", "any"):
        return 0
    if kind in ("prod", "all"):
        return 1
    lowest = kind.endswith("max")
    if dtype in ("f32", "f64"):
        return float("-inf") if lowest else float("inf")
    if dtype in ("bool", "u8"):
        return 0 if lowest else (1 if dtype == "bool" else 255)
    largest = (1 << _INT_BITS[dtype]) - 1
    return -largest - 1 if lowest else largest


def _outer_operands(node: Node) -> list[Node]:
    """The operands of `node`, direct or not, that do not vary along the row."""
    fixed: dict[int, Node] = {}
    pending = [node]
    while pending:
        for operand in operands(pending.pop()):
            if operand.id not in fixed:
                fixed[operand.id] = operand
                pending += [operand] if operand.inner else []
    return [n for n in fixed.values() if not n.inner]


@final
@dataclass
class _Copy(NodeVisitor[Node]):
    """Copies nodes into another builder, with loop variables replaced."""

    builder: KernelBuilder
    mapping: dict[Expr, IntExpr]
    memory: dict[str, DType]
    copies: dict[int, Node] = field(default_factory=dict)
    symbols: dict[Expr, IntExpr] = field(default_factory=dict)

    def under(self, mask: Node | None, node: Node) -> Node:
        """Copy with every load that varies along the row guarded by `mask`."""
        if mask is None:
            return self.node(node)
        for fixed in _outer_operands(node):
            self.node(fixed)
        with self.builder.masked(mask, 0):
            return self.node(node)

    def node(self, node: Node) -> Node:
        """The copy of `node` (each made once)."""
        copy = self.copies.get(node.id)
        if copy is None:
            copy = self.copies[node.id] = self.visit(node)
        return copy

    def index(self, expr: IntExpr, indirect: tuple[Indirect, ...] = ()) -> IntExpr:
        """An index expression with loop variables and indirect symbols replaced."""
        for node in indirect:
            self.node(node)
        return subs(expr, {**self.mapping, **self.symbols})

    def const(self, node: Const) -> Node:
        return self.builder.const(node.value, node.dtype)

    def index_value(self, node: IndexValue) -> Node:
        return self.builder.index(self.index(node.expr, node.indirect))

    def indirect(self, node: Indirect) -> Node:
        value = self.node(node.value)
        mask = None if node.mask is None else self.node(node.mask)
        size = self.index(node.size)
        if mask is None:
            symbol = self.builder.indirect(value, size, wrap=node.wrap, check=node.check)
        else:
            with self.builder.masked(mask, 0):
                symbol = self.builder.indirect(value, size, wrap=node.wrap, check=node.check)
        self.symbols[node.symbol] = symbol
        return value

    def load(self, node: Load) -> Node:
        memory = self.memory[node.buffer]
        index = self.index(node.index, node.indirect)
        if node.mask is None:
            return self.builder.load(node.buffer, memory, index)
        with self.builder.masked(self.node(node.mask), node.other):
            return self.builder.load(node.buffer, memory, index)

    def op(self, node: Op) -> Node:
        return self.builder.op(node.name, *map(self.node, node.args), dtype=node.dtype)
