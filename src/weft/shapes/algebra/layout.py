"""Contiguity of tensors with symbolic sizes, as conditions.

Place in the pipeline: PyTorch asks a `SymNode` these questions when a tensor with symbolic sizes
is made; each answer is a condition on the sizes and strides, a plain bool where the facts decide
it.

    >>> from weft.shapes.algebra.expr import symbol
    >>> n = symbol("n", 2)
    >>> is_contiguous((n, 8), (8, 1), int), is_contiguous((8, n), (1, 8), int)
    (True, False)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.shapes.algebra.expr import IntExpr, maximum
from weft.shapes.algebra.relation import Condition, and_, eq, ge, ne, or_

Sizes = Sequence[IntExpr]
Hint = Callable[[IntExpr], int]
Layout = Callable[[Sizes, Sizes, Hint], Condition]
"""A question about sizes and strides; ``hint`` returns a value in this call."""


def is_contiguous(sizes: Sizes, strides: Sizes, hint: Hint) -> Condition:
    """Row-major and without gaps; dimensions of one element may have any stride."""
    return _dense_in_order(sizes, strides, range(len(sizes) - 1, -1, -1))


def is_channels_last_contiguous_2d(sizes: Sizes, strides: Sizes, hint: Hint) -> Condition:
    """Without gaps in the order N, H, W, C."""
    return len(sizes) == 4 and _dense_in_order(sizes, strides, (1, 3, 2, 0))


def is_channels_last_contiguous_3d(sizes: Sizes, strides: Sizes, hint: Hint) -> Condition:
    """Without gaps in the order N, D, H, W, C."""
    return len(sizes) == 5 and _dense_in_order(sizes, strides, (1, 4, 3, 2, 0))


def _dense_in_order(sizes: Sizes, strides: Sizes, order: Sequence[int]) -> Condition:
    conditions: list[Condition] = []
    expected: IntExpr = 1
    for d in order:
        conditions.append(or_(eq(strides[d], expected), eq(sizes[d], 1)))
        expected = expected * sizes[d]
    return or_(and_(*conditions), *(eq(size, 0) for size in sizes))


def is_channels_last_strides_2d(sizes: Sizes, strides: Sizes, hint: Hint) -> Condition:
    """Whether strides grow in the order C, W, H, N (gaps allowed)."""
    return len(sizes) == 4 and _grows_in_order(sizes, strides, (1, 3, 2, 0))


def is_channels_last_strides_3d(sizes: Sizes, strides: Sizes, hint: Hint) -> Condition:
    """Whether strides grow in the order C, W, H, D, N (gaps allowed)."""
    return len(sizes) == 5 and _grows_in_order(sizes, strides, (1, 4, 3, 2, 0))


def _grows_in_order(sizes: Sizes, strides: Sizes, order: Sequence[int]) -> Condition:
    """Eager's test: ambiguous layouts (a stride of 0, one element in C or N) count as row-major."""
    conditions = [ne(strides[1], 0)]
    least: IntExpr = 0
    for d in order:
        conditions += [ne(sizes[d], 0), ge(strides[d], least)]
        if d == 0:
            conditions.append(ne(least, strides[1]))
        least = strides[d] * maximum(sizes[d], 1)
    return and_(*conditions)


def is_non_overlapping_and_dense(sizes: Sizes, strides: Sizes, hint: Hint) -> Condition:
    """Whether the dimensions, in the order of their strides' hints, leave no gap and no overlap."""
    order = sorted(range(len(sizes)), key=lambda d: (hint(sizes[d]) < 2, hint(strides[d])))
    return _dense_in_order(sizes, strides, order)
