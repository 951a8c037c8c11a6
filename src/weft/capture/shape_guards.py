"""The guards on symbolic sizes and numbers of one capture, as one check over the collected values.

Place in the pipeline: after interpretation, before the guards are lowered. Each symbol is read
from the slot of its first source; the check holds the symbols' ranges, the equality of the other
sources (sizes that share a symbol, strides) and the conditions that branches asked for::

    s0 = v[3]
    return s0 >= 2 and v[5] == s0 and s0 % 8 == 0
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, final

from weft.capture.source import Source
from weft.diagnostics import events
from weft.errors import DimensionError, FixedDimensionError, SourceLine
from weft.shapes.expr import Expr, symbol_of, symbols
from weft.shapes.floats import FloatRelation, FloatSymbol, number_symbols
from weft.shapes.guard import AnyCondition, python_text
from weft.shapes.intervals import INF
from weft.shapes.printing import python_text as expression_text
from weft.shapes.relation import condition_symbols

if TYPE_CHECKING:
    from weft.capture.interpreter import Interpreter

Line = SourceLine | None


def add_shape_guards(tx: Interpreter) -> None:
    """Turn what the capture's `ShapeContext` recorded into a guard of the tree."""
    shapes = tx.shapes
    if not shapes.sources and not shapes.bindings and not shapes.unbacked_symbols.names:
        return
    conditions = list(_conditions(tx))
    refuse_fixed_marks(tx)
    events.record("symbols", code=tx.code, symbols=list(_explained(tx, conditions)))
    if conditions:
        check = ShapeCheck(_symbol_slots(tx, conditions), [c[1:] for c in conditions])
        tx.guards.shape(check)


def refuse_fixed_marks(tx: Interpreter) -> None:
    """A dimension marked dynamic that the program fixed to one size is the user's error."""
    for symbol in tx.shapes.marked:
        fixed = tx.shapes.facts.view(symbol)
        source = str(tx.shapes.sources[symbol][0])
        if isinstance(fixed, int):
            raise FixedDimensionError(source, fixed, stack=_who_asked(tx, symbol))
        _refuse_tied_names(tx, symbol, source)


def _refuse_tied_names(tx: Interpreter, symbol: Expr, source: str) -> None:
    """Dimensions of two names are independent; a program that needs them equal is an error."""
    dim, equal = tx.shapes.dims.of.get(symbol), tx.shapes.facts.equal.get(symbol)
    if dim is None or equal is None:
        return
    for other in symbols(equal):
        other_dim = tx.shapes.dims.of.get(other)
        if other_dim is not None and other_dim.root != dim.root:
            raise DimensionError(
                f"{source} was declared as {dim!r}, but the program works only where it is "
                f"{expression_text(equal)} ({tx.shapes.sources[other][0]}, {other_dim!r})",
                stack=_who_asked(tx, symbol), do="use one Dim for both, or Dim.AUTO")


def _who_asked(tx: Interpreter, symbol: Expr) -> tuple[SourceLine, ...]:
    """The first line that made a condition on the symbol."""
    for guard in tx.shapes.guards:
        if guard.line is not None and symbol in _symbols(guard.condition):
            return (guard.line,)
    return ()


def _explained(
    tx: Interpreter, conditions: list[Condition]
) -> Iterator[tuple[str, str, str, str]]:
    """For each symbol: its name, where it comes from, its value now, what was asked of it."""
    for symbol, sources in tx.shapes.sources.items():
        name = _name(symbol)
        asked = [
            text if line is None else f"{text} ({line})"
            for names, text, line in conditions
            if name in names and not text.startswith("v[")
        ]
        value = str(tx.shapes.hints.get(symbol, "any"))
        yield name, " = ".join(map(str, sources)), value, "; ".join(asked)
    for name, origin in tx.shapes.unbacked_symbols.told():
        needed = [str(a) for a in tx.shapes.asserts if name in _names(a.condition)]
        yield name, origin, "depends on data", "; ".join(needed)


Condition = tuple[set[str], str, Line]
"""Names of the symbols used, Python text, the user's line."""


def _conditions(tx: Interpreter) -> Iterator[Condition]:
    for symbol, (_, *others) in tx.shapes.sources.items():
        if isinstance(symbol, Expr):
            yield from _range(symbol)
        name = _name(symbol)
        for source in others:
            yield {name}, f"{_slot(source)} == {name}", None
    for source, value in tx.shapes.bindings:
        names = {_name(s) for s in symbols(value)}
        yield names, f"{_slot(source)} == {expression_text(value)}", None
    for guard in tx.shapes.guards:
        yield _names(guard.condition), python_text(guard.condition), guard.line


def _range(symbol: Expr) -> Iterator[Condition]:
    limits = symbol_of(symbol)
    if limits.lo > -INF:
        yield {limits.name}, f"{limits.name} >= {limits.lo}", None
    if isinstance(limits.hi, int) and limits.hi < INF:
        yield {limits.name}, f"{limits.name} <= {limits.hi}", None


def _names(condition: AnyCondition) -> set[str]:
    return {_name(s) for s in _symbols(condition)}


def _symbols(condition: AnyCondition) -> frozenset[Expr | FloatSymbol]:
    if isinstance(condition, FloatRelation):
        return number_symbols(condition)
    return frozenset(condition_symbols(condition))


def _name(symbol: Expr | FloatSymbol) -> str:
    return symbol.name if isinstance(symbol, FloatSymbol) else symbol_of(symbol).name


def _slot(source: Any) -> str:
    assert isinstance(source, Source)
    return f"v[{source.collect()}]"


def _symbol_slots(tx: Interpreter, conditions: list[Condition]) -> dict[str, str]:
    """Where each used symbol is read."""
    used = set().union(*(names for names, _, _ in conditions))
    slots = {_name(s): sources[0] for s, sources in tx.shapes.sources.items()}
    return {name: _slot(slots[name]) for name in sorted(used)}


@final
class ShapeCheck:
    """A predicate of the collected list; it remembers which condition failed."""

    def __init__(self, slots: dict[str, str], conditions: list[tuple[str, Line]]) -> None:
        self.conditions = conditions
        self.failed: int | None = None
        body = [f"{name} = {slot}" for name, slot in slots.items()]
        for position, (text, _) in enumerate(conditions):
            body.append(f"if not ({text}): check.failed = {position}; return False")
        lines = "\n".join(f"        {line}" for line in body)
        self.source = (
            f"def make(check):\n    def holds(v):\n{lines}\n        return True\n    return holds"
        )
        namespace: dict[str, Any] = {}
        exec(compile(f"import math\n{self.source}", _FILE, "exec"), namespace)
        self.holds = namespace["make"](self)

    def __str__(self) -> str:
        return " and ".join(text for text, _ in self.conditions)

    def failure(self) -> str:
        """The condition that failed last, and who asked for it."""
        if self.failed is None:
            return "a size condition"
        text, line = self.conditions[self.failed]
        return f"size condition {text}" + ("" if line is None else f" (asked for at {line})")


_FILE: Final = "<weft shape guard>"
