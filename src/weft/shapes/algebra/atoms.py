"""Atoms: the indivisible factors of integer expressions.

Place in the pipeline: below ``expr.py``, which creates them (one object for each), computes their
``bounds`` and sets their ``expr``, the expression that consists of the atom alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self, final

if TYPE_CHECKING:
    from weft.shapes.algebra.expr import Expr, IntExpr


HAS_MOD, HAS_DIV, HAS_LOOP_BOUND, HAS_EXTREME = 1, 2, 4, 8
"""Flags of expressions: which kinds of atoms occur in their terms. (A loop index has
`HAS_LOOP_BOUND` if its limit is not a plain int.)"""


class Interned:
    """Of equal ones there is one object, so a copy is the object itself."""

    __slots__ = ()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self


class Atom(Interned):
    """An indivisible factor of a monomial. ``expr`` is the expression that consists of it alone."""

    __slots__ = ("__weakref__", "bounds", "expr", "id")

    id: int
    expr: Expr
    bounds: tuple[int, int]
    flag: int = 0


@final
class Symbol(Atom):
    """A variable: a size or a loop index, with ``lo <= value <= hi``.

    ``hi`` may be an expression: the index of a loop over ``n`` elements has ``hi = n - 1``.
    """

    __slots__ = ("flag", "hi", "kind", "lo", "name")

    def __init__(self, name: str, lo: int, hi: IntExpr, kind: str) -> None:
        self.name = name
        self.lo = lo
        self.hi = hi
        self.kind = kind
        self.flag = 0 if isinstance(hi, int) else HAS_LOOP_BOUND


@final
class FloorDiv(Atom):
    """``left // right`` that could not be simplified."""

    __slots__ = ("left", "right")
    flag = HAS_DIV

    def __init__(self, left: IntExpr, right: IntExpr) -> None:
        self.left, self.right = left, right


@final
class Mod(Atom):
    """``left % right`` that could not be simplified."""

    __slots__ = ("left", "right")
    flag = HAS_MOD

    def __init__(self, left: IntExpr, right: IntExpr) -> None:
        self.left, self.right = left, right


@final
class Min(Atom):
    """The smallest of two or more arguments."""

    __slots__ = ("args",)
    flag = HAS_EXTREME

    def __init__(self, args: frozenset[IntExpr]) -> None:
        self.args = args


@final
class Max(Atom):
    """The largest of two or more arguments."""

    __slots__ = ("args",)
    flag = HAS_EXTREME

    def __init__(self, args: frozenset[IntExpr]) -> None:
        self.args = args


@final
@dataclass(frozen=True, slots=True)
class IntFunction:
    """A function from ints to an int. Functions of the same ``text`` are equal.

    ``text`` is Python source over the module ``math`` with ``{0}``, ``{1}`` for the arguments;
    ``limits`` gives an interval for the result from intervals for the arguments.
    """

    text: str
    compute: Callable[..., int] = field(compare=False)
    limits: Callable[..., tuple[int, int]] = field(compare=False)


@final
class Applied(Atom):
    """``function(*args)``, an opaque function without algebraic rules."""

    __slots__ = ("args", "function")

    def __init__(self, function: IntFunction, args: tuple[IntExpr, ...]) -> None:
        self.function, self.args = function, args


Monomial = tuple[Atom, ...]
"""A product of atoms, sorted by ``id``; a power repeats its atom."""
