"""What is known about the sizes of a program, and which comparisons follow from it without a guard.

Place in the pipeline: a `ShapeContext` has one `Facts`. It learns every condition that a guard
checks, so that nothing is guarded twice.

The idea: a fact is used by rewriting. What is learned of a symbol says what to write in its place,
a simpler expression or a symbol with a narrower range; this is called its *view*. To decide a
comparison, the views are put in, and the normal form of expressions (`expr.py`) does the rest. Only
what says nothing about a single symbol is kept in lists:

    ========================= ==================================================
    learned                   effect
    ========================= ==================================================
    ``s0 == s1``, ``s0 == 8`` ``s0`` is viewed as ``s1``, as 8
    ``s0 <= 512``             ``s0`` is viewed as a symbol of that name and range
    ``s0 % 8 == 0``           ``s0`` is viewed as ``8 * q0``
    ``s0 * s1 <= 4096``       kept in the list of expressions that are at least 0
    ``s0 != s1``              kept in the set of expressions that are not 0
    ========================= ==================================================

What an equation or an inequality says about one symbol is worked out in `solving.py`.

    >>> from weft.shapes.algebra.expr import symbol
    >>> from weft.shapes.algebra.relation import eq, lt
    >>> n, m = symbol("n", 2), symbol("m", 2)
    >>> facts = Facts()
    >>> facts.learn(eq(n % 8, 0)); facts.learn(lt(n, m))
    >>> facts.decide(eq(n % 4, 0)), facts.decide(lt(n, m + 3)), facts.decide(lt(n, 9))
    (True, True, None)
"""

from __future__ import annotations

from math import gcd
from typing import final

from weft.shapes.algebra.atoms import FloorDiv, Mod, Symbol
from weft.shapes.algebra.bounds import bounds, lower_bound, upper_bound
from weft.shapes.algebra.expr import (
    Expr,
    IntExpr,
    split_linear,
    subs,
    sum_of_products,
    symbol,
    symbol_of,
    symbols,
)
from weft.shapes.algebra.functions import computed_exactly, has_functions, with_functions
from weft.shapes.algebra.intervals import INF
from weft.shapes.algebra.relation import (
    EQ,
    GE,
    NE,
    Condition,
    Junction,
    Relation,
    relation,
    rewrite,
)
from weft.shapes.algebra.solving import (
    after_first_values,
    dividend_bound,
    is_never_less,
    narrow,
    single_atom,
    solve,
    without_division,
)


@final
class Facts:
    """A growing set of conditions that are known to hold."""

    def __init__(self) -> None:
        # What is known, in viewed symbols:
        self._view: dict[Expr, IntExpr] = {}  # symbol -> what is written in its place
        self._at_least_zero: list[IntExpr] = []
        self._not_zero: set[Expr] = set()
        self._alternatives: set[Condition] = set()  # "or" conditions of which none is decided
        # The same in the original symbols, for `simplify` and `factored`:
        self.equal: dict[Expr, IntExpr] = {}  # symbol -> what it equals
        self._equal_atoms: dict[Expr, int] = {}  # other expression -> the number that it equals
        self._multiples: list[tuple[Expr, IntExpr]] = []  # symbol -> divisor * quotient + rest
        self._originals: dict[Expr, Expr] = {}  # narrower symbol -> the original one
        # Symbols made here:
        self.quotients: dict[Expr, IntExpr] = {}  # symbol -> its value in the original symbols
        self._functions: dict[Expr, Expr] = {}  # `Applied` -> the symbol for its value
        # Answers that hold until something is learned:
        self._viewed: dict[Expr, IntExpr] = {}
        self._decided: dict[Condition, bool | None] = {}
        self._signs: dict[IntExpr, bool] = {}

    def view(self, value: IntExpr) -> IntExpr:
        """The value with all facts applied: equal symbols replaced, ranges narrowed."""
        if isinstance(value, int) or not self._view:
            return value
        viewed = self._viewed.get(value)
        if viewed is None:
            viewed = self._viewed[value] = subs(value, self._view)
        return viewed

    def bounds(self, value: IntExpr) -> tuple[int, int]:
        """The interval that the facts allow for the value."""
        viewed = self.view(value)
        return lower_bound(viewed), upper_bound(viewed)

    # -- deciding ----------------------------------------------------------------------------------

    def decide(self, condition: Condition) -> bool | None:
        """Whether the condition follows (True), is excluded (False), or is open (None)."""
        if isinstance(condition, bool):
            return condition
        if condition in self._decided:
            return self._decided[condition]
        answer = self._decide(rewrite(condition, self.view))
        self._decided[condition] = answer
        return answer

    def _decide(self, condition: Condition) -> bool | None:
        if isinstance(condition, bool):
            return condition
        if condition in self._alternatives:
            return True
        if isinstance(condition, Junction):
            return self._decide_junction(condition)
        if condition.kind == GE:
            return self._decide_order(condition.expr)
        equal = self._decide_equality(condition.expr)
        return equal if condition.kind == EQ or equal is None else not equal

    def _decide_junction(self, condition: Junction) -> bool | None:
        answers = [self._decide(part) for part in condition.parts]
        absorbing = condition.kind == "or"
        if absorbing in answers:
            return absorbing
        return None if None in answers else not absorbing

    def _decide_order(self, expr: IntExpr) -> bool | None:
        if self._is_at_least_zero(expr):
            return True
        return False if self._is_at_least_zero(-expr - 1) else None

    def _decide_equality(self, expr: Expr) -> bool | None:
        if expr in self._not_zero or -expr in self._not_zero:
            return False
        if self._is_at_least_zero(expr - 1) or self._is_at_least_zero(-expr - 1):
            return False
        return True if self._is_at_least_zero(expr) and self._is_at_least_zero(-expr) else None

    def _is_at_least_zero(self, expr: IntExpr) -> bool:
        """Whether it follows that the expression is at least 0: from ranges, from a known
        nonnegative expression that is no larger, or by bounding its quotients."""
        holds = self._signs.get(expr)
        if holds is None:
            holds = self._signs[expr] = is_never_less(expr, 0) or any(
                is_never_less(expr, known) for known in self._at_least_zero
            ) or self._follows_without_division(expr)
        return holds

    def _follows_without_division(self, expr: IntExpr) -> bool:
        """Whether a smaller expression with one division less is at least 0.

        If it is not for the first values of its symbol, these are computed, and it is asked for the
        later ones.
        """
        if isinstance(expr, int):
            return False
        if self._follows_without_one_division(expr):
            return True
        later = after_first_values(expr)
        return later is not None and self._follows_without_one_division(later)

    def _follows_without_one_division(self, expr: Expr) -> bool:
        smaller = dividend_bound(expr)
        if smaller is None:
            smaller = without_division(expr)
        return smaller is not None and self._is_at_least_zero(smaller)

    # -- learning ----------------------------------------------------------------------------------

    def learn(self, condition: Condition) -> None:
        """Assume the condition from now on. Learning an excluded condition is an error."""
        if isinstance(condition, Junction) and condition.kind == "and":
            for part in condition.parts:
                self.learn(part)
        elif self._learn_viewed(condition):
            self._store_equality(condition)

    def _learn_viewed(self, condition: Condition) -> bool:
        """Learn the condition in viewed symbols; False if it follows from what is known."""
        viewed = rewrite(condition, self.view)
        if viewed is False:
            raise ValueError(f"{condition!r} contradicts what is known")
        if isinstance(viewed, bool):
            return False
        if isinstance(viewed, Junction):
            self._learn_junction(viewed)
        else:
            _LEARN[viewed.kind](self, viewed)
        self._decided.clear()
        self._signs.clear()
        return True

    def _learn_junction(self, condition: Junction) -> None:
        if condition.kind == "and":
            for part in condition.parts:
                self._learn_viewed(part)
        else:
            self._alternatives.add(condition)

    def _learn_order(self, fact: Relation) -> None:
        narrowed = narrow(fact.expr)
        if narrowed is None:
            self._at_least_zero.append(fact.expr)
            dividend = dividend_bound(fact.expr)
            if dividend is not None:
                self._learn_viewed(relation(GE, dividend))
            return
        variable, value = narrowed
        self._replace(variable, value)
        original = self._originals.get(variable, variable)
        if isinstance(value, Expr):
            self._originals[value] = original
        elif symbol_of(original).kind != "quotient":
            self._equate(original, value)

    def _learn_not_equal(self, fact: Relation) -> None:
        self._not_zero.add(fact.expr)
        low, high = bounds(fact.expr)
        if high - low == 1:  # it has two values
            self._learn_viewed(relation(EQ, fact.expr - low - high))
        elif low == 0:
            self._learn_viewed(relation(GE, fact.expr - 1))
        elif high == 0:
            self._learn_viewed(relation(GE, -fact.expr - 1))

    def _learn_equal(self, fact: Relation) -> None:
        multiple = self._solve_multiple(fact.expr)
        if multiple is not None:
            self._learn_multiple(*multiple)
        elif (solution := solve(fact.expr)) is not None:
            self._learn_solution(fact.expr, *solution)
        else:
            for side in (fact.expr, -fact.expr):
                self._learn_order(Relation(GE, side))

    def _learn_multiple(self, variable: Expr, value: IntExpr) -> None:
        """Learn that the symbol is ``divisor * quotient + rest``."""
        limits = symbol_of(variable)
        self._replace(variable, value)
        self._store_multiple(variable, value)
        if isinstance(limits.hi, int) and limits.hi < INF and symbols(value) - {variable}:
            self._learn_viewed(relation(GE, limits.hi - value))
        if lower_bound(value) < limits.lo:
            self._learn_viewed(relation(GE, value - limits.lo))

    def _learn_solution(self, expr: Expr, variable: Expr, value: IntExpr) -> None:
        """Learn that the symbol has this value, from ``expr == 0``."""
        limits = symbol_of(variable)
        self._replace(variable, value)
        # If the value is a quotient, there is no remainder.
        self._learn_viewed(relation(EQ, subs(expr, {variable: value})))
        # The symbol's range now holds for its value.
        if limits.lo > -INF:
            self._learn_viewed(relation(GE, value - limits.lo))
        if not isinstance(limits.hi, int) or limits.hi < INF:
            self._learn_viewed(relation(GE, limits.hi - value))

    def _solve_multiple(self, expr: Expr) -> tuple[Expr, IntExpr] | None:
        """For ``(a * symbol + b) % k == c`` with ``a`` coprime to ``k``: the symbol and ``k * q +
        d``."""
        atom, sign, remainder = single_atom(expr) or (None, 0, 0)
        if not isinstance(atom, Mod) or abs(sign) != 1:
            return None
        left, k = atom.left + sign * remainder, atom.right
        if isinstance(k, Expr):
            return None if remainder else self._solve_symbolic_multiple(left, k)
        if k <= 0 or len(symbols(left)) != 1:
            return None
        divided = single_atom(left)
        if divided is not None and isinstance(divided[0], FloorDiv):
            return self._solve_multiple_quotient(divided[0], *divided[1:], k)
        (variable,) = symbols(left)
        slope, rest = split_linear(left, variable) or (variable, variable)
        if not (isinstance(slope, int) and isinstance(rest, int) and gcd(slope, k) == 1):
            return None
        offset = -rest * pow(slope, -1, k) % k
        limits = symbol_of(variable)
        high = limits.hi if isinstance(limits.hi, int) else limits.hi.hi
        low = -INF if limits.lo <= -INF else -((offset - limits.lo) // k)
        quotient = self._quotient(
            (variable - offset) // k, low, INF if high >= INF else (high - offset) // k)
        return variable, k * quotient + offset

    def _solve_multiple_quotient(
        self, atom: FloorDiv, slope: int, rest: int, k: int
    ) -> tuple[Expr, IntExpr] | None:
        """For ``((symbol + b) // d + c) % k == 0``: the symbol and ``d * k * q + r + offset``,
        where ``r`` is below ``d``."""
        d = atom.right
        if not isinstance(d, int) or d < 1 or slope != 1:
            return None
        (variable,) = symbols(atom.left)
        shift = atom.left - variable
        if not isinstance(shift, int):
            return None
        limits, start = symbol_of(variable), d * (-rest % k) - shift
        if limits.lo <= -INF or not isinstance(limits.hi, int):
            return None
        high = INF if limits.hi >= INF else (limits.hi - start) // (d * k)
        whole = self._quotient((variable - start) // (d * k), (limits.lo - start) // (d * k), high)
        small = self._quotient((variable + shift) % d, 0, d - 1)
        return variable, d * k * whole + small + start

    def _solve_symbolic_multiple(self, left: IntExpr, right: Expr) -> tuple[Expr, IntExpr] | None:
        """For ``symbol % right == 0``, both positive: the symbol and ``right * q``."""
        if not isinstance(left, Expr) or not isinstance(left.atom, Symbol) or left in right.symbols:
            return None
        if lower_bound(left) < 1 or lower_bound(right) < 1:
            return None
        return left, right * self._quotient(left // right, 1, INF)

    def _quotient(self, value: IntExpr, low: int, high: int) -> Expr:
        """A new symbol for a value in viewed symbols."""
        quotient = symbol(f"q{len(self.quotients)}", low, high, "quotient")
        self.quotients[quotient] = subs(subs(value, self._originals), self.quotients)
        return quotient

    def _replace(self, variable: Expr, value: IntExpr) -> None:
        """View ``variable`` as ``value`` from now on."""
        step = {variable: value}
        self._view = {s: subs(v, step) for s, v in self._view.items()}
        self._view[variable] = value
        self._at_least_zero = [subs(known, step) for known in self._at_least_zero]
        self._not_zero = {e for e in (subs(k, step) for k in self._not_zero) if isinstance(e, Expr)}
        self._alternatives = {rewrite(k, lambda expr: subs(expr, step)) for k in self._alternatives}
        self._viewed.clear()
        self._signs.clear()

    # -- in the original symbols -------------------------------------------------------------------

    def simplify(self, value: IntExpr) -> IntExpr:
        """The value with equal symbols replaced; other symbols stay the original ones."""
        if self.equal:
            value = subs(value, self.equal)
        known = self._equal_atoms
        if not known or isinstance(value, int):
            return value
        return sum_of_products(value, lambda atom: known.get(atom.expr, atom.expr))

    def factored(self, value: IntExpr) -> IntExpr:
        """`simplify`, with known multiples written as products of ``quotients``.

        ``(s0 // s1) * s1`` and ``s0`` are then one expression if ``s1`` divides ``s0``.
        """
        value = self.simplify(value)
        for variable, multiple in self._multiples:
            known, product = self.simplify(variable), self.simplify(multiple)
            if isinstance(known, Expr) and known.atom and known not in symbols(product):
                value = subs(value, {known: product})
        return self._without_functions(computed_exactly(value))

    def _without_functions(self, value: IntExpr) -> IntExpr:
        """The value with a quotient symbol in place of each function that only Python can
        compute."""
        if isinstance(value, int) or not has_functions(value):
            return value
        return with_functions(value, self._symbol_of_function)

    def _symbol_of_function(self, application: Expr) -> Expr:
        known = self._functions.get(application)
        if known is None:
            known = symbol(f"q{len(self.quotients)}", *application.bounds, "quotient")
            self._functions[application] = known
            self.quotients[known] = subs(application, self.quotients)
        return known

    def _store_equality(self, condition: Condition) -> None:
        """For `simplify`: store ``symbol == expression`` in the original symbols."""
        if not isinstance(condition, Relation) or condition.kind != EQ:
            return
        solved = solve(self.simplify(condition.expr))
        if solved is not None:
            self._equate(*solved)
            return
        part = single_atom(self.simplify(condition.expr))
        if part is not None and part[1] in (1, -1):
            self._equal_atoms[part[0].expr] = -part[2] * part[1]

    def _store_multiple(self, variable: Expr, value: IntExpr) -> None:
        """For `factored`: store a multiple in the original symbols, unless they depend on data."""
        original, product = self._originals.get(variable, variable), subs(value, self._originals)
        if all(symbol_of(s).kind != "unbacked" for s in (original, *symbols(product))):
            self._multiples.append((original, product))

    def _equate(self, variable: Expr, value: IntExpr) -> None:
        """Store that a symbol has this value, both in original symbols."""
        self.equal = {s: subs(v, {variable: value}) for s, v in self.equal.items()}
        self.equal[variable] = value


_LEARN = {EQ: Facts._learn_equal, NE: Facts._learn_not_equal, GE: Facts._learn_order}
