"""Spells sizes, indices and shapes for the tile of one Triton program.

Place in the pipeline: the lowest of the writers; `nodes.py` and all above ask it. Loop variables
that lie contiguously in memory become the flat index of their axis, which Triton knows to be
contiguous::

    768*i0 + r0      →      b0 + (768*xindex + rindex)
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import final

from weft.codegen.ir.loop_ir import (
    IndexValue,
    Kernel,
    Load,
    LoopVar,
    Node,
    Reduce,
    operands,
)
from weft.codegen.triton.multiples import power_of_two, quotients
from weft.codegen.triton.tiling import Axis, Tiling
from weft.shapes.algebra.expr import Expr, IntExpr, subs, symbol
from weft.shapes.algebra.printing import fits_int32, triton_text


@final
class IndexWriter:
    """Knows along which axes of the tile expressions and nodes vary.

    narrow: whether sizes and indices fit in 32 bits (None: decided by their bounds); powers: names
    of sizes, and the powers of two that divide them.
    """

    def __init__(
        self, kernel: Kernel, tiling: Tiling, narrow: bool | None, powers: Mapping[str, int]
    ) -> None:
        self.kernel, self.tiling = kernel, tiling
        self.narrow = _is_narrow(kernel, tiling) if narrow is None else narrow
        self.multiples = quotients(kernel, powers)
        self.pointers = {b.name: f"b{i}" for i, b in enumerate(kernel.buffers)}
        self.memory = {b.name: b.dtype for b in kernel.buffers}
        self._powers = powers
        self._axis_of = {str(v.symbol): axis.name for axis in tiling.axes for v in axis.variables}
        self._node_axes: dict[int, frozenset[str]] = {}
        for node in kernel.nodes:
            self._node_axes[node.id] = self._axes(node)

    # -- text ----------------------------------------------------------------------------------

    def text(self, value: IntExpr) -> str:
        """A size, or an expression of sizes and loop variables."""
        return triton_text(subs(value, self.multiples))

    def factor(self, value: IntExpr) -> str:
        """The same as an operand of a product or quotient."""
        return str(value) if isinstance(value, int) else f"({self.text(value)})"

    def index(self, index: IntExpr) -> str:
        """The flat position of elements in memory."""
        return triton_text(self.flat(index))

    def flat(self, index: IntExpr) -> IntExpr:
        """An index in which flat indices of axes stand for contiguous loop variables."""
        for axis in self.tiling.axes:
            index = _flatten_index(index, axis)
        return subs(index, self.multiples)

    def spread(self, index: IntExpr, axes: Collection[str]) -> str:
        """An index as a tile (Triton cannot broadcast a literal)."""
        shape, text = self.shape(axes), self.index(index)
        if isinstance(self.flat(index), int):
            return f"tl.full({shape}, {text}, tl.int64)"
        return f"tl.broadcast_to({text}, {shape})"

    def shape(self, axes: Collection[str], size: int | None = None) -> str:
        """A shape that has the axes' blocks, or `size`, along `axes`, and 1 elsewhere."""
        sizes = [(size or a.block) if a.name in axes else 1 for a in self.tiling.axes]
        return f"[{', '.join(map(str, sizes))}]"

    def whole_shape(self) -> str:
        """The shape of the tile."""
        return self.shape([a.name for a in self.tiling.axes])

    # -- facts ---------------------------------------------------------------------------------

    def axes(self, node: Node) -> frozenset[str]:
        """The tile axes along which a node varies."""
        return self._node_axes[node.id]

    def index_axes(self, load: Load) -> frozenset[str]:
        """Those along which the place of a load varies."""
        return self._expr_axes(load.index).union(*map(self.axes, load.indirect))

    def level_axes(self, *, inner: bool) -> frozenset[str]:
        """Those of the points of a level."""
        return frozenset(a.name for a in self.tiling.axes if inner or a.name != "r")

    def run_length(self, variables: tuple[LoopVar, ...]) -> int:
        """The number of neighbours that differ in the fastest variable only. Triton would see it in
        a division (not in a product with a reciprocal), and needs it to load whole vectors."""
        return power_of_two(variables[-1].extent, self._powers) if variables else 1

    def _expr_axes(self, expr: IntExpr) -> frozenset[str]:
        if isinstance(expr, int):
            return frozenset()
        axes = (self._axis_of.get(str(s)) for s in expr.symbols)
        return frozenset(a for a in axes if a is not None)

    def _axes(self, node: Node) -> frozenset[str]:
        if isinstance(node, Reduce):
            return self.level_axes(inner=False)
        axes = frozenset[str]().union(*map(self.axes, operands(node)))
        if isinstance(node, Load):
            return axes | self._expr_axes(node.index)
        return axes | self._expr_axes(node.expr) if isinstance(node, IndexValue) else axes


def _is_narrow(kernel: Kernel, tiling: Tiling) -> bool:
    """Whether all indices fit in 32 bits."""
    indices = [n.index for n in kernel.nodes if isinstance(n, Load)]
    indices += [s.index for s in kernel.stores]
    indices += [a.extent + a.block for a in tiling.axes]
    return all(fits_int32(i) for i in indices)


def _flatten_index(index: IntExpr, axis: Axis) -> IntExpr:
    """`i0*n + i1 + rest` as `xindex + rest`, where n is the extent of i1."""
    if isinstance(index, int) or len(axis.variables) < 2:
        return index
    last = index.coeff(axis.variables[-1].symbol)
    if last is None or last == 0:
        return index
    rest: Expr | int = index
    step = last
    for variable in reversed(axis.variables):
        if index.coeff(variable.symbol) != step:
            return index
        rest = rest - step * variable.symbol
        step = step * variable.extent
    flat = symbol(f"{axis.name}index", 0, axis.extent - 1, "loop")
    return rest + last * flat
