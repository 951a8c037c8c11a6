"""Ranges with symbolic bounds: a guard fixes their length, not the bounds.

Place in the pipeline: beside the sequences; the constructor `range` makes them::

    for start in range(0, x.shape[1], 4):       # guard: (s1 + 3) // 4 == 5
        part = x[:, start : start + 4]
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import torch

from weft.capture.core.base import SymbolicValue
from weft.capture.core.constant import constant, evaluate
from weft.capture.core.methods import MethodTable
from weft.capture.library.containers.sequences import SliceValue, TupleValue
from weft.capture.library.numbers.symbolic_numbers import SymbolicNumberValue, operand

if TYPE_CHECKING:
    from weft.capture.core.protocols import Emitter, Interpreter


def symbolic_range(tx: Interpreter, bounds: list[SymbolicValue]) -> SymbolicRangeValue | None:
    """The range if its items depend on more than its length; None for other bounds."""
    start, stop, step = _three(bounds)
    numbers = [operand(bound) for bound in (start, stop, step)]
    if not any(isinstance(n, torch.SymInt) for n in numbers):
        return None
    if not all(type(n) is int or (isinstance(n, torch.SymInt) and n.node.has_hint())
               for n in numbers):
        return None
    counted = type(numbers[0]) is int and type(numbers[2]) is int and numbers[2] == 1
    if counted or numbers[2] == 0:
        return None
    items = evaluate(tx, lambda: _items(*numbers))
    return SymbolicRangeValue((start, stop, step), TupleValue(list(map(tx.wrap_new, items))))


def _three(bounds: list[SymbolicValue]) -> tuple[SymbolicValue, ...]:
    if len(bounds) == 1:
        return constant(0), bounds[0], constant(1)
    return bounds[0], bounds[1], bounds[2] if len(bounds) > 2 else constant(1)


def _items(start: Any, stop: Any, step: Any) -> list[object]:
    span, size = (stop - start, step) if step > 0 else (start - stop, -step)
    count = int((span + size - 1) // size) if span > 0 else 0
    return [start + i * step for i in range(count)]


@final
class SymbolicRangeValue(MethodTable):
    """A range with symbolic bounds and a plain length."""

    __slots__ = ("bounds", "items")
    kind = range

    def __init__(self, bounds: tuple[SymbolicValue, ...], items: TupleValue) -> None:
        super().__init__()
        self.bounds = bounds
        self.items = items

    def copied(self, tx: Interpreter) -> Any:
        """The plain range of this call, for Python code that works on constants."""
        return evaluate(tx, lambda: range(*(bound.constant() for bound in self.bounds)))

    def truth(self, tx: Interpreter) -> bool:
        return bool(self.items.items)

    def length(self, tx: Interpreter) -> int:
        return len(self.items.items)

    def getattr(self, tx: Interpreter, name: str) -> SymbolicValue:
        if name in ("start", "stop", "step"):
            return self.bounds[("start", "stop", "step").index(name)]
        return super().getattr(tx, name)

    def getitem(self, tx: Interpreter, key: SymbolicValue) -> SymbolicValue:
        if isinstance(key, SliceValue):
            return tx.wrap_new(self.copied(tx)).getitem(tx, key)
        return self.items.getitem(tx, key)

    def contains(self, tx: Interpreter, item: SymbolicValue) -> bool:
        if isinstance(item, SymbolicNumberValue) or item.is_constant:
            return evaluate(tx, lambda: item.constant() in self.copied(tx))
        return super().contains(tx, item)

    def iter(self, tx: Interpreter) -> SymbolicValue:
        return self.items.iter(tx)

    def rebuild(self, emit: Emitter) -> str:
        return f"range({', '.join(emit.value(bound) for bound in self.bounds)})"
