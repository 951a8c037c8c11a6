"""Layouts of tensors: the strides of dense ones, and whether strides leave gaps.

Place in the pipeline: below ``symnode.py``. Sizes are ints, expressions or PyTorch's symbolic ints.
Whether symbolic ones are contiguous is a condition on sizes and strides, a plain bool where the
facts decide it. (PyTorch asks a `SymNode` only for `is_non_overlapping_and_dense`; it answers other
such questions by comparisons.)

    >>> from weft.shapes.algebra.expr import symbol
    >>> n = symbol("n", 2)
    >>> row_major((n, 8)), channels_last((2, 3, n, 4))
    ((8, 1), (12*n, 1, 12, 3))
    >>> is_contiguous((n, 8), (8, 1)), is_contiguous((8, n), (1, 8))
    (True, False)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from weft.shapes.algebra.expr import IntExpr
from weft.shapes.algebra.relation import Condition, and_, eq, or_

Sizes = Sequence[IntExpr]

def eq_known(left: object, right: object) -> bool:
    """Whether two sizes are the same expression or number."""
    return left is right or bool(left == right)


Hint = Callable[[IntExpr], int]
"""Returns a value in this call."""


def dense_strides(sizes: Sequence[Any], order: Iterable[int]) -> tuple[Any, ...]:
    """Strides of a tensor without gaps whose dimensions lie in memory in this order, innermost
    first; 0 for other dimensions. As in PyTorch, a size of 0 counts as 1."""
    strides: list[Any] = [0] * len(sizes)
    step: Any = 1
    for d in order:
        strides[d] = step
        step = step * (1 if type(sizes[d]) is int and sizes[d] < 1 else sizes[d])
    return tuple(strides)


def row_major(sizes: Sequence[object]) -> tuple[Any, ...]:
    """Strides of a contiguous tensor."""
    return dense_strides(sizes, range(len(sizes) - 1, -1, -1))


def channels_last(sizes: Sequence[object]) -> tuple[Any, ...]:
    """Strides of an image (batch, channels, pixels) whose channels lie next to each other."""
    return dense_strides(sizes, (1, *range(len(sizes) - 1, 1, -1), 0))


def has_strides(sizes: Sequence[object], strides: Sequence[object], wanted: Sequence[object],
                same: Callable[[Any, Any], bool] = eq_known) -> bool:
    """Whether elements are laid out as with the wanted strides; those of dimensions of one element,
    and of tensors without elements, do not matter.

        >>> has_strides((1, 8), (5, 1), (8, 1))
        True
    """
    return any(same(n, 0) for n in sizes) or all(
        same(stride, want) or same(n, 1)
        for n, stride, want in zip(sizes, strides, wanted, strict=True))


def is_row_major(sizes: Sequence[object], strides: Sequence[object]) -> bool:
    """Whether the strides are known to be those of contiguous memory; dimensions of one element may
    have any."""
    step: Any = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if not eq_known(size, 1):
            if not eq_known(stride, step):
                return False
            step = step * size
    return True


def permuted_row_major(sizes: Sequence[object], strides: Sequence[object]) -> bool:
    """Whether the strides are those of row-major memory in another order: no gaps, no overlap."""
    step: Any = 1
    rest = [d for d, n in enumerate(sizes) if not eq_known(n, 1)]
    while rest:
        inner = next((d for d in reversed(rest) if eq_known(strides[d], step)), None)
        if inner is None:
            return False
        step = step * sizes[inner]
        rest.remove(inner)
    return True


def suggests_channels_last(sizes: Sequence[object], strides: Sequence[object]) -> bool:
    """Whether PyTorch takes strides, which may leave gaps, for those of an image whose channels lie
    next to each other; ambiguous ones count as row-major.

        >>> suggests_channels_last((2, 4, 3, 3), (72, 1, 24, 8))     # half of the channels
        True
        >>> suggests_channels_last((2, 4, 1, 1), (4, 1, 1, 1))
        False
    """
    if strides[1] == 0 or any(size == 0 for size in sizes):
        return False
    least: Any = 0
    for d in (1, *range(len(sizes) - 1, 1, -1)):
        if strides[d] < least:
            return False
        least = strides[d] * sizes[d]
    return bool(strides[0] >= least) and bool(least != strides[1])


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
