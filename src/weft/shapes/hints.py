"""The values that symbols have in the call that is captured.

Place in the pipeline: part of a `ShapeContext`. Facts decide a condition for all calls; where they
cannot, its hint says what holds in this call, and a guard makes sure of it for later ones::

    context.size(128, source)            # s0
    context.hints.integer(s0 * 2)        # 256
    context.hints.condition(s0 > 100)    # True, in this call
"""

from __future__ import annotations

from typing import final

from weft.shapes.algebra.expr import Expr, IntExpr, subs, symbols
from weft.shapes.algebra.facts import Facts
from weft.shapes.algebra.floats import (
    FloatRelation,
    FloatSymbol,
    FloatValue,
    evaluate,
    holds,
    number_symbols,
)
from weft.shapes.algebra.relation import condition_symbols, substitute
from weft.shapes.guard import AnyCondition

Number = int | float


@final
class Hints:
    """Numbers for symbols, and for what is computed of them; None for what depends on data."""

    def __init__(self, facts: Facts) -> None:
        self.known: dict[object, Number] = {}
        self.undeciding: dict[object, Number] = {}
        """Values in this call that must not decide anything, such as random numbers."""
        self._facts = facts
        self._integers: dict[IntExpr, int | None] = {}

    def rely_on(self, facts: Facts) -> None:
        """Read sizes that are known to be equal from these facts from now on."""
        self._facts = facts
        self._integers.clear()

    def of_symbol(self, symbol: Expr | FloatSymbol) -> Number | None:
        """The value in this call, whether it may decide something or not."""
        return self.known.get(symbol, self.undeciding.get(symbol))

    def integer(self, value: IntExpr) -> int | None:
        """The integer in this call."""
        if isinstance(value, int):
            return value
        if value not in self._integers:
            self._integers[value] = self._compute(value)
        return self._integers[value]

    def _compute(self, value: Expr) -> int | None:
        # Sizes known to be equal are written in one symbol, whichever `value` has.
        simple = self._facts.simplify(value)
        known = {s: int(self.known[s]) for s in symbols(simple) if s in self.known}
        result = subs(simple, known)
        return result if isinstance(result, int) else None

    def floating(self, value: FloatValue) -> float | None:
        """The float in this call."""
        try:
            return float(evaluate(value, self.known))
        except KeyError:
            return None

    def condition(self, condition: AnyCondition) -> bool | None:
        """Whether the condition holds in this call."""
        if isinstance(condition, FloatRelation):
            known = number_symbols(condition) <= self.known.keys()
            return holds(condition, self.known) if known else None
        known_ints = {
            s: int(self.known[s]) for s in condition_symbols(condition) if s in self.known}
        result = substitute(condition, known_ints)
        return result if isinstance(result, bool) else None
