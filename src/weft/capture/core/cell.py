"""Cells: variables that a function shares with the functions defined inside it.

Place in the pipeline: held by frames and function values; on the stack only for `LOAD_CLOSURE`.
"""

from __future__ import annotations

import operator
import types
from typing import TYPE_CHECKING, Any, final

from weft.capture.core.base import MISSING, LazyValue, SymbolicValue
from weft.capture.core.operator_names import COMPARISONS
from weft.capture.core.registry import wraps
from weft.capture.core.source import Source

if TYPE_CHECKING:
    from weft.capture.core.protocols import Emitter, Interpreter


@final
class CellValue(SymbolicValue):
    """A cell; `contents` is None while the variable is unbound."""

    __slots__ = ("cell", "contents")
    kind = types.CellType

    def __init__(self, contents: SymbolicValue | None, source: Source | None = None,
                 cell: Any = MISSING) -> None:
        super().__init__(source)
        self.contents = contents
        self.cell = cell

    @staticmethod
    def outside(tx: Interpreter, cell: Any, source: Source, name: str) -> CellValue:
        """The value of an existing cell."""
        known = tx.outside.value_of(cell)
        if known is not None:
            assert isinstance(known, CellValue)
            return known
        try:
            contents: SymbolicValue | None = LazyValue(
                _contents_of(source, name), cell.cell_contents)
        except ValueError:
            contents = None
        value = CellValue(contents, source, cell)
        tx.outside.remember(cell, value)
        return value

    def real(self) -> Any:
        return self.cell

    def read(self, tx: Interpreter) -> SymbolicValue | None:
        """The contents, guarded; None if unbound."""
        if self.contents is not None and self.contents.__class__ is LazyValue:
            self.contents = tx.force(self.contents)
        if self.source is not None and tx.guards.noted is not None:
            tx.guards.note(_contents_of(self.source, self.source.name))
        return self.contents

    def write(self, tx: Interpreter, value: SymbolicValue | None) -> None:
        """Bind the variable, or unbind it with None."""
        self.contents = value
        if self.source is not None:
            tx.effects.touch(self)

    def replay(self, emit: Emitter) -> None:
        """Write the final contents to the real cell."""
        target = emit.value(self)
        if self.contents is None:
            emit.line(f"del {target}.cell_contents")
        else:
            emit.line(f"{target}.cell_contents = {emit.value(self.contents)}")

    def rebuild(self, emit: Emitter) -> str:
        name = emit.bind(self, f"{emit.constant(types.CellType)}()")
        emit.later(lambda: self._fill(emit, name))
        return name

    def _fill(self, emit: Emitter, name: str) -> None:
        if self.contents is not None:
            emit.line(f"{name}.cell_contents = {emit.value(self.contents)}")

    def binary(self, tx: Interpreter, op: str, other: SymbolicValue, reflected: bool) -> Any:
        if reflected or op not in COMPARISONS or not isinstance(
                other, CellValue):
            return None
        mine, theirs = self.read(tx), other.read(tx)
        if mine is None or theirs is None:
            compare = getattr(operator, op)
            return tx.wrap_new(compare(mine is not None, theirs is not None))
        return tx.binary(op, mine, theirs)

    def getattr(self, tx: Interpreter, name: str) -> SymbolicValue:
        if name != "cell_contents":
            return super().getattr(tx, name)
        contents = self.read(tx)
        if contents is None:
            raise tx.error(ValueError, "Cell is empty")
        return contents


def _contents_of(cell: Source, name: str) -> Source:
    return cell.child(("attr", "cell_contents"), "contents", name)


@wraps(types.CellType)
def _wrap_cell(tx: Interpreter, obj: object, source: Source | None) -> SymbolicValue:
    assert source is not None
    tx.guards.add(source, "type_is", types.CellType)
    return CellValue.outside(tx, obj, source, source.name)
