"""Conditions on sizes as C runs them: the same as their Python text and as the reference."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

import weft
from weft import _frame
from weft.diagnostics import events
from weft.shapes.algebra.expr import Expr, IntExpr, maximum, minimum, symbol, symbol_of
from weft.shapes.algebra.relation import and_, eq, ge, lt, ne, not_, or_
from weft.shapes.guard import equal_postfix, postfix, python_text

SYMBOLS = [symbol(name, 0) for name in ("a", "b", "c")]


def random_value(choose: random.Random, depth: int) -> IntExpr:
    if depth == 0:
        return choose.choice([*SYMBOLS, choose.randrange(1, 9)])
    left, right = random_value(choose, depth - 1), random_value(choose, depth - 1)
    positive = choose.randrange(1, 7)
    made: IntExpr = choose.choice([
        lambda: left + right, lambda: left - right, lambda: left * right,
        lambda: left // positive, lambda: left % positive,
        lambda: minimum(left, right), lambda: maximum(left, right)])()
    return made


def random_condition(choose: random.Random, depth: int) -> Any:
    if depth == 0 or choose.random() < 0.5:
        build = choose.choice([eq, ne, ge, lt])
        return build(random_value(choose, 2), random_value(choose, 1))
    kind = choose.choice([and_, or_])
    condition = kind(random_condition(choose, depth - 1), random_condition(choose, depth - 1))
    return not_(condition) if choose.random() < 0.3 else condition


def run_in_c(program: Any, values: list[int]) -> bool:
    nodes = tuple((("local", i), (), i, ()) for i in range(len(values)))
    tree = _frame.GuardTree(nodes, (("shape", program, 0),), len(values))
    return tree.check(values, None, {}) is not None


@pytest.mark.parametrize("seed", range(60))
def test_programs_agree_with_python(seed: int) -> None:
    choose = random.Random(seed)
    condition = random_condition(choose, 2)
    slots = {s: i for i, s in enumerate(SYMBOLS)}
    program = postfix(condition, slots)
    text = str(condition) if isinstance(condition, bool) else python_text(condition)
    for _ in range(20):
        values = [choose.choice([0, 1, 2, 7, 8, 64, 1000]) for _ in SYMBOLS]
        names = {symbol_of(s).name: v for s, v in zip(SYMBOLS, values, strict=True)}
        expected = bool(eval(text, {"min": min, "max": max}, names))
        assert run_in_c(program, values) == expected, (text, values)


def test_a_place_that_must_hold_an_expression() -> None:
    a, b = SYMBOLS[:2]
    value = a * b + 1
    assert isinstance(value, Expr)
    program = equal_postfix(2, value, {a: 0, b: 1})
    assert run_in_c(program, [3, 5, 16])
    assert not run_in_c(program, [3, 5, 15])
    assert not run_in_c(program, [2**62, 2**62, 1])  # an overflow is no answer


@pytest.mark.usefixtures("fresh")
def test_a_size_condition_that_fails_is_told_in_the_programs_words() -> None:
    def program(x: torch.Tensor, scale: float) -> torch.Tensor:
        if x.shape[0] > 10:
            return x * scale
        return x + scale

    compiled = weft.compile(program, backend="eager", dynamic=True)
    with events.collect() as seen:
        for n in (20, 30, 5):
            x = torch.ones(n, 3)
            torch.testing.assert_close(compiled(x, 0.5), program(x, 0.5))
    (recompile,) = [e for e in seen if e.kind == "recompile"]
    (change,) = recompile.changes
    assert str(change) == "size condition x.size(0) >= 11 does not hold"
    assert change.line.endswith("in test_a_size_condition_that_fails_is_told_in_the_programs_words"
                                ".<locals>.program")


@pytest.mark.usefixtures("fresh")
def test_conditions_on_floats_are_told_too() -> None:
    def program(x: torch.Tensor, scale: float) -> torch.Tensor:
        return x * scale if scale > 0.3 else x - scale

    compiled = weft.compile(program, backend="eager", dynamic=True)
    x = torch.ones(4)
    with events.collect() as seen:
        for scale in (0.5, 0.75, 0.2):
            torch.testing.assert_close(compiled(x, scale), program(x, scale))
    recompile = [e for e in seen if e.kind == "recompile"][-1]  # the first made it symbolic
    assert "0.3" in recompile.reason and "does not hold" in recompile.reason
