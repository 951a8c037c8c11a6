"""Writes the beginning of a kernel: from the number of a program to the loop variables of its tile.

Place in the pipeline: below `emit.py`, which writes what is computed for the tile::

    pid = tl.program_id(0)
    xindex = pid * 1024 + tl.arange(0, 1024)
    xmask = xindex < 5000
    i1 = xindex % 50
    i0 = xindex // 50
"""

from __future__ import annotations

from typing import final

from weft.codegen.ir.loop_ir import LoopVar, number_of_points
from weft.codegen.source_text import SourceText
from weft.codegen.triton.indices import IndexWriter
from weft.codegen.triton.spelling import spell_quotient
from weft.codegen.triton.tiling import Axis
from weft.shapes.algebra.expr import Expr, IntExpr


@final
class ProgramWriter:
    """Defines loop variables and masks; collects the `divisors` that need reciprocals."""

    def __init__(self, indices: IndexWriter, text: SourceText) -> None:
        self.indices, self.tiling, self.text = indices, indices.tiling, text
        self.divisors: list[Expr] = []

    def write(self) -> IntExpr:
        """Program id to tile coordinates to loop variables; returns the number of programs."""
        indices, tiling = self.indices, self.tiling
        wide = "" if indices.narrow else ".to(tl.int64)"
        for size, multiple in indices.multiples.items():
            (part,) = multiple.symbols
            self.text.line(f"{part} = {size} // {multiple.coeff(part)}")
        self.text.line(f"pid = tl.program_id(0){wide}")
        programs: IntExpr = 1
        tiled = [a for a in reversed(tiling.axes) if a.name != "r"]
        single = len(tiled) == 1 and not tiling.z_variables
        for axis in tiled:
            blocks = (axis.extent + (axis.block - 1)) // axis.block
            tile = "pid" if single else f"(pid % {indices.factor(blocks)})"
            start = tile if axis.block == 1 else f"{tile} * {axis.block}"
            self.axis(axis, start)
            if not single:
                self.text.line(f"pid = pid // {indices.factor(blocks)}")
            programs = programs * blocks
        self._decode("pid", tiling.z_variables)
        programs = programs * number_of_points(tiling.z_variables)
        row = tiling.axis("r")
        if row is not None and tiling.persistent:
            self.axis(row)
        return programs

    def axis(self, axis: Axis, start: str = "") -> None:
        """Define the flat index of an axis from where the tile starts, its mask and its loop
        variables."""
        index = f"{axis.name}index"
        self.text.line(f"{index} = {f'{start} + ' if start else ''}{self._range(axis)}")
        if axis.needs_mask:
            self.text.line(f"{axis.name}mask = {index} < {self.indices.text(axis.extent)}")
        self._decode(index, axis.variables, axis)

    def reciprocals(self) -> list[str]:
        """The parameters for divisions: two for each divisor."""
        return [f"d{i}{part}" for i in range(len(self.divisors)) for part in ("", "_shift")]

    def _range(self, axis: Axis) -> str:
        text = f"tl.arange(0, {axis.block})"
        if len(self.tiling.axes) == 1:
            return text
        return text + ("[:, None]" if axis is self.tiling.axes[0] else "[None, :]")

    def _decode(
        self, flat: str, variables: tuple[LoopVar, ...], axis: Axis | None = None
    ) -> None:
        """Split a flat index (of a tile's axis, or one number) into its loop variables, the last
        one fastest."""
        indices = self.indices
        run = 1 if axis is None else min(axis.block, indices.run_length(variables))
        for variable in reversed(variables[1:]):
            extent, rest = indices.factor(variable.extent), f"{flat}_"
            if isinstance(variable.extent, int) or axis is None or not indices.narrow:
                self.text.line(f"{variable.symbol} = {flat} % {extent}")
                self.text.line(f"{rest} = {flat} // {extent}")
            else:
                quotient = spell_quotient(flat, self._divisor(variable.extent))
                if run > 1:
                    shape = indices.shape({axis.name}, run)
                    quotient = f"tl.max_constancy({quotient}, {shape})"
                self.text.line(f"{rest} = ({quotient}).to(tl.int32)")
                self.text.line(f"{variable.symbol} = {flat} - {rest} * {extent}")
            flat = rest
        if variables:
            self.text.line(f"{variables[0].symbol} = {flat}")

    def _divisor(self, value: Expr) -> str:
        """The name of the parameters for a division by `value`."""
        if value not in self.divisors:
            self.divisors.append(value)
        return f"d{self.divisors.index(value)}"
