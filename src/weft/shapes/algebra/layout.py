"""Contiguity of tensors with symbolic sizes, as conditions.

Place in the pipeline: below ``symnode.py``. Each answer is a condition on the sizes and strides, a
plain bool where the facts decide it. (PyTorch asks a `SymNode` only the second question; the others
it answers by comparisons.)

    >>> from weft.shapes.algebra.expr import symbol
    >>> n = symbol("n", 2)
    >>> is_contiguous((n, 8), (8, 1)), is_contiguous((8, n), (1, 8))
    (True, False)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.shapes.algebra.expr import IntExpr
from weft.shapes.algebra.relation import Condition, and_, eq, or_

Sizes = Sequence[IntExpr]
Hint = Callable[[IntExpr], int]
"""Returns a value in this call."""


def is_contiguous(sizes: Sizes, strides: Sizes) -> Condition:
    """Row-major and without gaps; dimensions of one element may have any stride."""
    return _dense_in_order(sizes, strides, range(len(sizes) - 1, -1, -1))


def _dense_in_order(sizes: Sizes, strides: Sizes, order: Sequence[int]) -> Condition:
    conditions: list[Condition] = []
    expected: IntExpr = 1
    for d in order:
        conditions.append(or_(eq(strides[d], expected), eq(sizes[d], 1)))
        expected = expected * sizes[d]
    return or_(and_(*conditions), *(eq(size, 0) for size in sizes))


def is_non_overlapping_and_dense(sizes: Sizes, strides: Sizes, hint: Hint) -> Condition:
    """Whether the dimensions, in the order of their strides' hints, leave no gap and no overlap."""
    order = sorted(range(len(sizes)), key=lambda d: (hint(sizes[d]) < 2, hint(strides[d])))
    return _dense_in_order(sizes, strides, order)
