"""Writes reductions as Triton statements: of a tile that holds whole rows, or of a loop over them.

Place in the pipeline: beside `nodes.py`; `emit.py` chooses between the two::

    v1 = tl.reduce(tl.where(rmask, v0, float('-inf')), 1, p.nan_max, keep_dims=True)
"""

from __future__ import annotations

from typing import Final, final

from weft.codegen.ir.dtypes import DType
from weft.codegen.ir.loop_ir import Reduce
from weft.codegen.triton.nodes import NodeWriter
from weft.codegen.triton.spelling import TYPE, spell_literal
from weft.codegen.triton.split_reductions import identity_value
from weft.codegen.triton.tiling import Axis

_PICK: Final = {"argmax": "p.pick_max", "argmin": "p.pick_min"}
"""Positions are reduced together with their values, by functions of the prelude."""

_NO_POSITION: Final = 2**62

_COMBINE_ELEMENTWISE: Final = {
    "sum": "{0} + {1}",
    "prod": "{0} * {1}",
    "max": "p.nan_max({0}, {1})",
    "min": "p.nan_min({0}, {1})",
    "any": "{0} | {1}",
    "all": "{0} & {1}",
}


@final
class ReductionWriter:
    """Writes the reductions of one kernel; `row` is the axis along which they reduce."""

    def __init__(self, nodes: NodeWriter, row: Axis) -> None:
        self.nodes, self.text, self.row = nodes, nodes.text, row
        self._shape = nodes.indices.whole_shape()

    # -- of one tile ---------------------------------------------------------------------------

    def write(self, node: Reduce) -> None:
        """A reduction over one tile that holds the whole row."""
        value = f"tl.broadcast_to({self.nodes.use(node.value)}, {self._shape})"
        if node.kind in _PICK:
            position = self._position()
            if self.row.needs_mask:
                value = f"tl.where(rmask, {value}, {self._identity(node)})"
                position = f"tl.where(rmask, {position}, {_NO_POSITION})"
            self.nodes.define(node, _picked(node.kind, value, position))
            return
        if self.row.needs_mask:
            value = f"tl.where(rmask, {value}, {self._identity(node)})"
        self.nodes.define(node, _combine(node.kind, value, node.dtype))

    # -- of a loop over tiles ------------------------------------------------------------------

    def begin(self, node: Reduce) -> None:
        """An accumulator of no elements, before the loop."""
        identity, kind = self._identity(node), TYPE[node.value.dtype]
        self.text.line(f"a{node.id} = tl.full({self._shape}, {identity}, {kind})")
        if node.kind in _PICK:
            self.text.line(f"a{node.id}_at = tl.full({self._shape}, {_NO_POSITION}, tl.int64)")

    def accumulate(self, node: Reduce) -> None:
        """Add a tile to the accumulator, element by element."""
        if node.kind in _PICK:
            self._accumulate_position(node)
            return
        name = f"a{node.id}"
        updated = _COMBINE_ELEMENTWISE[node.kind].format(name, self.nodes.use(node.value))
        if self.row.needs_mask:
            updated = f"tl.where(rmask, {updated}, {name})"
        self.text.line(f"{name} = {updated}")

    def _accumulate_position(self, node: Reduce) -> None:
        name = f"a{node.id}"
        value = f"tl.broadcast_to({self.nodes.use(node.value)}, {self._shape})"
        picked = f"{_PICK[node.kind]}({name}, {name}_at, {value}, {self._position()})"
        self.text.line(f"b, b_at = {picked}")
        if self.row.needs_mask:
            self.text.line(f"b = tl.where(rmask, b, {name})")
            self.text.line(f"b_at = tl.where(rmask, b_at, {name}_at)")
        self.text.line(f"{name} = b")
        self.text.line(f"{name}_at = b_at")

    def finish(self, node: Reduce) -> None:
        """Define the value, behind the loop."""
        name = f"a{node.id}"
        if node.kind in _PICK:
            self.nodes.define(node, _picked(node.kind, name, f"{name}_at"))
        else:
            self.nodes.define(node, _combine(node.kind, name, node.dtype))

    def _position(self) -> str:
        return f"tl.broadcast_to(rindex.to(tl.int64), {self._shape})"

    def _identity(self, node: Reduce) -> str:
        """The neutral element, as Triton text."""
        return spell_literal(identity_value(node.kind, node.value.dtype))


def _picked(kind: str, value: str, position: str) -> str:
    """The position of the largest or smallest value of each row."""
    return f"tl.reduce(({value}, {position}), 1, {_PICK[kind]}, keep_dims=True)[1]"


def _combine(kind: str, value: str, dtype: DType) -> str:
    """Reduce a tile along its last dimension, keeping it as size one."""
    if kind == "sum":
        return f"tl.sum({value}, 1, keep_dims=True).to({TYPE[dtype]})"
    if kind == "prod":
        return f"tl.reduce({value}, 1, p.multiply, keep_dims=True)"
    if kind == "any":
        return f"tl.max({value}.to(tl.int32), 1, keep_dims=True) != 0"
    if kind == "all":
        return f"tl.min({value}.to(tl.int32), 1, keep_dims=True) != 0"
    if dtype == "bool":
        return f"tl.{kind}({value}.to(tl.int32), 1, keep_dims=True) != 0"
    if dtype in ("f32", "f64"):
        return f"tl.reduce({value}, 1, p.nan_{kind}, keep_dims=True)"
    return f"tl.{kind}({value}, 1, keep_dims=True).to({TYPE[dtype]})"
