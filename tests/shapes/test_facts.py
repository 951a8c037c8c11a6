"""Facts against z3 and brute force: a decision must hold wherever the learned facts hold."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator

import pytest
import z3
from hypothesis import given, settings
from hypothesis import strategies as st

from weft.shapes.algebra import expr as ex
from weft.shapes.algebra import relation as rel
from weft.shapes.algebra.atoms import Atom, FloorDiv, Min, Mod, Symbol
from weft.shapes.algebra.expr import mod, subs, symbol
from weft.shapes.algebra.facts import Facts
from weft.shapes.algebra.printing import python_text
from weft.shapes.algebra.relation import eq, ge
from weft.shapes.context import ShapeContext
from weft.shapes.symnode import expr_of

N, M, K = symbol("n", 0, 12), symbol("m", 1, 12), symbol("k", -3, 9)
U = symbol("u0", 1, 6, "unbacked")
SYMBOLS = (N, M, K)
ANY = (*SYMBOLS, U)
LINEAR = st.builds(
    lambda a, b, c, d: a * N + b * M + c * K + d,
    st.integers(-2, 3),
    st.integers(-2, 3),
    st.integers(-1, 1),
    st.integers(-12, 12),
)
VALUES = st.one_of(
    LINEAR,
    st.builds(lambda e, d: ex.mod(e, d), LINEAR, st.sampled_from([2, 3, 4])),
    st.builds(lambda e, d: ex.floor_div(e, d), LINEAR, st.sampled_from([2, 4])),
    st.builds(lambda e, d: ex.mod(ex.floor_div(e, 2) + d, 3), LINEAR, st.integers(0, 2)),
    st.builds(ex.minimum, LINEAR, LINEAR),
    st.just(N * M),
)
ATOMIC = st.builds(rel.relation, st.sampled_from([rel.EQ, rel.NE, rel.GE]), VALUES)
CONDITIONS = st.one_of(
    ATOMIC, st.builds(rel.and_, ATOMIC, ATOMIC), st.builds(rel.or_, ATOMIC, ATOMIC)
)


def environments() -> Iterator[dict[ex.Expr, int]]:
    for values in itertools.product(range(13), range(1, 13), range(-3, 10)):
        yield dict(zip(SYMBOLS, values, strict=True))


ENVIRONMENTS = list(environments())


def holds(condition: rel.Condition, env: dict[ex.Expr, int]) -> bool:
    answer = rel.substitute(condition, env)
    assert isinstance(answer, bool)
    return answer


ONE = st.sampled_from(ANY)
SMALL = st.sampled_from([-12, -7, -1, 0, 0, 0, 1, 4, 8])
SIMPLE = st.one_of(
    st.builds(lambda a, x, b, y, c: a * x + b * y + c, st.sampled_from([1, 1, -1, 2, 3]), ONE,
              st.sampled_from([-2, -1, -1, 0, 1, 1, 3]), ONE, SMALL),
    st.builds(lambda x, c, d: mod(x + c, d), ONE, st.sampled_from([0, 0, 1]),
              st.sampled_from([2, 3, 4, 6, M, U, 2 * M, M * U])),
)
"""What most guards compare with 0."""
RICH = st.one_of(
    VALUES,
    SIMPLE,
    st.builds(ex.floor_div, SIMPLE, st.sampled_from([2, 3, M, U, M + 1])),
    st.builds(lambda a, b: a * b, SIMPLE, SIMPLE),
    st.builds(ex.maximum, SIMPLE, ONE),
)
EQUAL = st.builds(rel.relation, st.just(rel.EQ), SIMPLE)
OTHER = st.builds(rel.relation, st.sampled_from([rel.EQ, rel.NE, rel.GE]), RICH)
CHAINED = st.one_of(
    EQUAL, OTHER, st.builds(rel.and_, EQUAL, EQUAL), st.builds(rel.and_, EQUAL, OTHER),
    st.builds(rel.or_, EQUAL, OTHER),
    st.builds(lambda a, b, c: rel.or_(rel.and_(a, b), c), EQUAL, EQUAL, OTHER))
FEW = [*itertools.product((0, 1, 2, 3, 6), (1, 2, 3, 4), (-2, -1, 0, 1, 4), (1, 2, 3)),
       *((n, m, k, 1 + (n + m) % 6) for n, m, k in itertools.product(
           (5, 7, 8, 12), (6, 9, 12), (-3, 2, 8)))]
"""Values of `ANY`: small ones, where several equalities may hold at once."""


def at_each(value: ex.IntExpr | rel.Condition, models: list[tuple[int, ...]]) -> list[int]:
    program = eval(f"lambda n, m, k, u0: {source(value)}")
    return [program(*model) for model in models]


def source(value: ex.IntExpr | rel.Condition) -> str:
    if isinstance(value, rel.Junction):
        return f"({f' {value.kind} '.join(map(source, value.parts))})"
    if isinstance(value, rel.Relation):
        return f"({python_text(value.expr)} {value.kind} 0)"
    return str(value) if isinstance(value, int) else python_text(value)


@settings(max_examples=250)
@given(st.lists(CHAINED, min_size=1, max_size=6), st.lists(CHAINED, min_size=1, max_size=3),
       st.lists(RICH, max_size=2))
def test_decisions_hold_wherever_the_facts_hold(learned: list, asked: list, values: list) -> None:
    """Asked after each fact: what was found out before may not stay as it was."""
    facts, models = Facts(), FEW
    for condition in learned:
        left = [model for model, true in zip(models, at_each(condition, models), strict=True)
                if true]
        if not left:
            continue
        models = left
        facts.learn(condition)
        for question in (condition, *asked):
            decision = facts.decide(question)
            assert decision is None or {decision} == set(at_each(question, models))
        for value in (*ANY, *values):
            check_value(facts, value, models)


def check_value(facts: Facts, value: ex.IntExpr, models: list[tuple[int, ...]]) -> None:
    """Bounds hold, and simpler forms have the value, in symbols of inputs."""
    low, high = facts.bounds(value)
    simple, factored = facts.simplify(value), facts.factored(value)
    assert ex.symbols(simple) <= {*ANY}
    assert U in ex.symbols(value) or U not in ex.symbols(simple)
    expected = at_each(value, models)
    assert all(low <= number <= high for number in expected)
    assert at_each(simple, models) == expected
    assert at_each(subs(factored, facts.quotients), models) == expected


def test_equalities_joined_by_and_are_kept_in_the_symbols_of_inputs() -> None:
    """Learned part by part as the facts saw them, they named the quotient of ``k % 2 == 0``."""
    facts = Facts()
    facts.learn(rel.eq(K % 2, 0))
    facts.learn(rel.and_(rel.eq(K + M, 0), rel.eq(N, 0)))
    assert ex.symbols(facts.simplify(N + M + K)) <= set(SYMBOLS)
    assert facts.simplify(M) in (M, -K)


@settings(max_examples=100)
@given(CONDITIONS)
def test_negation_is_the_complement(condition: rel.Condition) -> None:
    for env in ENVIRONMENTS[::13]:
        assert holds(condition, env) is not holds(rel.not_(condition), env)


@pytest.mark.parametrize(
    ("known", "asked"),
    [
        (lambda: rel.eq(N % 4, 0), lambda: rel.eq(N % 2, 0)),
        (lambda: rel.eq((3 * N + 1) % 4, 0), lambda: rel.eq(N % 4, 1)),
        (lambda: rel.le(N, M), lambda: rel.lt(N, M + 2)),
        (lambda: rel.ge(N * M, 20), lambda: rel.ge(N * M, 15)),
        (lambda: rel.eq(N, 3), lambda: rel.eq(N * M, 3 * M)),
        (lambda: rel.ge(M, 4), lambda: rel.ge(ex.floor_div(M, 4), 1)),
        (lambda: rel.ne(N, 0), lambda: rel.ge(N, 1)),
        (lambda: rel.and_(rel.ge(N, 4), rel.ge(M, 4)), lambda: rel.ge(N * M, 16)),
    ],
)
def test_consequence_agrees_with_z3(known: object, asked: object) -> None:
    """Each implication is proved by z3, and Facts finds it too."""
    premise, goal = known(), asked()
    facts = Facts()
    facts.learn(premise)
    assert facts.decide(goal) is True
    solver = z3.Solver()
    solver.add(*ranges(), to_z3(premise), z3.Not(to_z3(goal)))
    assert solver.check() == z3.unsat


@settings(max_examples=80)
@given(st.lists(ATOMIC, min_size=1, max_size=2), ATOMIC)
def test_random_decisions_agree_with_z3(learned: list, goal: rel.Condition) -> None:
    solver = z3.Solver()
    solver.add(*ranges(), *map(to_z3, learned))
    if solver.check() != z3.sat:
        return
    facts = Facts()
    for condition in learned:
        facts.learn(condition)
    decision = facts.decide(goal)
    if decision is not None:
        solver.add(z3.Not(to_z3(goal)) if decision else to_z3(goal))
        assert solver.check() == z3.unsat


Z = {"n": z3.Int("n"), "m": z3.Int("m"), "k": z3.Int("k")}


def ranges() -> list[z3.BoolRef]:
    atoms = [ex.symbol_of(s) for s in SYMBOLS]
    return [z3.And(Z[a.name] >= a.lo, Z[a.name] <= a.hi) for a in atoms]


def to_z3(condition: rel.Condition) -> z3.BoolRef:
    if isinstance(condition, bool):
        return z3.BoolVal(condition)
    if isinstance(condition, rel.Junction):
        join = z3.And if condition.kind == "and" else z3.Or
        return join(*map(to_z3, condition.parts))
    value = number(condition.expr)
    return {rel.EQ: value == 0, rel.NE: value != 0, rel.GE: value >= 0}[condition.kind]


def number(value: ex.IntExpr) -> z3.ArithRef:
    if isinstance(value, int):
        return z3.IntVal(value)
    total = z3.IntVal(value.const)
    for monomial, coefficient in value.terms.items():
        term = z3.IntVal(coefficient)
        for atom in monomial:
            term = term * atom_number(atom)
        total = total + term
    return total


def atom_number(atom: Atom) -> z3.ArithRef:
    if isinstance(atom, Symbol):
        return Z[atom.name]
    args = [number(a) for a in ex.operands(atom)]
    if isinstance(atom, FloorDiv):
        return args[0] / args[1]  # z3 floors for positive divisors
    if isinstance(atom, Mod):
        return args[0] % args[1]
    pick = (lambda a, b: a <= b) if isinstance(atom, Min) else (lambda a, b: a >= b)
    result = args[0]
    for other in args[1:]:
        result = z3.If(pick(result, other), result, other)
    return result


def test_equal_symbols_are_replaced_in_simplified_values() -> None:
    facts = Facts()
    facts.learn(rel.eq(N, M))
    assert facts.simplify(N * M - N) is facts.simplify(N * N - M)
    facts.learn(rel.eq(M, 5))
    assert facts.simplify(N + M) == 10


def test_contradiction_is_an_error() -> None:
    facts = Facts()
    facts.learn(rel.ge(N, 5))
    with pytest.raises(ValueError, match="contradicts"):
        facts.learn(rel.le(N, 4))


def test_divisibility_by_a_symbol() -> None:
    """A view of rows as heads: what PyTorch asks afterwards follows from one guard."""
    b, n, h = symbol("b", 2), symbol("n", 2), symbol("h", 2)
    facts = Facts()
    facts.learn(eq(mod(b * n, b * h), 0))
    assert facts.decide(eq(n // h * h, n)) is True
    assert facts.decide(eq(n // (n // h), h)) is True
    assert facts.decide(ge(n, h)) is True
    assert facts.decide(eq(n, h)) is None


def test_multiples_are_written_over_quotients() -> None:
    n, h = symbol("n", 2), symbol("h", 2)
    facts = Facts()
    facts.learn(eq(mod(n, h), 0))
    (quotient,) = facts.quotients
    assert facts.quotients[quotient] is n // h
    assert facts.factored(n) is facts.factored(n // h * h) is quotient * h
    facts.learn(eq(mod(n // h, 4), 0))
    inner = list(facts.quotients)[1]
    assert facts.factored(n) is 4 * inner * h
    assert facts.quotients[inner] is n // h // 4
    facts.learn(eq(h, 8))
    assert facts.factored(n) is 32 * inner


@pytest.mark.parametrize("program", [
    lambda n, m: n * 1.5, lambda n, m: n / m, lambda n, m: n / 3, lambda n, m: n * 0.25 / 2,
    lambda n, m: n * 0.5 + 0.5, lambda n, m: n * 0.5 - m, lambda n, m: -n / 4,
])
def test_rounded_floats_are_whole_number_formulas(program: Callable[..., float]) -> None:
    context = ShapeContext(share_equal_hints=False)
    n, m = context.size(7, "n"), context.size(3, "m")
    formulas = [expr_of(how(program(n, m))) for how in (math.floor, math.ceil)]
    for values in itertools.product([2, 3, 7, 64, 2**30 + 1, 2**31 - 1], repeat=2):
        env = dict(zip(map(expr_of, (n, m)), values, strict=True))
        wanted = [math.floor(program(*values)), math.ceil(program(*values))]
        assert [subs(f, env) for f in formulas] == wanted
    assert not context.guards


def test_size_is_never_replaced_by_one_that_depends_on_data() -> None:
    n, u = symbol("n", 2), symbol("u", 0, kind="unbacked")
    facts = Facts()
    facts.learn(eq(n, 512 * u))
    assert facts.simplify(n) is n and facts.simplify(u) == n // 512
    assert facts.decide(eq(n % 512, 0)) is True and facts.decide(eq(u * 512, n)) is True


def test_least_of_two_sizes_is_no_larger_than_either() -> None:
    n, m = symbol("n", 2, 2**31), symbol("m", 2, 2**31)
    facts = Facts()
    assert facts.decide(ge(n, ex.minimum(14, n))) is True
    assert facts.decide(ge(ex.maximum(n, m) + 1, m)) is True
    assert facts.decide(ge(n + m, 2 * ex.minimum(n, m))) is None


def test_bounds_of_quotients_are_bounds_of_what_is_divided() -> None:
    n, m = symbol("n", 2), symbol("m", 2)
    facts = Facts()
    facts.learn(eq((n + 1) // 2, 1))
    assert facts.simplify(n * m) == 2 * m
    facts.learn(eq((m + 5) // n, 3))
    assert facts.decide(ge(m, 1)) is True and facts.bounds(m) == (2, 2)
    a, b = symbol("a", 2), symbol("b", 2)
    facts.learn(eq(a // b, 1))
    assert facts.simplify(7 * (a // b) + a) == a + 7
    assert facts.decide(ge(a, b)) is True and facts.decide(ge(a, 2 * b)) is False


def test_products_of_quotients_are_no_larger_than_what_is_divided() -> None:
    """`tensor_split` and padded lengths asked what always holds, at each call."""
    n, c = symbol("n", 2, 2**31 - 1), symbol("c", 2, 2**31 - 1)
    facts = Facts()
    assert facts.decide(ge(n, 3 * (n // 3))) is True
    assert facts.decide(ge(-8 * (-n // 8), n)) is True
    assert facts.decide(ge(-8 * c * (-n // 8), n * c)) is True
    assert facts.decide(ge(3 * (n // 3), n)) is None


def test_halves_of_any_size_are_two() -> None:
    """`chunk(2)` asked for the number of its parts at each call."""
    n = symbol("n", 2, 2**31 - 1)
    facts = Facts()
    assert facts.decide(eq((n - 1) // ((n + 1) // 2), 1)) is True
    assert facts.decide(eq((n - 1) // ((n + 2) // 3), 2)) is None  # 2 and 4 have two parts


def test_a_divisor_that_equals_a_remainder_is_not_tried_at_zero() -> None:
    """The view put ``n % 6`` in its place, which is 0 at some of the symbol's first values."""
    n, u = symbol("n", 2, 2**31 - 1), symbol("u", 1, kind="unbacked")
    facts = Facts()
    facts.learn(eq(u, n % 6))
    assert facts.decide(ge(n // u, n)) is None


def test_an_odd_quotient_tells_how_what_is_divided_is_rounded() -> None:
    facts, n = Facts(), symbol("n", 2)
    facts.learn(rel.ne((n // 4 + 1) % 2, 0))  # windows of a padded image
    assert facts.decide(eq((n + 4) // 8, n // 8))
    assert facts.decide(eq((n // 4) % 2, 0))


def test_constant_over_a_size_is_a_quotient_that_nothing_solves() -> None:
    n = symbol("n", 2)
    facts = Facts()
    facts.learn(eq(mod(12 // n, 3), 0))
    assert facts.decide(eq(mod(12 // n, 3), 0)) is True
    assert facts.decide(eq(n, 4)) is None
