"""Symbolic floats that C++ takes as plain ones: replaced by marks, and recognised again behind C++.

Place in the pipeline: below ``context.py``, which has the marks of its symbols. Capture finds out
which floats may be carried (`fakes/float_trials.py`); aot's recorder restores the symbols. Most
operators take a `double`, so C++ asks a symbolic float for its number, which would fix it. Instead
C++ gets a *mark*: a unique number close to that of this call. C++ turns the call into operators
below autograd, in the forward and in the backward; there the mark, or what C++ computed from it,
stands for the symbol::

    dropout(x, r0)                    # r0 is 0.1 in this call; C++ is given 0.1000000123
    bernoulli(x, 0.8999999877)        # arrives at the recorder as bernoulli(x, 1 - r0)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Final, final

from weft.shapes.algebra.floats import FloatExpr, FloatValue, apply

Formula = Callable[[Any], Any]
"""A function of a number, or of the expression of one."""

BORDERS: Final = (-math.inf, -1.0, 0.0, 1.0, 2.0, math.inf)
"""Numbers that C++ compares floats with."""

_LARGEST: Final = 2.0**20
"""The largest integer in formulas."""


@final
class CarriedFloats:
    """The marks of one `ShapeContext`'s floats."""

    def __init__(self) -> None:
        self._marks: dict[object, float] = {}
        self._meanings: dict[float, FloatValue] = {}
        self._marked: dict[float, FloatValue] = {}

    def __bool__(self) -> bool:
        return bool(self._meanings)

    def mark(self, value: FloatValue, hint: float) -> float:
        """The mark that C++ gets for a float that is `hint` in this call (also in a trial)."""
        known = self._marks.get(value)
        if known is None:
            known = self._compute(value) or nth_mark(hint, len(self._marks))
            self._marks[value] = known
            self._marked[known] = value
        return known

    def _compute(self, value: FloatValue) -> float | None:
        """The mark of an expression of marks, computed as C++ would compute it."""
        if not isinstance(value, FloatExpr):
            return None
        args = [self._marks.get(arg, arg) for arg in value.args]
        mark = apply(value.op, *args) if all(isinstance(arg, int | float) for arg in args) else None
        return mark if isinstance(mark, float) else None

    def keep(self, value: FloatValue, formulas: Iterable[Formula]) -> None:
        """Carry the float from now on; `formulas` say what C++ computes from its mark."""
        mark = self._marks[value]
        for formula in (_itself, *formulas):
            number, meaning = formula(mark), formula(value)
            self._meanings[number] = meaning
            self._marks[meaning] = number

    def carried(self, value: FloatValue) -> float | None:
        """What C++ gets for a float that is carried."""
        mark = self._marks.get(value)
        return mark if mark in self._meanings else None

    def meaning(self, number: float) -> FloatValue | None:
        """What a number that C++ passes on stands for."""
        return self._meanings.get(number)

    def operand(self, number: float) -> FloatValue:
        """What C++ means by a number that it combines with a symbolic size, as in `mark / s0`."""
        return self._meanings.get(number, self._marked.get(number, number))


def nth_mark(number: float, n: int) -> float:
    """The nth mark for a number: close to it, and between the same `BORDERS`."""
    start = number if math.isfinite(number) and number else 0.37
    step = (n + 1) * 1.2345678912e-7
    above, below = start * (1 + step), start * (1 - step)
    return above if interval(above) == interval(start) else below


def interval(number: float) -> tuple[float, float] | None:
    """The `BORDERS` that a number lies between; None if it is one itself (or NaN)."""
    if number in BORDERS or math.isnan(number):
        return None
    above = next(i for i, border in enumerate(BORDERS) if number < border)
    return BORDERS[above - 1], BORDERS[above]


def formula_of(mark: float, number: float, other: float, changed: float) -> Formula | None:
    """The formula that gives `number` for `mark` and `changed` for `other`, or None."""
    return next((f for f in _candidates(mark, number) if f(other) == changed), None)


def _candidates(mark: float, number: float) -> Iterator[Formula]:
    """What C++ may have computed from a mark, with at most one integer, in double precision or
    rounded to single precision before or afterwards."""
    formulas: list[Formula] = [_itself, _negate]
    for family, parameter in _FAMILIES:
        k = parameter(mark, number)
        whole = float(round(k)) if abs(k) < _LARGEST else 0.0
        if whole:
            formulas.append(partial(family, whole))
    for formula in formulas:
        for form in (formula, partial(_rounded, formula), partial(_of_rounded, formula)):
            if form(mark) == number:
                yield form


def _itself(p: object) -> object:
    return p


def _negate(p: Any) -> object:
    return apply("neg", p)


def single(p: Any) -> object:
    """A number rounded to 24 bits (T. J. Dekker, Numerische Mathematik 18, 1971), as a conversion
    to float32 does with numbers that are neither very large nor very small."""
    scaled = apply("mul", p, 2.0**29 + 1)
    return apply("sub", scaled, apply("sub", scaled, p))


def _rounded(formula: Formula, p: object) -> object:
    return single(formula(p))


def _of_rounded(formula: Formula, p: object) -> object:
    return formula(single(p))


_Family = tuple[Callable[[float, Any], Any], Callable[[float, float], float]]
_FAMILIES: Final[tuple[_Family, ...]] = (
    (lambda k, p: apply("sub", k, p), lambda p, number: number + p),
    (lambda k, p: apply("add", p, k), lambda p, number: number - p),
    (lambda k, p: apply("mul", p, k), lambda p, number: number / p),
    (lambda k, p: apply("truediv", p, k), lambda p, number: p / number if number else 0.0),
    (lambda k, p: apply("truediv", k, p), lambda p, number: number * p),
    (lambda k, p: apply("truediv", k, apply("sub", 1.0, p)), lambda p, number: number * (1.0 - p)),
)
"""Pairs: a formula of a whole number and a mark, and the function that finds the whole number from
the mark and the formula's value."""
