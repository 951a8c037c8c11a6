"""How tensors are spelled in call sequences."""

from __future__ import annotations

import pytest

from weft.codegen.call_sequence import plain_strides


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [
        ((2, 1, 1, 8), (24, 1, 8, 1), (24, 8, 8, 1)),
        ((2, 3), (3, 1), (2 + 1, 1)),
        ((4, 1), (1, 1), (1, 1)),
        ((1, 4, 1, 2), (7, 1, 0, 4), (4, 1, 8, 4)),
        ((), (), ()),
    ],
)
def test_strides_of_dimensions_of_size_one(
    shape: tuple[int, ...], strides: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    made = plain_strides(shape, strides)
    assert made == expected
    pairs = zip(shape, made, strides, strict=True)
    assert all(new == old for n, new, old in pairs if n != 1), "only size 1 may change"
