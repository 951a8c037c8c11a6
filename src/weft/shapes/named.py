"""The sizes of one capture that the user gave names to (`weft.Dim`).

Place in the pipeline: used by the `ShapeContext`. Sizes of one name have one symbol; those that
are derived from it (``2 * batch``) have symbols of their own and conditions that tie them::

    x: {0: batch}, y: {0: 2 * batch}        # s0, s1 and s1 == 2*s0
    y: {0: 2 * batch}                       # s0 and s0 % 2 == 0
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import final

from weft.dims import Dim
from weft.errors import DimensionError
from weft.shapes.algebra.expr import Expr, mod
from weft.shapes.algebra.relation import EQ, Condition, relation


@final
class NamedSizes:
    """For each name: its size in this call, and its first symbol."""

    def __init__(self) -> None:
        self.of: dict[Expr, Dim] = {}  # symbol -> the dimension that it was made for
        self._sizes: dict[str, tuple[int, Dim, str]] = {}
        self._first: dict[str, tuple[Dim, Expr]] = {}

    def check(self, dim: Dim, size: int, what: str) -> int:
        """The size of the plain name, if ``what`` has this size; it must be the same for all of a
        call."""
        root = dim.root_size(size)
        if root is None:
            raise DimensionError(f"{what} is {size}, and was declared as {dim!r}",
                                 do=f"pass a size of the form {dim.factor}*n{dim.offset:+d}")
        known, other, where = self._sizes.setdefault(dim.root, (root, dim, what))
        if known != root:
            first = other.factor * known + other.offset
            raise DimensionError(
                f"{what} is {size} and {where} is {first}, but they were declared as {dim!r} and "
                f"{other!r}", do="use Dims of two names where the sizes are independent")
        return root

    def relations(self, dim: Dim, symbol: Expr) -> Iterator[Condition]:
        """The conditions between a new symbol and the earlier ones of its name."""
        self.of[symbol] = dim
        known = self._first.setdefault(dim.root, (dim, symbol))
        if known[1] is not symbol:
            other, first = known
            yield relation(EQ, other.factor * (symbol - dim.offset)
                           - dim.factor * (first - other.offset))
        elif dim.factor > 1:
            yield relation(EQ, mod(symbol - dim.offset, dim.factor))
