"""What is known about symbols, and which comparisons follow from it without a guard.

Place in the pipeline: a `ShapeContext` has one `Facts`. Every guard that it records is learned
here, so nothing is asked twice and implied guards are not emitted.

Facts are stored as a *view*: each symbol may stand for a simpler or narrower expression, and a
comparison is decided on the viewed expression. One mechanism serves all kinds of facts:

    ========================= ==================================================
    learned                   view
    ========================= ==================================================
    ``s0 == s1``, ``s0 == 8`` ``s0`` stands for ``s1``, for 8
    ``s0 <= 512``             ``s0`` stands for a symbol of that name and range
    ``s0 % 8 == 0``           ``s0`` stands for ``8 * q0``
    ``s0 * s1 <= 4096``       kept in a list of expressions that are at least 0
    ``s0 != s1``              kept in a set of expressions that are not 0
    ========================= ==================================================

    >>> from weft.shapes.expr import symbol
    >>> from weft.shapes.relation import eq, lt
    >>> n, m = symbol("n", 2), symbol("m", 2)
    >>> facts = Facts()
    >>> facts.learn(eq(n % 8, 0)); facts.learn(lt(n, m))
    >>> facts.decide(eq(n % 4, 0)), facts.decide(lt(n, m + 3)), facts.decide(lt(n, 9))
    (True, True, None)
"""

from __future__ import annotations

from math import gcd, prod
from typing import Final, final

from weft.shapes.atoms import Atom, FloorDiv, Mod, Symbol
from weft.shapes.expr import (
    Expr,
    IntExpr,
    bounds,
    floor_div,
    lower_bound,
    split_linear,
    subs,
    sum_of_products,
    symbol,
    symbol_of,
    symbols,
    upper_bound,
)
from weft.shapes.functions import computed_exactly, has_functions, with_functions
from weft.shapes.intervals import INF
from weft.shapes.relation import EQ, GE, NE, Condition, Junction, Relation, relation, rewrite
from weft.shapes.samples import somewhere_less

_FIRST_VALUES: Final = 8
"""Values of a symbol for which a comparison is computed before its limits are asked."""


@final
class Facts:
    """A growing set of conditions that are known to hold."""

    def __init__(self) -> None:
        self.equal: dict[Expr, IntExpr] = {}  # symbol -> what it equals, in the original symbols
        self._equal_atoms: dict[Expr, int] = {}  # other expression -> the number that it equals
        self.quotients: dict[Expr, IntExpr] = {}  # values in the original symbols
        self._functions: dict[Expr, Expr] = {}  # `Applied` -> its quotient
        self._multiples: list[tuple[Expr, IntExpr]] = []  # symbol -> divisor * quotient + rest
        self._whole: dict[Expr, Expr] = {}  # narrower symbol -> the original one
        self._view: dict[Expr, IntExpr] = {}
        self._at_least_zero: list[IntExpr] = []
        self._not_zero: set[Expr] = set()
        self._known: set[Condition] = set()  # undecided junctions that were learned
        self._decided: dict[Condition, bool | None] = {}
        self._viewed: dict[Expr, IntExpr] = {}
        self._signs: dict[IntExpr, bool] = {}

    def view(self, value: IntExpr) -> IntExpr:
        """The value with all facts applied: equal symbols replaced, ranges narrowed."""
        if isinstance(value, int) or not self._view:
            return value
        found = self._viewed.get(value)
        if found is None:
            found = self._viewed[value] = subs(value, self._view)
        return found

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
        return self._named(computed_exactly(value))

    def _named(self, value: IntExpr) -> IntExpr:
        """The value with a quotient symbol in place of each function that only Python can
        compute."""
        if isinstance(value, int) or not has_functions(value):
            return value
        return with_functions(value, self._named_function)

    def _named_function(self, made: Expr) -> Expr:
        known = self._functions.get(made)
        if known is None:
            known = symbol(f"q{len(self.quotients)}", *made.bounds, "quotient")
            self._functions[made] = known
            self.quotients[known] = subs(made, self.quotients)
        return known

    def bounds(self, value: IntExpr) -> tuple[int, int]:
        """The interval that the facts allow for the value."""
        viewed = self.view(value)
        return lower_bound(viewed), upper_bound(viewed)

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
        if condition in self._known:
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
        found = self._signs.get(expr)
        if found is None:
            found = self._signs[expr] = never_less(expr, 0) or any(
                never_less(expr, known) for known in self._at_least_zero
            ) or self._is_without_division(expr)
        return found

    def _is_without_division(self, expr: IntExpr) -> bool:
        """As `_is_at_least_zero` for a smaller expression without a division.

        The symbol's first values, for which only the expression itself is nonnegative, are tested
        apart.
        """
        if isinstance(expr, int):
            return False
        if self._is_without_one_division(expr):
            return True
        later = _without_first_values(expr)
        return later is not None and self._is_without_one_division(later)

    def _is_without_one_division(self, expr: Expr) -> bool:
        smaller = _bound_of_dividend(expr)
        if smaller is None:
            smaller = _without_division(expr)
        return smaller is not None and self._is_at_least_zero(smaller)

    def learn(self, condition: Condition) -> None:
        """Assume the condition from now on. Learning an excluded condition is an error."""
        if isinstance(condition, Junction) and condition.kind == "and":
            for part in condition.parts:
                self.learn(part)
        elif self._learn_viewed(condition):
            self._learn_equality_of_inputs(condition)

    def _learn_viewed(self, condition: Condition) -> bool:
        """`learn` for a viewed condition; True if it was not known."""
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
            self._known.add(condition)

    def _learn_equality_of_inputs(self, condition: Condition) -> None:
        """Store ``symbol == expression`` in the original symbols too, for `simplify`."""
        if not isinstance(condition, Relation) or condition.kind != EQ:
            return
        solved = _solve(self.simplify(condition.expr))
        if solved is not None:
            self._equate(*solved)
            return
        part = _single_atom(self.simplify(condition.expr))
        if part is not None and part[1] in (1, -1):
            self._equal_atoms[part[0].expr] = -part[2] * part[1]

    def _equate(self, variable: Expr, value: IntExpr) -> None:
        """Store an equality in original symbols."""
        self.equal = {s: subs(v, {variable: value}) for s, v in self.equal.items()}
        self.equal[variable] = value

    def _learn_equal(self, fact: Relation) -> None:
        multiple = self._as_multiple(fact.expr)
        if multiple is not None:
            variable, value = multiple
            limits = symbol_of(variable)
            self._replace(variable, value)
            self._keep_multiple(variable, value)
            if isinstance(limits.hi, int) and limits.hi < INF and symbols(value) - {variable}:
                self._learn_viewed(relation(GE, limits.hi - value))
            if lower_bound(value) < limits.lo:
                self._learn_viewed(relation(GE, value - limits.lo))
            return
        solved = _solve(fact.expr)
        if solved is None:
            for side in (fact.expr, -fact.expr):
                self._learn_order(Relation(GE, side))
            return
        variable, value = solved
        limits = symbol_of(variable)
        self._replace(variable, value)
        # The division's remainder:
        self._learn_viewed(relation(EQ, subs(fact.expr, {variable: value})))
        # The variable's known range now holds for what it equals.
        if limits.lo > -INF:
            self._learn_viewed(relation(GE, value - limits.lo))
        if not isinstance(limits.hi, int) or limits.hi < INF:
            self._learn_viewed(relation(GE, limits.hi - value))

    def _as_multiple(self, expr: Expr) -> tuple[Expr, IntExpr] | None:
        """For ``(a * symbol + b) % k == 0`` with ``a`` coprime to ``k``: the symbol and ``k * q +
        c``."""
        atom = expr.atom
        if not isinstance(atom, Mod):
            return None
        if isinstance(atom.right, Expr):
            return self._as_symbolic_multiple(atom.left, atom.right)
        if atom.right <= 0 or len(symbols(atom.left)) != 1:
            return None
        (variable,) = symbols(atom.left)
        k, (slope, rest) = atom.right, split_linear(atom.left, variable) or (variable, variable)
        if not (isinstance(slope, int) and isinstance(rest, int) and gcd(slope, k) == 1):
            return None
        offset = -rest * pow(slope, -1, k) % k
        limits = symbol_of(variable)
        high = limits.hi if isinstance(limits.hi, int) else limits.hi.hi
        low = -INF if limits.lo <= -INF else -((offset - limits.lo) // k)
        quotient = self._quotient(
            (variable - offset) // k, low, INF if high >= INF else (high - offset) // k)
        return variable, k * quotient + offset

    def _as_symbolic_multiple(self, left: IntExpr, right: Expr) -> tuple[Expr, IntExpr] | None:
        """For ``symbol % right == 0``, both positive: the symbol and ``right * q``."""
        if not isinstance(left, Expr) or not isinstance(left.atom, Symbol) or left in right.symbols:
            return None
        if lower_bound(left) < 1 or lower_bound(right) < 1:
            return None
        return left, right * self._quotient(left // right, 1, INF)

    def _keep_multiple(self, variable: Expr, value: IntExpr) -> None:
        """For `factored`: store a multiple in the original symbols, unless they depend on data."""
        original, product = self._whole.get(variable, variable), subs(value, self._whole)
        if all(symbol_of(s).kind != "unbacked" for s in (original, *symbols(product))):
            self._multiples.append((original, product))

    def _quotient(self, value: IntExpr, low: int, high: int) -> Expr:
        """A new symbol for a value in viewed symbols."""
        made = symbol(f"q{len(self.quotients)}", low, high, "quotient")
        self.quotients[made] = subs(subs(value, self._whole), self.quotients)
        return made

    def _learn_not_equal(self, fact: Relation) -> None:
        self._not_zero.add(fact.expr)
        low, high = bounds(fact.expr)
        if low == 0:
            self._learn_order(Relation(GE, _nonconstant(fact.expr - 1)))
        elif high == 0:
            self._learn_order(Relation(GE, _nonconstant(-fact.expr - 1)))

    def _learn_order(self, fact: Relation) -> None:
        narrowed = _narrowed(fact.expr)
        if narrowed is not None:
            variable, value = narrowed
            self._replace(variable, value)
            original = self._whole.get(variable, variable)
            if isinstance(value, Expr):
                self._whole[value] = original
            elif symbol_of(original).kind != "quotient":
                self._equate(original, value)
        else:
            self._at_least_zero.append(fact.expr)
            dividend = _bound_of_dividend(fact.expr)
            if dividend is not None:
                self._learn_viewed(relation(GE, dividend))

    def _replace(self, variable: Expr, value: IntExpr) -> None:
        """View ``variable`` as ``value`` from now on."""
        step = {variable: value}
        self._view = {s: subs(v, step) for s, v in self._view.items()}
        self._view[variable] = value
        self._at_least_zero = [subs(known, step) for known in self._at_least_zero]
        self._not_zero = {e for e in (subs(k, step) for k in self._not_zero) if isinstance(e, Expr)}
        self._known = {rewrite(k, lambda expr: subs(expr, step)) for k in self._known}
        self._viewed.clear()
        self._signs.clear()


def never_less(left: IntExpr, right: IntExpr) -> bool:
    """Whether ``left >= right`` for all values of their symbols."""
    return not somewhere_less(left, right) and lower_bound(left - right) >= 0


_LEARN = {EQ: Facts._learn_equal, NE: Facts._learn_not_equal, GE: Facts._learn_order}


def _nonconstant(value: IntExpr) -> Expr:
    assert isinstance(value, Expr)
    return value


def _solve(expr: IntExpr) -> tuple[Expr, IntExpr] | None:
    """``(symbol, value)`` with ``symbol == value`` if ``expr == 0``, or None.

    The youngest symbol is replaced, so that the symbols of the first inputs survive. Data-dependent
    symbols are replaced first and never replace others, because inputs' sizes are known earlier.
    """
    known = [s for s in symbols(expr) if not _depends_on_data(s)]
    data = [s for s in symbols(expr) if _depends_on_data(s)]
    for variable in sorted(data, key=_age) + ([] if data else sorted(known, key=_age)):
        slope, rest = split_linear(expr, variable) or (None, 0)
        if slope in (1, -1):
            return variable, -rest * slope
        if isinstance(slope, int) and len(data) == 1:
            return variable, floor_div(-rest, slope)
    return None


def _depends_on_data(variable: Expr) -> bool:
    return symbol_of(variable).kind == "unbacked"


def _age(variable: Expr) -> tuple[int, int]:
    """The sort key of a symbol's age: least for the youngest.

    Data-dependent symbols count in their names, in the order in which running code binds them; ids
    belong to the process.
    """
    found = symbol_of(variable)
    number = found.name[1:]
    counts = found.kind == "unbacked" and number.isdigit()
    return (-int(number) if counts else 0), -found.id


def _single_atom(expr: IntExpr) -> tuple[Atom, int, int] | None:
    """For ``a * atom + b``: the atom, ``a`` and ``b``; else None."""
    if isinstance(expr, int) or len(expr.terms) != 1:
        return None
    ((monomial, slope),) = expr.terms.items()
    return (monomial[0], slope, expr.const) if len(monomial) == 1 else None


def _bound_of_dividend(expr: Expr) -> IntExpr | None:
    """From ``a * (left // right) + b >= 0``, an expression of ``left`` that is at least 0."""
    atom, slope, rest = _single_atom(expr) or (None, 0, 0)
    if not isinstance(atom, FloorDiv) or lower_bound(atom.right) < 1:
        return None
    if slope > 0:
        return atom.left - -(rest // slope) * atom.right
    return (rest // -slope + 1) * atom.right - 1 - atom.left


def _without_division(expr: Expr) -> IntExpr | None:
    """A lower bound of a positive multiple of the expression, with the dividend instead of a
    quotient: ``4*m + n - 3`` for ``m + n // 4``, and ``4*m - n`` for ``m - n // 4``."""
    for monomial, slope in expr.terms.items():
        for at, atom in enumerate(monomial):
            if not isinstance(atom, FloorDiv) or not isinstance(atom.right, int) or atom.right < 1:
                continue
            rest = prod([other.expr for other in (*monomial[:at], *monomial[at + 1 :])])
            if lower_bound(rest) >= 0:
                dividend = atom.left if slope < 0 else atom.left - (atom.right - 1)
                others = expr - slope * rest * atom.expr
                return atom.right * others + slope * rest * dividend
    return None


def _without_first_values(expr: Expr) -> Expr | None:
    """An expression with a division, for larger values of its one symbol, if it is at least 0 for
    the smallest ones; else None."""
    if len(expr.symbols) != 1 or not any(isinstance(atom, FloorDiv) for atom in expr.atoms()):
        return None
    (variable,) = expr.symbols
    limits = symbol_of(variable)
    if limits.lo <= -INF or not isinstance(limits.hi, int) or limits.hi - limits.lo < _FIRST_VALUES:
        return None
    if any(_value_at(expr, variable, limits.lo + i) < 0 for i in range(_FIRST_VALUES)):
        return None
    rest = symbol(limits.name, limits.lo + _FIRST_VALUES, limits.hi, limits.kind)
    later = subs(expr, {variable: rest})
    return later if isinstance(later, Expr) else None


def _value_at(expr: Expr, variable: Expr, number: int) -> int:
    """The value for a number in place of the one symbol; 0 if a divisor is, which never happens."""
    try:
        value = subs(expr, {variable: number})
    except ZeroDivisionError:
        return 0
    assert isinstance(value, int)
    return value


def _narrowed(expr: Expr) -> tuple[Expr, IntExpr] | None:
    """For ``a * symbol + b >= 0``: the symbol, and one of the same name with the narrower range."""
    if len(expr.symbols) != 1:
        return None
    (variable,) = expr.symbols
    slope, rest = split_linear(expr, variable) or (expr, expr)
    limits = symbol_of(variable)
    if not (isinstance(slope, int) and isinstance(rest, int) and isinstance(limits.hi, int)):
        return None
    if slope > 0:
        low, high = max(limits.lo, -(rest // slope)), limits.hi
    else:
        low, high = limits.lo, min(limits.hi, rest // -slope)
    value = low if low == high else symbol(limits.name, low, high, limits.kind)
    return variable, value
