"""Prints row buffers: expensive inner values, kept by one loop nest for the next ones.

Place in the pipeline: beside `nodes.py`; `plan.py` decides which values are kept, `loop_nests.py`
writes and reads them::

    alignas(64) float row1[768];
    … store(row1 + (r0), v1, n); …          // nest 1
    … const auto v1 = load<L, P>(row1 + (r0), n); …
"""

from __future__ import annotations

from math import prod
from typing import final

from weft.codegen.cpp.nodes import NodeWriter
from weft.codegen.cpp.spelling import C_TYPE
from weft.codegen.ir.loop_ir import Node, flat_position


@final
class RowBufferWriter:
    """Prints the row buffers of one function."""

    def __init__(self, nodes: NodeWriter) -> None:
        self.nodes, self.plan = nodes, nodes.plan

    def declare(self, node: Node) -> None:
        """The buffer of a node's values along a row."""
        extents = [v.extent for v in self.plan.kernel.inner if isinstance(v.extent, int)]
        points = self.plan.row_capacity or max(1, prod(extents))
        length = points * (1 if self._by_points() else self.plan.step)
        self.nodes.text.line(f"alignas(64) {C_TYPE[node.dtype]} row{node.id}[{length}];")

    def write(self, node: Node) -> None:
        """Keep the node's value, or vector of values."""
        place = self._place(node)
        if not self.plan.varies(node) and self.plan.vector is None:
            self.nodes.text.line(f"store1({place}, {self.nodes.use(node)});")
        else:
            self.nodes.text.line(f"store({place}, {self.nodes.wide(node)}, {self._count()});")

    def read(self, node: Node) -> None:
        """Define the node as what was kept."""
        place = self._place(node)
        if self.plan.vector is not None and self.plan.varies(node):
            self.nodes.define(node, f"load<L, P>({place}, {self._count()})")
        else:  # one element, or the same one in all lanes
            self.nodes.define(node, f"load1({place})")

    def _by_points(self) -> bool:
        """Whether a row buffer holds one element per inner point (and not a vector of lanes)."""
        return self.plan.vector_inner or self.plan.vector is None

    def _place(self, node: Node) -> str:
        """The address of the present point's element, in the order of the loops as printed."""
        plan = self.plan
        order = [*plan.loops, *([plan.vector] if plan.vector_inner and plan.vector else [])]
        position = self.nodes.indices.index(flat_position(order))
        return f"row{node.id} + ({position if self._by_points() else f'({position}) * S'})"

    def _count(self) -> str:
        return "n" if self.plan.vector_inner else "Full{}"
