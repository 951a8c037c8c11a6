"""The guards on symbolic sizes and numbers of one capture, as checks of the collected values.

Place in the pipeline: after interpretation, before the guards are lowered. Each symbol is read from
the slot of its first source. The checks are the symbols' ranges, the equality of their other
sources (sizes that share a symbol, strides), and the conditions of branches. Each is a small
program that C runs; conditions on floats are one Python predicate::

    s0 % 8 == 0      (("slot", 3), ("const", 8), "%", ("const", 0), "==")
    f0 > 0.5         f0 = v[4]; return f0 > 0.5
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

from weft.capture.core.source import Source
from weft.diagnostics import events
from weft.dims import Dim
from weft.errors import DimensionError, FixedDimensionError, SourceLine
from weft.shapes.algebra.expr import Expr, IntExpr, symbol_of, symbols
from weft.shapes.algebra.floats import FloatSymbol, is_real, symbol_name
from weft.shapes.algebra.intervals import INF
from weft.shapes.algebra.printing import python_text as expression_text
from weft.shapes.asserts import condition_names
from weft.shapes.context import COMMON_LIMIT
from weft.shapes.guard import (
    Program,
    Slots,
    equal_postfix,
    postfix,
    python_text,
    runs_in_c,
    symbols_of,
)

if TYPE_CHECKING:
    from weft.capture.core.protocols import Interpreter

Line = SourceLine | None
Number = Expr | FloatSymbol

_SYMBOL: Final = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")


def add_shape_guards(tx: Interpreter) -> None:
    """Turn the conditions that the capture's `ShapeContext` recorded into guards."""
    shapes = tx.shapes
    if not shapes.sources and not shapes.bindings and not shapes.unbacked_symbols.names:
        return
    conditions = list(_conditions(tx))
    refuse_fixed_marks(tx)
    events.record("symbols", code=tx.code, symbols=list(_explained(tx, conditions)))
    slots = _symbol_slots(tx, conditions)
    sources = {symbol_name(s): str(places[0]) for s, places in tx.shapes.sources.items()}
    for condition in conditions:
        if condition.program is not None:
            text = _SYMBOL.sub(lambda m: sources.get(m[0], m[0]), condition.text)
            tx.guards.shape(condition.program(slots), text, condition.line)
    others = [c for c in conditions if c.program is None]
    if others:
        check = ShapeCheck(slots, others)
        tx.guards.shape(check.holds, check, None)


def refuse_fixed_marks(tx: Interpreter) -> None:
    """Raise FixedDimensionError if the program needs one size of a dimension that is marked
    dynamic."""
    for symbol in tx.shapes.marked:
        fixed = tx.shapes.facts.view(symbol)
        source = str(tx.shapes.sources[symbol][0])
        if isinstance(fixed, int):
            raise FixedDimensionError(source, fixed, stack=_who_asked(tx, symbol))
        _refuse_tied_names(tx, symbol, source)


def _refuse_tied_names(tx: Interpreter, symbol: Expr, source: str) -> None:
    """Raise DimensionError if the program needs dimensions of different names to be equal."""
    dim, equal = tx.shapes.dims.of.get(symbol), tx.shapes.facts.equal.get(symbol)
    if dim is None or equal is None:
        return
    for other in symbols(equal):
        other_dim = tx.shapes.dims.of.get(other)
        if other_dim is not None and other_dim.root != dim.root:
            place = str(tx.shapes.sources[other][0])
            raise DimensionError(
                f"{source} was declared as {dim!r}, but the program works only where it is "
                f"{expression_text(equal, {symbol_name(other): place})} ({other_dim!r})",
                stack=_who_asked(tx, symbol), do=_how_to_tie(equal, other, other_dim))


def _how_to_tie(equal: IntExpr, other: Expr, dim: Dim) -> str:
    """What to declare for a size that differs from another one by a constant."""
    if not isinstance(equal - other, int) or dim != Dim(dim.root, min=dim.min, max=dim.max):
        return "use Dim.AUTO"
    if equal == other:
        return "use one Dim for both, or Dim.AUTO"
    text = expression_text(equal, {symbol_name(other): dim.root})
    return f"declare it as {text}, or use Dim.AUTO"


def _who_asked(tx: Interpreter, symbol: Expr) -> tuple[SourceLine, ...]:
    """The first line of the program that set a condition on the symbol."""
    for guard in tx.shapes.guards:
        if guard.line is not None and symbol in symbols_of(guard.condition):
            return (guard.line,)
    return ()


def _explained(
    tx: Interpreter, conditions: list[SizeCondition]
) -> Iterator[tuple[str, str, str, str]]:
    """For each symbol: its name, its source, its value in this call, and the conditions on it."""
    for symbol, sources in tx.shapes.sources.items():
        name = symbol_name(symbol)
        asked = [
            c.text if c.line is None else f"{c.text} ({c.line})"
            for c in conditions
            if not c.links and symbol in c.symbols and c.text != _default_limit(name)
        ]
        value = str(tx.shapes.hints.known.get(symbol, "any"))
        yield name, " = ".join(map(str, sources)), value, "; ".join(asked)
    for name, origin in tx.shapes.unbacked_symbols.described():
        needed = [str(a) for a in tx.shapes.asserts if name in condition_names(a.condition)]
        yield name, origin, "depends on data", "; ".join(needed)


@final
@dataclass(frozen=True, slots=True)
class SizeCondition:
    """A condition on sizes: its symbols, its text, and the line that requires it."""

    symbols: frozenset[Number]
    text: str
    line: Line
    program: Callable[[Slots], Program] | None
    """Makes its program from the symbols' slots; None if C cannot express it."""
    slot: int = -1
    """The slot of a further source that must equal what its symbols say; -1 for conditions on
    symbols."""

    @property
    def links(self) -> bool:
        """Whether it only links a further source to its symbols."""
        return self.slot >= 0


def _conditions(tx: Interpreter) -> Iterator[SizeCondition]:
    for symbol, (first, *others) in tx.shapes.sources.items():
        if isinstance(symbol, Expr) and not (isinstance(first, Source) and first.is_drawn):
            yield from _range(symbol)
        yield from (_link(source, symbol) for source in others)
    yield from (_link(source, value) for source, value in tx.shapes.bindings)
    for guard in tx.shapes.guards:
        program = None
        if runs_in_c(guard.condition):
            program = functools.partial(postfix, guard.condition)  # type: ignore[arg-type]
        yield SizeCondition(symbols_of(guard.condition), python_text(guard.condition), guard.line,
                            program)


def _range(symbol: Expr) -> Iterator[SizeCondition]:
    limits = symbol_of(symbol)
    if limits.lo > -INF:
        yield _bound(symbol, ">=", limits.lo)
    if isinstance(limits.hi, int) and limits.hi < INF:
        yield _bound(symbol, "<=", limits.hi)


def _default_limit(name: str) -> str:
    """The default limit of every symbol, which no program asked for."""
    return f"{name} <= {COMMON_LIMIT}"


def _bound(symbol: Expr, comparison: str, limit: int) -> SizeCondition:
    """A limit of a symbol's range. (As a relation it would be true, because of that range.)"""
    return SizeCondition(
        frozenset({symbol}), f"{symbol_name(symbol)} {comparison} {limit}", None,
        lambda slots: (("slot", slots[symbol]), ("const", limit), comparison))


def _link(source: object, value: IntExpr | FloatSymbol) -> SizeCondition:
    """The condition that the number at `source` equals `value`."""
    slot = _slot(source)
    if isinstance(value, FloatSymbol):
        return SizeCondition(frozenset({value}), f"v[{slot}] == {value.name}", None, None, slot)
    return SizeCondition(frozenset(symbols(value)), f"{source} == {expression_text(value)}", None,
                         functools.partial(equal_postfix, slot, value), slot)


def _symbol_slots(tx: Interpreter, conditions: list[SizeCondition]) -> dict[Any, int]:
    """The slot of each symbol that the conditions use."""
    used = set().union(*(c.symbols for c in conditions))
    return {s: _slot(places[0]) for s, places in tx.shapes.sources.items() if s in used}


def _slot(source: object) -> int:
    assert isinstance(source, Source)
    return source.collect()


@final
class ShapeCheck:
    """A predicate of the collected list, which remembers which condition failed."""

    def __init__(self, slots: dict[Any, int], conditions: list[SizeCondition]) -> None:
        self.conditions = conditions
        self.failed: int | None = None
        used = set().union(*(c.symbols for c in conditions))
        body = [f"{symbol_name(symbol)} = v[{slots[symbol]}]" for symbol in slots if symbol in used]
        for position, condition in enumerate(conditions):
            body.append(f"if not ({condition.text}): check.failed = {position}; return False")
        lines = "\n".join(f"        {line}" for line in body)
        self.source = (
            f"def make(check):\n    def holds(v):\n{lines}\n        return True\n    return holds"
        )
        namespace: dict[str, Any] = {"is_real": is_real}
        exec(compile(f"import math\n{self.source}", _FILE, "exec"), namespace)
        self.holds = namespace["make"](self)

    def __str__(self) -> str:
        """The condition that failed last, with its line; all conditions if none failed yet."""
        if self.failed is None:
            return " and ".join(c.text for c in self.conditions)
        failed = self.conditions[self.failed]
        return failed.text + ("" if failed.line is None else f" (asked for at {failed.line})")


_FILE: Final = "<weft shape guard>"
