"""Subclasses of str, int, float and tuple: made inside, and from outside."""

from __future__ import annotations

import math
import operator
from typing import Any

import pytest
import torch

from tests.capture.harness import check


class Name(str):
    def __new__(cls, text: str, depth: int = 0) -> Name:
        made = super().__new__(cls, text)
        made.depth = depth
        return made

    def __truediv__(self, part: Any) -> Name:
        return Name(f"{self}.{part}", self.depth + 1)


class Size(int):
    def __new__(cls, value: int, name: str = "n") -> Size:
        made = int.__new__(cls, value)
        made.name = name
        return made

    def __add__(self, other: Any) -> Size:
        return Size(int(self) + int(other), f"{self.name}+{other}")

    def __repr__(self) -> str:
        return f"{self.name}={int(self)}"


class Metres(float):
    def __mul__(self, other: Any) -> Metres:
        return type(self)(float.__mul__(self, other))

    def __str__(self) -> str:
        return f"{float(self)}m"


class Shape(tuple):
    @property
    def numel(self) -> int:
        return math.prod(self)

    def __add__(self, other: Any) -> Shape:
        return Shape(tuple.__add__(self, tuple(other)))


def of_names(x, name):
    a = name / x.ndim / "attn"
    return x * a.depth, [a, a.upper(), len(a), f"{a:>12}", a + "x", type(a + "x"), {a: 1}[str(a)],
                         a == "b.1.attn", a.split("."), hash(a) == hash(str(a)), "%s" % a, a[1:]]


def of_sizes(x, size):
    a = size + 1
    return x.repeat(a), [int(a), repr(a), str(a), f"{a}", a * 2, a > 1, list(range(a)), a.name,
                         "abcdef"[a], x.new_zeros(a).shape, 3 + a, [a].index(3), bool(a)]


def of_lengths(x, length):
    a = length * 2
    return x * a, [type(a).__name__, str(a), repr(a), f"{a}", f"{a:.2f}", a.is_integer(), 1.5 + a,
                   round(a, 1), -a, a > 2, a == float(a), {float(a): 1}[a]]


def of_shapes(x, shape):
    a = shape + (3,)
    return x.new_ones(a), [a.numel, a, a[0], type(a[:1]).__name__, (0,) + a, *a, a == (2, 3),
                           hash(a) == hash((2, 3)), a.index(3), len(a), type(a).__name__]


_PROGRAMS = {of_names: (Name, "b"), of_sizes: (Size, 2), of_lengths: (Metres, 1.5),
             of_shapes: (Shape, (2,))}


@pytest.mark.parametrize("use", _PROGRAMS, ids=lambda use: use.__name__)
def test_subclasses_of_plain_values_are_objects_and_values(use) -> None:
    kind, value = _PROGRAMS[use]
    check(lambda x: use(x, kind(value)), (torch.ones(3),))
    given = kind(value)
    check(lambda x: use(x, given), (torch.ones(3),))


def test_another_value_of_a_subclass_is_another_variant() -> None:
    def program(x, name):
        return x + len(name), name + "!", name.depth

    check(program, *((torch.ones(2), Name(text, 4)) for text in ("a", "bc", "a")))


@pytest.mark.parametrize("wrong", [(int, bool), (float, Size), (int, 3), (str, Shape)], ids=repr)
def test_new_of_a_base_refuses_classes_that_it_does_not_make(wrong) -> None:
    def program(x):
        base, cls = wrong
        try:
            return x, base.__new__(cls, 0)
        except TypeError as error:
            return x + 1, str(error)

    check(program, (torch.ones(2),))


def test_hash_of_an_instance_that_is_nan_is_that_of_the_object() -> None:
    def program(x):
        value = Metres("nan")
        return x + 1, hash(value) == object.__hash__(value)

    check(program, (torch.ones(2),))


class Divided(int):
    """A number without a quotient of two, and another index than itself."""

    def __truediv__(self, other: Any) -> Any:
        return NotImplemented

    __rtruediv__ = __truediv__

    def __index__(self) -> int:
        return 1


def test_operators_that_a_subclass_refuses_are_not_those_of_the_number() -> None:
    def program(x):
        try:
            return x, Divided(6) / Divided(3)
        except TypeError as error:
            return x + 1, str(error), Divided(6) / 2, operator.index(Divided(6))

    check(program, (torch.ones(2),), breaks=None)
