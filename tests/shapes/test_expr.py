"""Expressions against brute-force integers: every simplification must keep the value."""

from __future__ import annotations

import copy
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from weft.shapes.algebra import expr as ex
from weft.shapes.algebra.bounds import bounds, lower_bound, upper_bound
from weft.shapes.algebra.expr import (
    IntExpr,
    applied,
    floor_div,
    loop_index,
    maximum,
    minimum,
    mod,
    symbol,
)
from weft.shapes.algebra.functions import BIT_AND
from weft.shapes.algebra.intervals import INF
from weft.shapes.algebra.printing import c_text, python_text

N, M = symbol("n", 2, 40), symbol("m", 0, 40)
I, J, K = symbol("i", 0, 15), symbol("j", 0, 7), symbol("k", -20, 20)
ROW, COL = loop_index("row", N), loop_index("col", M + 1)

# A program is a nest of tuples; it is run on expressions and on ints alike.
OPERATIONS: dict[str, tuple[Callable[..., IntExpr], int]] = {
    "add": (lambda a, b: a + b, 2),
    "sub": (lambda a, b: a - b, 2),
    "mul": (lambda a, b: a * b, 2),
    "div": (lambda a, b: ex.floor_div(a, b), 2),
    "mod": (lambda a, b: ex.mod(a, b), 2),
    "min": (ex.minimum, 2),
    "max": (ex.maximum, 2),
    "neg": (lambda a: -a, 1),
}
DIVISORS = st.one_of(st.sampled_from([1, 2, 3, 4, 6, 8, 12, 64, -2, -3]), st.just(N))
LEAVES = st.one_of(st.integers(-9, 70), st.sampled_from([N, M, I, J, K, ROW, COL]))


def programs(children: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    two = st.tuples(st.sampled_from(["add", "sub", "mul", "min", "max"]), children, children)
    divide = st.tuples(st.sampled_from(["div", "mod"]), children, DIVISORS)
    scaled = st.tuples(st.just("mul"), children, st.sampled_from([2, 4, 8, 64, 3]))
    return st.one_of(two, divide, divide, scaled, st.tuples(st.just("neg"), children))


PROGRAMS = st.recursive(LEAVES, programs, max_leaves=8)


def run(program: object, env: dict[ex.Expr, int] | None) -> IntExpr:
    if isinstance(program, tuple):
        return OPERATIONS[program[0]][0](*(run(p, env) for p in program[1:]))
    return env[program] if env is not None and isinstance(program, ex.Expr) else program


@st.composite
def environments(draw: st.DrawFn) -> dict[ex.Expr, int]:
    n, m = draw(st.integers(2, 40)), draw(st.integers(0, 40))
    return {
        N: n,
        M: m,
        I: draw(st.integers(0, 15)),
        J: draw(st.integers(0, 7)),
        K: draw(st.integers(-20, 20)),
        ROW: draw(st.integers(0, n - 1)),
        COL: draw(st.integers(0, m)),
    }


@settings(max_examples=1500)
@given(PROGRAMS, st.lists(environments(), min_size=3, max_size=3))
def test_value_bounds_and_text_agree_with_integers(program: object, envs: list) -> None:
    value = run(program, None)
    low, high = bounds(value)
    for env in envs:
        expected = run(program, env)
        assert ex.subs(value, env) == expected
        assert low <= expected <= high
        assert lower_bound(value) <= expected <= upper_bound(value)
        names = {s.name: v for s, v in ((ex.symbol_of(e), v) for e, v in env.items())}
        assert eval(python_text(value), {}, names) == expected
        helpers = {
            "weft_floor_div": lambda a, b: a // b,
            "weft_floor_mod": lambda a, b: a % b,
            "weft_min": min,
            "weft_max": max,
        }
        assert eval(c_text(value).replace("LL", "").replace("/", "//"), helpers, names) == expected


@settings(max_examples=300)
@given(PROGRAMS, environments())
def test_linear_split_recombines(program: object, env: dict[ex.Expr, int]) -> None:
    value = run(program, None)
    parts = ex.split_linear(value, I)
    if parts is None:
        return
    slope, rest = parts
    assert I not in ex.symbols(slope) and I not in ex.symbols(rest)
    assert ex.subs(slope * I + rest, env) == ex.subs(value, env)


@settings(max_examples=200)
@given(PROGRAMS)
def test_a_copy_is_the_same_object(program: object) -> None:
    value = run(program, None)
    again = copy.deepcopy(value)
    assert again is value or (isinstance(value, int) and again == value)


def test_reshape_index_maps_simplify() -> None:
    i, j, x = symbol("i", 0, 127), symbol("j", 0, 7), symbol("x", 0, 10**6)
    assert (8 * i + j) // 8 is i
    assert (8 * i + j) % 8 is j
    assert (8 * i + j) // 64 is i // 8
    assert (8 * i + j) % 64 is 8 * (i % 8) + j
    assert 64 * (x // 64) + x % 64 is x
    assert x % 768 // 64 is x // 64 % 12
    assert x // 64 // 12 is x // 768
    assert 64 * (x // 64 % 12) + x % 64 is x % 768
    assert 64 * (x // 64 % 12) + x % 64 + 768 * (x // 768) is x


def test_symbolic_extents_simplify() -> None:
    n, m = symbol("n", 2), symbol("m", 2)
    a, b = loop_index("a", n), loop_index("b", m)
    assert (m * a + b) // m is a
    assert (m * a + b) % m is b
    assert (m * a + b) // (n * m) == 0
    assert (n * m * 768) // (n * 768) is m
    assert (n * m + m) // (n + 1) is m
    assert lower_bound(n * m - m) == 2


def test_constants_are_plain_ints() -> None:
    n = symbol("n", 2)
    assert (n - n) == 0 and type(n - n) is int
    assert type(n * 0) is int
    assert (4 * n + 3) % 4 == 3
    assert ex.minimum(n, 1) == 1
    assert n // n == 1


def test_printed_c_divides_only_nonnegative_values() -> None:
    k = symbol("k", -20, 20)
    unknown = symbol("u")
    assert c_text(unknown // 4) == "weft_floor_div(u, 4)"
    assert c_text(unknown % 4) == "weft_floor_mod(u, 4)"
    assert c_text((k + 20) // 8) == "((k+20)/8-2)+2"
    assert c_text(k // 4) == "((k+20)/4-5)"
    assert c_text((k + 40) % 3) == "((k+22)%3)"


def test_common_factors_cancel() -> None:
    a, b, c = symbol("a", 1), symbol("b", 1), symbol("c", 1)
    assert floor_div(4 * a * b, 6 * a * c) is floor_div(2 * b, 3 * c)
    assert mod(a * b, a * c) is a * mod(b, c)
    zero = symbol("z", 0)  # nothing is cancelled that may be 0
    assert zero in floor_div(zero * b, zero * c).symbols


def test_bounds_see_through_divisions() -> None:
    n, k = symbol("n", 2), symbol("k", 1)
    assert lower_bound(n - floor_div(n + 1, 2)) >= 0
    assert lower_bound(n - floor_div(n, k)) >= 0
    assert minimum(n, maximum(floor_div(n + 1, 2), 0)) is floor_div(n + 1, 2)


def test_an_unknown_bound_of_a_quotient_stays_unknown() -> None:
    """Divided by ``k`` it looked like a bound: ``x & -2**32 == x >> 32 << 32`` was "never"."""
    x = symbol("x", -INF, INF)
    halves = [applied(BIT_AND, x, -k) - k * (x // k) for k in (2**31, 2**32)]
    assert lower_bound(halves[0] - halves[1]) <= -INF
    assert lower_bound(halves[1] - halves[0]) <= -INF


def test_what_is_padded_or_cut_to_a_multiple_is_one() -> None:
    n = symbol("n", 2)
    padded, cut = n + (8 - n % 8) % 8, n - n % 8
    assert cut == 8 * (n // 8) and lower_bound(n - cut) >= 0
    assert padded == 8 * (padded // 8) and padded % 8 == 0
    assert lower_bound(padded - n) >= 0 and lower_bound(padded // 8) >= 1
    for value in range(2, 40):
        assert ex.subs(padded, {n: value}) == -(-value // 8) * 8
        assert ex.subs(cut, {n: value}) == value // 8 * 8


def test_sums_are_padded_to_a_multiple_like_symbols() -> None:
    n = symbol("n", 2)
    rows = n // 8 + 1
    padded = rows + (4 - rows % 4) % 4
    assert padded % 4 == 0 and padded // (padded // 4) == 4
    assert (n // 4 + (n // 4) % 2) % 2 == 0
