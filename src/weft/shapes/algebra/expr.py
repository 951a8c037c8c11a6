"""Integer expressions in normal form: the language of symbolic sizes and of kernel indices.

Place in the pipeline: below everything. Capture gives symbolic sizes to fake tensors, the code
generator writes index maps; both use the same objects, so nothing is converted on the way.

An expression is a polynomial with integer coefficients over *atoms*: symbols, ``a // b``, ``a %
b``, ``min``, ``max`` and opaque functions (``functions.py``). Expressions are immutable and
hash-consed: equal normal forms are the same object, so equality and hashing are by identity.
**Constants are plain Python ints**: every function takes ``int | Expr`` and returns an ``int`` if
the result is constant. So ``n == 1`` asks whether a size is known to be 1. All values are assumed
to fit in 64 bits; division and remainder floor as Python's do.

    >>> i, j = symbol("i", 0, 127), symbol("j", 0, 7)
    >>> (8 * i + j) // 8 is i, (8 * i + j) % 8 is j
    (True, True)
    >>> n = symbol("n", 2)
    >>> (n * 12 * 64) // (n * 64)
    12
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from itertools import count
from math import gcd, prod
from operator import or_
from typing import Final, final
from weakref import WeakValueDictionary

from weft.shapes.algebra.atoms import (
    HAS_MOD,
    Applied,
    Atom,
    FloorDiv,
    Interned,
    IntFunction,
    Max,
    Min,
    Mod,
    Monomial,
    Symbol,
)
from weft.shapes.algebra.bounds import bounds, division_bounds, lower_bound
from weft.shapes.algebra.intervals import FAR, INF
from weft.shapes.algebra.polynomials import polynomial_bounds, quotient_monomial, shared_factors
from weft.shapes.algebra.rendering import render

_MEMO_LIMIT: Final = 200_000
_ids = count()


@final
class Expr(Interned):
    """A non-constant polynomial: ``const + sum(coefficient * product of atoms)``.

    Never construct one directly: use :func:`symbol` and the operators.
    """

    __slots__ = ("__weakref__", "_bounds", "_symbols", "const", "flags", "items", "least", "terms")

    const: int
    terms: dict[Monomial, int]
    items: frozenset[tuple[Monomial, int]]
    _bounds: tuple[int, int] | None
    _symbols: frozenset[Expr] | None
    flags: int
    """Which kinds of atoms occur in its terms (`atoms.py`)."""
    least: int | None
    """Its `bounds.lower_bound`, once that was asked for."""

    @property
    def symbols(self) -> frozenset[Expr]:
        """The symbols that occur anywhere in it, each as an expression."""
        if self._symbols is None:
            self._symbols = frozenset().union(*map(_atom_symbols, self.atoms()))
        return self._symbols

    @property
    def bounds(self) -> tuple[int, int]:
        """An interval that contains every value, computed from the ranges of the symbols alone."""
        if self._bounds is None:
            self._bounds = polynomial_bounds(self)
        return self._bounds

    @property
    def lo(self) -> int:
        return self.bounds[0]

    @property
    def hi(self) -> int:
        return self.bounds[1]

    @property
    def atom(self) -> Atom | None:
        """The atom of which the expression consists, if it is a single one."""
        if self.const or len(self.terms) != 1:
            return None
        ((monomial, coefficient),) = self.terms.items()
        return monomial[0] if coefficient == 1 and len(monomial) == 1 else None

    def atoms(self) -> Iterator[Atom]:
        """The atoms of its terms (not those nested in other atoms)."""
        for monomial in self.terms:
            yield from monomial

    def coeff(self, variable: Expr) -> IntExpr | None:
        """The factor of ``variable`` if the expression is linear in it, otherwise None."""
        parts = self.linear_parts(variable)
        return None if parts is None else parts[0]

    def linear_parts(self, variable: Expr) -> tuple[IntExpr, IntExpr] | None:
        """``(a, b)`` with ``self = a * variable + b`` and both free of ``variable``, else None."""
        if variable not in self.symbols:
            return 0, self
        slope: dict[Monomial, int] = {}
        rest: dict[Monomial, int] = {}
        for monomial, coefficient in self.terms.items():
            uses = [atom for atom in monomial if variable in _atom_symbols(atom)]
            if not uses:
                rest[monomial] = coefficient
            elif len(uses) == 1 and uses[0].expr is variable:
                slope[tuple(a for a in monomial if a is not uses[0])] = coefficient
            else:
                return None
        return _build(slope.pop((), 0), slope), _build(self.const, rest)

    def __add__(self, other: IntExpr) -> IntExpr:
        if type(other) is int:
            return _intern(self.const + other, self.terms, self.items) if other else self
        if isinstance(other, Expr):
            return _memoised(_add, self, other)
        return NotImplemented

    def __sub__(self, other: IntExpr) -> IntExpr:
        if type(other) is int:
            return self + -other
        if isinstance(other, Expr):
            return 0 if other is self else _memoised(_add, self, _scale(other, -1))
        return NotImplemented

    def __rsub__(self, other: int) -> IntExpr:
        return _scale(self, -1) + other if isinstance(other, int) else NotImplemented

    def __mul__(self, other: IntExpr) -> IntExpr:
        if type(other) is int:
            return _scale(self, other) if other else 0
        if isinstance(other, Expr):
            return _memoised(_multiply, self, other)
        return NotImplemented

    __radd__ = __add__
    __rmul__ = __mul__

    def __neg__(self) -> Expr:
        return _scale(self, -1)

    def __pow__(self, exponent: int) -> IntExpr:
        return prod([self] * exponent)

    def __floordiv__(self, other: IntExpr) -> IntExpr:
        return floor_div(self, other)

    def __rfloordiv__(self, other: int) -> IntExpr:
        return floor_div(other, self)

    def __mod__(self, other: IntExpr) -> IntExpr:
        return mod(self, other)

    def __rmod__(self, other: int) -> IntExpr:
        return mod(other, self)

    def __bool__(self) -> bool:
        raise TypeError(f"the truth of {self!r} depends on its symbols; compare it through Facts")

    def __repr__(self) -> str:
        return render(self)


IntExpr = int | Expr
"""A plain int or a non-constant expression."""

_exprs: WeakValueDictionary[tuple[int, frozenset[tuple[Monomial, int]]], Expr] = (
    WeakValueDictionary()
)
_atoms: WeakValueDictionary[tuple[object, ...], Atom] = WeakValueDictionary()
_memo: dict[tuple[object, ...], IntExpr] = {}


# ------------------------------------------------------------------------------ construction


def symbol(name: str, lo: int = -INF, hi: IntExpr = INF, kind: str = "size") -> Expr:
    """The variable ``name`` with its range; the same object for the same arguments."""
    key = (Symbol, name, lo, hi, kind)
    atom = _atoms.get(key)
    if atom is None:
        atom = Symbol(name, lo, hi, kind)
        atom.bounds = (lo, hi if isinstance(hi, int) else hi.hi)
        _register(key, atom)
    return atom.expr


def loop_index(name: str, extent: IntExpr) -> Expr:
    """The index of a loop over ``extent`` elements: ``0 <= index < extent``."""
    return symbol(name, 0, extent - 1, "loop")


def _register(key: tuple[object, ...], atom: Atom) -> None:
    atom.id = next(_ids)
    terms: dict[Monomial, int] = {(atom,): 1}
    atom.expr = _intern(0, terms, frozenset(terms.items()))
    _atoms[key] = atom


def _atom(kind: type[FloorDiv] | type[Mod], left: IntExpr, right: IntExpr) -> Expr:
    key = (kind, left, right)
    atom = _atoms.get(key)
    if atom is None:
        quotient = kind(left, right)
        quotient.bounds = division_bounds(quotient)
        _register(key, quotient)
        atom = quotient
    return atom.expr


def _intern(const: int, terms: dict[Monomial, int], items: frozenset[tuple[Monomial, int]]) -> Expr:
    key = (const, items)
    expr = _exprs.get(key)
    if expr is not None:
        return expr
    expr = object.__new__(Expr)
    expr.const, expr.terms, expr.items = const, terms, items
    expr._bounds = expr._symbols = None
    expr.flags = reduce(or_, (atom.flag for monomial in terms for atom in monomial), 0)
    expr.least = None
    _exprs[key] = expr
    return expr


def _build(const: int, terms: dict[Monomial, int]) -> IntExpr:
    """The expression of these terms (zero coefficients already dropped)."""
    return _intern(const, terms, frozenset(terms.items())) if terms else const


def _memoised(function: Callable[..., IntExpr], left: IntExpr, right: IntExpr) -> IntExpr:
    key = (function, left, right)
    result = _memo.get(key)
    if result is None:
        if len(_memo) > _MEMO_LIMIT:
            _memo.clear()
        result = _memo[key] = function(left, right)
    return result


# ------------------------------------------------------------------------------ polynomials


def _scale(value: Expr, factor: int) -> Expr:
    if factor == 1:
        return value
    terms = {monomial: c * factor for monomial, c in value.terms.items()}
    return _intern(value.const * factor, terms, frozenset(terms.items()))


def _add(left: Expr, right: Expr) -> IntExpr:
    terms = dict(left.terms)
    for monomial, coefficient in right.terms.items():
        total = terms.get(monomial, 0) + coefficient
        if total:
            terms[monomial] = total
        else:
            del terms[monomial]
    total_expr = _build(left.const + right.const, terms)
    flags = left.flags | right.flags
    if flags & HAS_MOD and len(terms) > 1 and isinstance(total_expr, Expr):
        return _rejoin(total_expr)
    return total_expr


def _multiply(left: Expr, right: Expr) -> IntExpr:
    terms: dict[Monomial, int] = {}
    right_all = [((), right.const), *right.terms.items()] if right.const else right.terms.items()
    left_all = [((), left.const), *left.terms.items()] if left.const else left.terms.items()
    for left_monomial, c in left_all:
        for right_monomial, d in right_all:
            monomial = _merge(left_monomial, right_monomial)
            terms[monomial] = terms.get(monomial, 0) + c * d
    const = terms.pop((), 0)
    return _build(const, {m: c for m, c in terms.items() if c})


def _merge(left: Monomial, right: Monomial) -> Monomial:
    if not left or not right:
        return left or right
    return tuple(sorted(left + right, key=_atom_id))


def _atom_id(atom: Atom) -> int:
    return atom.id


def _product(monomial: Monomial, coefficient: int) -> IntExpr:
    if not monomial:
        return coefficient
    terms = {tuple(sorted(monomial, key=_atom_id)): coefficient}
    return _intern(0, terms, frozenset(terms.items()))


def _rejoin(value: Expr) -> IntExpr:
    """``d*(x//d) + x%d`` is ``x``; ``m*(x//m%k) + x%m`` is ``x % (m*k)``; ``x - x%d`` is
    ``d*(x//d)``; ``x + (-x)%d`` (padding) is ``-d*(-x//d)``; ``x + x%2`` is ``2*x - 2*(x//2)``."""
    for monomial, coefficient in value.terms.items():
        for position, atom in enumerate(monomial):
            if type(atom) is not Mod:
                continue
            rest = _product(monomial[:position] + monomial[position + 1 :], coefficient)
            for partner, whole in _partners(atom, rest):
                others = _without_terms(value, monomial, partner)
                if others is not None:
                    return others + whole
    return value


def _partners(atom: Mod, rest: IntExpr) -> Iterator[tuple[IntExpr, IntExpr]]:
    """Terms that together with ``rest * atom`` make one simpler expression, and that expression."""
    multiple = rest * atom.right * floor_div(atom.left, atom.right)
    yield from ((multiple, rest * atom.left), (-rest * atom.left, -multiple))
    if atom.right == 2:
        yield rest * atom.left, 2 * rest * atom.left - multiple
    inner = atom.left.atom if isinstance(atom.left, Expr) else None
    if isinstance(inner, FloorDiv) and isinstance(inner.right, int):
        scale, left_over = _split_multiples(rest, inner.right)
        if left_over == 0:
            whole = mod(inner.left, inner.right * atom.right)
            yield scale * mod(inner.left, inner.right), scale * whole


def _without_terms(value: Expr, monomial: Monomial, partner: IntExpr) -> IntExpr | None:
    """``value`` without the term of ``monomial`` and ``partner``; None if it has no such terms."""
    if (not isinstance(partner, Expr) or monomial in partner.terms
            or any(value.terms.get(m) != c for m, c in partner.terms.items())):
        return None
    kept = {m: c for m, c in value.terms.items() if m not in (monomial, *partner.terms)}
    return _build(value.const - partner.const, kept)


# ------------------------------------------------------------------------------ division


def floor_div(left: IntExpr, right: IntExpr) -> IntExpr:
    """``left // right``, floored; ``right`` is assumed not to be zero."""
    if isinstance(left, int) and (left == 0 or isinstance(right, int)):
        return left // right if isinstance(right, int) else 0
    if isinstance(right, int) and right in (1, -1):
        return left * right
    if left is right:
        return 1
    return _memoised(_floor_div, left, right)


def mod(left: IntExpr, right: IntExpr) -> IntExpr:
    """``left % right`` with the sign of ``right``, which is assumed not to be zero."""
    if isinstance(left, int) and (left == 0 or isinstance(right, int)):
        return left % right if isinstance(right, int) else 0
    if left is right or (isinstance(right, int) and right in (1, -1)):
        return 0
    return _memoised(_mod, left, right)


def _floor_div(left: IntExpr, right: IntExpr) -> IntExpr:
    if isinstance(right, int):
        assert isinstance(left, Expr)
        return _divide_by_constant(left, right)
    quotient, remainder = _divide_polynomial(left, right)
    if _fits(remainder, right):
        return quotient
    numerator, divisor = _without_content(remainder, right)
    if divisor is not right:
        return quotient + floor_div(numerator, divisor)
    return quotient + _atom(FloorDiv, numerator, divisor)


def _mod(left: IntExpr, right: IntExpr) -> IntExpr:
    if isinstance(right, int):
        assert isinstance(left, Expr)
        return _remainder_by_constant(left, right)
    _, remainder = _divide_polynomial(left, right)
    if _fits(remainder, right):
        return remainder
    numerator, divisor = _without_content(remainder, right)
    if divisor is not right:  # (a*c) % (b*c) is c * (a % b)
        return floor_div(right, divisor) * mod(numerator, divisor)
    return _atom(Mod, numerator, divisor)


def _fits(remainder: IntExpr, divisor: IntExpr) -> bool:
    """Whether ``0 <= remainder < divisor`` is certain."""
    if remainder == 0:
        return True
    return lower_bound(remainder) >= 0 and lower_bound(divisor - remainder) >= 1


def _without_content(left: IntExpr, right: Expr) -> tuple[IntExpr, IntExpr]:
    """The fraction with common factors cancelled: ``(4*n*m) // (6*m)`` is ``(2*n) // 3``."""
    left_terms = left.terms if isinstance(left, Expr) else {}
    left_const = left.const if isinstance(left, Expr) else left
    common = gcd(right.const, left_const, *right.terms.values(), *left_terms.values()) or 1
    shared: Monomial = ()
    if not (left_const or right.const):
        shared = shared_factors([*left_terms, *right.terms])
    if common == 1 and not shared:
        return left, right
    return _exact(left, common, shared), _exact(right, common, shared)


def without_positive_factors(value: Expr) -> Expr:
    """``value`` divided by the sizes that divide all its terms; the sign is the same."""
    shared = () if value.const else shared_factors([*value.terms])
    result = _exact(value, 1, shared) if shared else value
    return result if isinstance(result, Expr) else value


def _exact(value: IntExpr, divisor: int, factors: Monomial = ()) -> IntExpr:
    if isinstance(value, int):
        return value // divisor
    const, terms = value.const // divisor, {}
    for monomial, coefficient in value.terms.items():
        rest = quotient_monomial(monomial, factors)
        assert rest is not None
        if rest:
            terms[rest] = coefficient // divisor
        else:
            const += coefficient // divisor
    return _build(const, terms)


def _divide_polynomial(left: IntExpr, right: Expr) -> tuple[IntExpr, IntExpr]:
    """``left = quotient * right + remainder`` by long division on the leading monomial."""
    lead, lead_coefficient = _leading(right)
    quotient: IntExpr = 0
    remainder = left
    skipped: IntExpr = 0
    while isinstance(remainder, Expr):
        monomial, coefficient = _leading(remainder)
        factor = quotient_monomial(monomial, lead)
        if factor is None or coefficient % lead_coefficient:
            term = _product(monomial, coefficient)
            skipped, remainder = skipped + term, remainder - term
            continue
        step = _product(factor, coefficient // lead_coefficient)
        quotient, remainder = quotient + step, remainder - step * right
    return quotient, skipped + remainder


def _leading(value: Expr) -> tuple[Monomial, int]:
    return max(value.terms.items(), key=_degree_order)


def _degree_order(term: tuple[Monomial, int]) -> tuple[int, list[int]]:
    return len(term[0]), [atom.id for atom in term[0]]


def _divide_by_constant(left: Expr, right: int) -> IntExpr:
    if right < 0:
        return floor_div(-left, -right)
    whole, rest = _split_multiples(left, right)
    lo, hi = bounds(rest)
    if isinstance(rest, int) or (lo > -FAR and hi < FAR and lo // right == hi // right):
        return whole + (rest if isinstance(rest, int) else lo) // right
    if _fits(rest, right):
        return whole
    return whole + _simplest_quotient(rest, right)


def _simplest_quotient(rest: Expr, right: int) -> IntExpr:
    for divisor in _candidate_divisors(rest, right):
        upper, small = _split_multiples(rest, divisor)
        if _fits(small, divisor):
            return floor_div(upper, right // divisor)
    simpler = _quotient_of_atom(rest, right)
    return _atom(FloorDiv, rest, right) if simpler is None else simpler


def _quotient_of_atom(rest: Expr, right: int) -> IntExpr | None:
    """``(x // a + c) // b = (x + a*c) // (a*b)`` and ``(x % m) // d = (x // d) % (m // d)``."""
    if len(rest.terms) != 1:
        return None
    ((monomial, coefficient),) = rest.terms.items()
    inner = monomial[0]
    if coefficient != 1 or len(monomial) != 1 or not isinstance(inner, FloorDiv | Mod):
        return None
    if not isinstance(inner.right, int) or inner.right <= 0:
        return None
    if isinstance(inner, FloorDiv):
        return floor_div(inner.left + inner.right * rest.const, inner.right * right)
    if rest.const == 0 and inner.right % right == 0:
        return mod(floor_div(inner.left, right), inner.right // right)
    return None


def _remainder_by_constant(left: Expr, right: int) -> IntExpr:
    if right < 0:
        return -mod(-left, -right)
    _, rest = _split_multiples(_without_inner_mod(left, right), right)
    lo, hi = bounds(rest)
    if isinstance(rest, int):
        return rest % right
    if lo > -FAR and hi < FAR and lo // right == hi // right:
        return rest - lo // right * right
    if _fits(rest, right):
        return rest
    for divisor in _candidate_divisors(rest, right):
        upper, small = _split_multiples(rest, divisor)
        if _fits(small, divisor):
            return mod(upper, right // divisor) * divisor + small
    return _atom(Mod, rest, right)


def _without_inner_mod(value: Expr, modulus: int) -> IntExpr:
    """Drop redundant inner remainders: ``(x % 8 + y) % 4 = (x + y) % 4``."""
    if not value.flags & HAS_MOD:
        return value
    result: IntExpr = value
    for monomial, coefficient in value.terms.items():
        inner = monomial[0]
        if len(monomial) != 1 or not isinstance(inner, Mod) or not isinstance(inner.right, int):
            continue
        if coefficient * inner.right % modulus == 0:
            result = result + (inner.left - inner.expr) * coefficient
    return result


def _split_multiples(value: IntExpr, divisor: int) -> tuple[IntExpr, IntExpr]:
    """``value = whole * divisor + rest``: terms with a divisible coefficient go to ``whole``."""
    if isinstance(value, int):
        return value // divisor, value % divisor
    whole = {m: c // divisor for m, c in value.terms.items() if c % divisor == 0}
    rest = {m: c for m, c in value.terms.items() if c % divisor}
    return _build(value.const // divisor, whole), _build(value.const % divisor, rest)


def _candidate_divisors(value: Expr, right: int) -> list[int]:
    """Common factors of ``right`` and some coefficients, largest first."""
    divisors = {gcd(c, right) for c in value.terms.values()}
    divisors |= {gcd(*divisors)}
    return sorted(divisors - {1, right}, reverse=True)


# ------------------------------------------------------------------------------ min and max


def minimum(*args: IntExpr) -> IntExpr:
    """The smallest argument; arguments that can never be the smallest are dropped."""
    return _extremum(Min, args)


def maximum(*args: IntExpr) -> IntExpr:
    """The largest argument; arguments that can never be the largest are dropped."""
    return _extremum(Max, args)


def _extremum(kind: type[Min] | type[Max], args: tuple[IntExpr, ...]) -> IntExpr:
    kept: list[IntExpr] = []
    for arg in _flatten(kind, args):
        if not any(_dominates(kind, other, arg) for other in kept):
            kept = [other for other in kept if not _dominates(kind, arg, other)]
            kept.append(arg)
    if len(kept) == 1:
        return kept[0]
    key = (kind, frozenset(kept))
    atom = _atoms.get(key)
    if atom is None:
        atom = kind(frozenset(kept))
        ranges = [bounds(arg) for arg in kept]
        pick = min if kind is Min else max
        atom.bounds = pick(lo for lo, _ in ranges), pick(hi for _, hi in ranges)
        _register(key, atom)
    return atom.expr


def _flatten(kind: type[Min] | type[Max], args: tuple[IntExpr, ...]) -> Iterator[IntExpr]:
    for arg in args:
        atom = arg.atom if isinstance(arg, Expr) else None
        if isinstance(atom, kind):
            yield from atom.args
        else:
            yield arg


def _dominates(kind: type[Min] | type[Max], winner: IntExpr, loser: IntExpr) -> bool:
    """Whether ``loser`` can never be chosen strictly before ``winner``."""
    difference = loser - winner if kind is Min else winner - loser
    return lower_bound(difference) >= 0


# ------------------------------------------------------------------------------ inspection


def subs(value: IntExpr, mapping: Mapping[Expr, IntExpr]) -> IntExpr:
    """``value`` with symbols replaced (simultaneously); the result is simplified again."""
    if isinstance(value, int) or not any(s in mapping for s in value.symbols):
        return value
    return sum_of_products(value, lambda atom: _replace(atom, mapping))


def sum_of_products(value: Expr, factor: Callable[[Atom], IntExpr]) -> IntExpr:
    """The polynomial with each atom replaced by its `factor`."""
    total: IntExpr = value.const
    for monomial, coefficient in value.terms.items():
        term: IntExpr = coefficient
        for atom in monomial:
            term = term * factor(atom)
        total = total + term
    return total


def _replace(atom: Atom, mapping: Mapping[Expr, IntExpr]) -> IntExpr:
    if isinstance(atom, Symbol):
        return mapping.get(atom.expr, atom.expr)
    args = [subs(operand, mapping) for operand in operands(atom)]
    if isinstance(atom, Applied):
        return applied(atom.function, *args)
    return OPERATORS[type(atom)](*args)


def applied(function: IntFunction, *args: IntExpr) -> IntExpr:
    """``function(*args)``: computed if all arguments are constants, else an atom."""
    if all(isinstance(arg, int) for arg in args):
        return function.compute(*args)
    key = (Applied, function, args)
    atom = _atoms.get(key)
    if atom is None:
        atom = Applied(function, args)
        atom.bounds = function.limits(*map(bounds, args))
        _register(key, atom)
    return atom.expr


OPERATORS: Final[Mapping[type[Atom], Callable[..., IntExpr]]] = {
    FloorDiv: floor_div,
    Mod: mod,
    Min: minimum,
    Max: maximum,
}
"""The operators of all composite atoms but `Applied`."""


def split_linear(value: IntExpr, variable: Expr) -> tuple[IntExpr, IntExpr] | None:
    """As `Expr.linear_parts`, also of an int."""
    return (0, value) if isinstance(value, int) else value.linear_parts(variable)


def symbols(value: IntExpr) -> frozenset[Expr]:
    """The symbols in ``value``; empty for an int."""
    return frozenset() if isinstance(value, int) else value.symbols


def symbol_of(variable: Expr) -> Symbol:
    """The symbol (name, range, kind) of an expression made by :func:`symbol`."""
    atom = variable.atom
    if not isinstance(atom, Symbol):
        raise TypeError(f"{variable!r} is not a symbol")
    return atom


def operands(atom: Atom) -> tuple[IntExpr, ...]:
    """The arguments of a composite atom; empty for a symbol. ``min``/``max`` in stable order."""
    if isinstance(atom, FloorDiv | Mod):
        return atom.left, atom.right
    if isinstance(atom, Min | Max):
        return tuple(sorted(atom.args, key=repr))
    return atom.args if isinstance(atom, Applied) else ()


def _atom_symbols(atom: Atom) -> frozenset[Expr]:
    if isinstance(atom, Symbol):
        return frozenset((atom.expr,))
    return frozenset().union(*map(symbols, operands(atom)))

