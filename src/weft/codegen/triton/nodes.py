"""Writes scalar nodes as Triton statements on tiles: loads, operators, indices.

Place in the pipeline: above `indices.py`; `emit.py` puts the loop over a row around it. A node
becomes one line, `v3 = v1 + v2`, a tile of the axes along which it varies.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Final, final

from weft.codegen.ir.dtypes import HALF_TYPES
from weft.codegen.ir.loop_ir import Const, IndexValue, Indirect, Load, Node, Op
from weft.codegen.ir.visitor import NodeVisitor
from weft.codegen.source_text import SourceText
from weft.codegen.triton.indices import IndexWriter
from weft.codegen.triton.spelling import spell_cast, spell_const, spell_literal, spell_op

_INT_LIMITS: Final = {"i64": 63, "i32": 31, "i16": 15, "i8": 7}


@final
class NodeWriter(NodeVisitor[str]):
    """Writes the nodes of one kernel; knows the names of those that are defined."""

    def __init__(self, indices: IndexWriter, text: SourceText) -> None:
        self.indices, self.text = indices, text
        self._names: dict[int, str] = {}
        self._rank = len(indices.tiling.axes)
        self._eviction = ""

    def write(self, node: Node) -> None:
        """Define a node, and check it if it is an index from memory."""
        value = self.visit(node)
        name = str(node.symbol) if isinstance(node, Indirect) else f"v{node.id}"
        self.define(node, value, name)
        if isinstance(node, Indirect) and node.check:
            self._check(node)

    def define(self, node: Node, value: str, name: str = "") -> None:
        """Write the definition of a node."""
        self._names[node.id] = name = name or f"v{node.id}"
        self.text.line(f"{name} = {value}")

    def use(self, node: Node) -> str:
        """The name of a node that is defined."""
        return self._names[node.id]

    def masks(self, axes: Collection[str], mask: Node | None) -> list[str]:
        """What hides the points of a tile that do not exist, and those of `mask`."""
        masks = [f"{a.name}mask" for a in self.indices.tiling.axes
                 if a.name in axes and a.needs_mask]
        return masks if mask is None else [*masks, self.use(mask)]

    @contextmanager
    def row_loop(self, head: str, eviction: str) -> Iterator[None]:
        """A loop over a row; what is defined in it is not defined afterwards.

        eviction: a cache hint of loads; rows that are read again should stay in the L2 cache.
        """
        defined, self._eviction = dict(self._names), eviction
        with self.text.block(head):
            yield
        self._names, self._eviction = defined, ""

    # -- definitions ---------------------------------------------------------------------------

    def const(self, node: Const) -> str:
        """A tile of one element."""
        return spell_const(node.value, node.dtype, self._rank)

    def index_value(self, node: IndexValue) -> str:
        """The value of an index expression."""
        value = self.indices.flat(node.expr)
        if isinstance(value, int):
            return spell_const(value, "i64", self._rank)
        return f"({self.indices.text(value)}).to(tl.int64)"

    def indirect(self, node: Indirect) -> str:
        """An index from memory; negative ones count from the end."""
        value = self.use(node.value)
        if not node.wrap:
            return f"{value}.to(tl.int64)"
        size = self.indices.text(node.size)
        return f"tl.where({value} < 0, {value} + {size}, {value}).to(tl.int64)"

    def _check(self, node: Indirect) -> None:
        """An index out of range ends the kernel with a device-side assertion, as in eager."""
        name = self.use(node)
        valid = f"(({name} >= 0) & ({name} < {self.indices.text(node.size)}))"
        for mask in self.masks(self.indices.axes(node), node.mask):
            valid = f"({valid} | ({mask} == 0))"
        self.text.line(f'tl.device_assert({valid}, "index out of range in self")')

    def load(self, node: Load) -> str:
        """A tile of elements in their compute type."""
        indices, axes = self.indices, self.indices.axes(node)
        masks = self.masks(axes, node.mask)
        spread = masks and (node.mask is not None or not indices.index_axes(node))
        index = indices.spread(node.index, axes) if spread else indices.index(node.index)
        text = f"tl.load({indices.pointers[node.buffer]} + ({index})"
        if masks:
            text += f", {' & '.join(masks)}, other={spell_literal(node.other)}"
        if self._eviction and node.inner:
            text += f", eviction_policy='{self._eviction}'"
        text += ")"
        is_half = indices.memory[node.buffer] in HALF_TYPES
        return f"{text}.to(tl.float32)" if is_half else text

    def op(self, node: Op) -> str:
        """An operator on tiles."""
        args = [self.use(a) for a in node.args]
        if node.name == "cast":
            return spell_cast(args[0], node.args[0].dtype, node.dtype)
        if node.name in ("shl", "shr"):
            return _shift(node, *args)
        return spell_op(node.name, node.args[-1].dtype, args)


def _shift(node: Op, value: str, count: str) -> str:
    """A shift by any count: eager's shifts by too many bits have a result."""
    bits = _INT_LIMITS.get(node.dtype, 7) + 1
    inside = f"(({count} >= 0) & ({count} < {bits}))"
    if node.name == "shl":
        return f"tl.where({inside}, {value} << tl.where({inside}, {count}, 0), 0)"
    last = f"tl.where({value} < 0, -1, 0).to({value}.dtype)" if node.dtype != "u8" else "0"
    return f"tl.where({inside}, {value} >> tl.where({inside}, {count}, 0), {last})"
