"""Writes stores as Triton statements.

Place in the pipeline: beside `nodes.py`, whose values it stores::

    tl.store(b1 + tl.broadcast_to(xindex, [1024]), tl.broadcast_to(v3, [1024]), xmask)
"""

from __future__ import annotations

from typing import final

from weft.codegen.ir.dtypes import compute_type
from weft.codegen.ir.loop_ir import Store
from weft.codegen.triton.nodes import NodeWriter
from weft.codegen.triton.spelling import TYPE


@final
class StoreWriter:
    """Writes the stores of one kernel."""

    def __init__(self, nodes: NodeWriter) -> None:
        self.nodes, self.indices, self.text = nodes, nodes.indices, nodes.text

    def write(self, store: Store) -> None:
        """Store a tile, in the type of its memory; rounded if that is another one."""
        axes = self.indices.level_axes(inner=store.inner)
        index = self.indices.spread(store.index, axes)
        value = f"tl.broadcast_to({self.nodes.use(store.value)}, {self.indices.shape(axes)})"
        memory = self.indices.memory[store.buffer]
        if compute_type(memory) != memory:
            value = f"{value}.to({TYPE[memory]})"
        masks = self.nodes.masks(axes, store.mask)
        mask = f", {' & '.join(masks)}" if masks else ""
        function = "tl.atomic_add" if store.mode == "add" else "tl.store"
        pointer = self.indices.pointers[store.buffer]
        self.text.line(f"{function}({pointer} + {index}, {value}{mask})")
