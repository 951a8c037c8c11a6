"""Functions of `math` on numbers that capture does not know."""

from __future__ import annotations

import math

import torch

from tests.capture.harness import check


def test_symbolic_numbers_raise_where_plain_ones_do() -> None:
    def f(x, number, name):
        try:
            if name == "shift":
                return 2 << number
            return math.floor(x.shape[0], number) if name == "floor" else x.shape[0].is_integer()
        except (TypeError, AttributeError) as error:
            return str(error)

    calls = [(torch.ones(n), n / 2 + 0.25, name) for n in (3, 4, 5)
             for name in ("shift", "floor", "is_integer")]
    check(f, *calls, breaks=None)


def test_functions_of_math_take_tensors_without_dimensions() -> None:
    check(lambda x: (math.exp(x[0]), math.sqrt(x.sum()) + 1, x * 2), (torch.ones(3),), graphs=1)
