"""The symbols of one capture whose values depend on data.

Place in the pipeline: part of a `ShapeContext`. Capture and aot ask after every operator which
symbols it introduced (`take_fresh`) and record where running code finds their values (`Binding`)::

    context.unbacked("nonzero")                  # u0
    context.unbacked_symbols.take_fresh()        # ["u0"]
    bindings(["u0"], fake_of_sizes_u0_by_2)      # (Binding("u0", path=(), dim=0),)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, final

import torch

from weft.errors import SourceLine
from weft.shapes.algebra.atoms import Symbol
from weft.shapes.algebra.expr import Expr, IntExpr, subs, symbol, symbol_of, symbols
from weft.shapes.algebra.floats import FloatSymbol, number_symbols, symbol_name
from weft.shapes.algebra.relation import Junction, Relation, condition_symbols
from weft.shapes.symnode import SymNode


@final
@dataclass(frozen=True, slots=True)
class Binding:
    """A symbol and its place in an operator's result: the item that `path` leads to (through nested
    lists), and there the size of dimension `dim` (None: the number itself)."""

    name: str
    path: tuple[int, ...]
    dim: int | None

    def text(self, result: str) -> str:
        """The Python expression that reads it from the result called `result`."""
        where = result + "".join(f"[{item}]" for item in self.path)
        return where if self.dim is None else f"{where}.size({self.dim})"


@final
class Unbacked:
    """Names and origins of unbacked symbols, and which were made since the last question."""

    def __init__(self) -> None:
        self.names: dict[str, Expr | FloatSymbol] = {}
        self.origins: dict[str, tuple[str, SourceLine | None]] = {}
        self.fresh: list[str] = []
        self.exist = False  # also as sizes of inputs, which have no place here
        self.likely: dict[str, int] = {}  # likely values, from an operator's arguments

    def add(
        self, variable: Expr | FloatSymbol, name: str, what: str, line: SourceLine | None
    ) -> None:
        self.names[name] = variable
        self.exist = True
        self.origins[name] = (what, line)
        self.fresh.append(name)

    def take_fresh(self) -> list[str]:
        """The names of the symbols made since the last call."""
        fresh, self.fresh = self.fresh, []
        return fresh

    def as_large(self, value: IntExpr) -> IntExpr:
        """The value with all these symbols assumed to be at least two."""
        if isinstance(value, int):
            return value
        large: dict[Expr, IntExpr] = {}
        for variable in symbols(value):
            limits = symbol_of(variable)
            if limits.kind == "unbacked" and limits.lo < 2 and limits.hi != limits.lo:
                large[variable] = _at_least_two(limits)
        return subs(value, large) if large else value

    def as_expected(self, value: IntExpr) -> IntExpr:
        """The value with symbols at their likely values; others except bools are assumed to be
        large."""
        if isinstance(value, int):
            return value
        names = {s: symbol_of(s).name for s in symbols(value)}
        likely = {s: self.likely[name] for s, name in names.items() if name in self.likely}
        value = subs(value, likely)
        if any(symbol_of(s).hi == 1 for s in symbols(value)):
            return value
        return self.as_large(value)

    def described(self) -> Iterator[tuple[str, str]]:
        """Each symbol and its origin, for messages."""
        for name, (what, line) in self.origins.items():
            yield name, f"from {what}" + ("" if line is None else f" at {line}")


def is_difference(value: IntExpr) -> bool:
    """Whether it is the difference of two such symbols."""
    if isinstance(value, int) or value.const or len(value.symbols) != 2:
        return False
    atoms = [symbol_of(variable) for variable in value.symbols]
    return sorted(value.terms.values()) == [-1, 1] and all(a.kind == "unbacked" for a in atoms)


def _at_least_two(limits: Symbol) -> IntExpr:
    high = limits.hi
    if isinstance(high, int) and high <= 2:
        return 2
    return symbol(f"{limits.name}+", 2, high, limits.kind)


def bindings(names: Iterable[str], value: object) -> tuple[Binding, ...]:
    """The places of the symbols in an operator's result (symbols that are not there are
    omitted)."""
    places = dict(_places(value))
    return tuple(Binding(name, *places[name]) for name in names if name in places)


Place = tuple[tuple[int, ...], int | None]


def _places(value: object, path: tuple[int, ...] = ()) -> Iterator[tuple[str, Place]]:
    """The places of symbols in a value, last first, so that a symbol's first place wins."""
    if isinstance(value, tuple | list):
        for item in range(len(value) - 1, -1, -1):
            yield from _places(value[item], (*path, item))
    elif isinstance(value, torch.Tensor):
        for dim in range(value.dim() - 1, -1, -1):
            name = number_name(value.size(dim))
            if name is not None:
                yield name, (path, dim)
    else:
        name = number_name(value)
        if name is not None:
            yield name, (path, None)


def number_name(value: object) -> str | None:
    """The name of a symbol that stands alone (for a bool, of the integer that is 1 if it is
    true)."""
    if not isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return None
    known = value.node.value
    if isinstance(known, FloatSymbol):
        return known.name
    if isinstance(value, torch.SymBool):
        alone = condition_symbols(known)
        return symbol_of(next(iter(alone))).name if len(alone) == 1 else None
    alone = symbols(known) if isinstance(known, Expr) else frozenset()
    return symbol_of(known).name if alone == {known} else None


def names_of(value: Any) -> frozenset[str]:
    """The names of all symbols in a symbolic number."""
    known = value.node.value if isinstance(getattr(value, "node", None), SymNode) else value
    if isinstance(known, Relation | Junction):
        return frozenset(symbol_of(s).name for s in condition_symbols(known))
    if isinstance(known, int | float):
        return frozenset()
    return frozenset(map(symbol_name, number_symbols(known)))
