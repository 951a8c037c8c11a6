"""Symbolic sizes as Python text, and where running code reads the symbols' values.

Place in the pipeline: generated Python (the runtime wrapper, `aot_eager`'s calls) computes sizes
like `2*s0 + 1`; the symbols are sizes of the inputs, or integers among them::

    sources = input_symbols([fake_of_size_s0_by_8, symint_s1])
    sources["s0"].text("x")     # x.size(0)
    size_text(size)             # 2*s0+1
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch

from weft._torch import FakeTensor
from weft.shapes.algebra.expr import Expr, symbol_of, symbols
from weft.shapes.algebra.floats import text as number_text
from weft.shapes.algebra.printing import python_text
from weft.shapes.guard import python_text as condition_text
from weft.shapes.symnode import condition_of, expr_of, extents, float_of, input_expr
from weft.shapes.unbacked import names_of

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)


@final
@dataclass(frozen=True, slots=True)
class SymbolSource:
    """A symbol: its value as PyTorch sees it, and the input from which it is read."""

    value: Any
    input: int
    dim: int | None  # None: the input is the number itself
    method: str = "size"  # or "stride"
    of_output: bool = False  # the forward's output of that index, not an input

    def remade(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """As running code needs it: the value is for PyTorch's eyes alone."""
        return SymbolSource, (None, self.input, self.dim, self.method, self.of_output)

    def text(self, name: str) -> str:
        """The Python expression that reads it from the input called `name`."""
        return name if self.dim is None else f"{name}.{self.method}({self.dim})"

    def read(self, inputs: Sequence[object]) -> Any:
        """Its value in a call."""
        value = inputs[self.input]
        return value if self.dim is None else getattr(value, self.method)(self.dim)


def input_symbols(values: Iterable[object]) -> dict[str, SymbolSource]:
    """The symbols that can be read directly from inputs with these values, by name."""
    sources: dict[str, SymbolSource] = {}
    for i, value in enumerate(values):
        if isinstance(value, FakeTensor):
            for d, size in enumerate(value.size()):
                _add(sources, size, SymbolSource(size, i, d))
            for d, stride in enumerate(extents(value)[value.dim():]):
                _add(sources, stride, SymbolSource(stride, i, d, "stride"))
        elif isinstance(value, SYMBOLIC):
            source = SymbolSource(value, i, None)
            _add(sources, value, source)
            own = input_expr(value) if isinstance(value, torch.SymInt) else None
            if isinstance(own, Expr) and symbols(own) == {own}:
                sources.setdefault(_symbol_name(own), source)
    return sources


def _add(sources: dict[str, SymbolSource], size: object, source: SymbolSource) -> None:
    name = plain_name(size)
    if name is not None:
        sources.setdefault(name, source)


def plain_name(size: object) -> str | None:
    """The name of a size that is just a symbol, or None."""
    if isinstance(size, torch.SymInt):
        expression = expr_of(size)
        if isinstance(expression, int) or symbols(expression) != {expression}:
            return None
        return _symbol_name(expression)
    if isinstance(size, torch.SymFloat):
        return str(size) if str(size).isidentifier() else None
    return None


def size_text(size: object) -> str:
    """A symbolic number as a Python expression of the symbols' names."""
    if isinstance(size, torch.SymBool):
        return f"({condition_text(condition_of(size))})"
    if isinstance(size, torch.SymInt):
        return python_text(expr_of(size))
    return number_text(float_of(size)) if isinstance(size, torch.SymFloat) else str(size)


def symbolic_leaves(value: object) -> Iterator[object]:
    """The symbolic numbers in an argument, and in the sizes of tensors."""
    if isinstance(value, SYMBOLIC):
        yield value
    elif isinstance(value, FakeTensor):
        for size in (*value.size(), *value.stride()):
            if type(size) is not int:
                yield size
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from symbolic_leaves(item)


def names_in(size: object) -> list[str]:
    """The names of the symbols in a symbolic integer."""
    if isinstance(size, torch.SymFloat):
        return sorted(names_of(float_of(size)))
    if isinstance(size, torch.SymBool):
        return sorted(names_of(condition_of(size)))
    if not isinstance(size, torch.SymInt):
        return sorted(names_of(size))
    expression = expr_of(size)
    return [] if isinstance(expression, int) else [_symbol_name(s) for s in symbols(expression)]


def _symbol_name(expression: Any) -> str:
    return str(symbol_of(expression).name)
