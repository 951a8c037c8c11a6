"""Products computed in aligned parts equal the whole, for both layouts of the right matrix."""

from __future__ import annotations

import pytest
import torch

from weft.runtime.aligned_matmul import (
    SMALLEST_BLOCK,
    aligned_mm,
    depth_in_two,
    grouped_rows,
)

BLOCK = SMALLEST_BLOCK


@pytest.mark.parametrize("columns", [3, 1001, BLOCK, BLOCK + 1, 2 * BLOCK + 13])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("with_bias", [False, True])
def test_equals_the_whole_product(columns: int, transposed: bool, with_bias: bool) -> None:
    torch.manual_seed(0)
    left = torch.randn(5, 16, dtype=torch.float64)
    right = torch.randn(columns, 16, dtype=torch.float64).t()
    right = right if transposed else right.contiguous()
    bias = torch.randn(columns, dtype=torch.float64) if with_bias else None
    expected = left @ right if bias is None else torch.addmm(bias, left, right)
    result = aligned_mm(left, right, bias)
    torch.testing.assert_close(result, expected)
    assert result.is_contiguous()


@pytest.mark.parametrize("columns", [17, 100, 1001, 1002, 1004, 1007])
@pytest.mark.parametrize("rows", [3, 8, 29])
def test_groups_of_rows_equal_the_whole_product(rows: int, columns: int) -> None:
    torch.manual_seed(0)
    left = torch.randn(rows, 16, dtype=torch.float64)
    right = torch.randn(columns, 16, dtype=torch.float64).t()
    torch.testing.assert_close(grouped_rows(left, right), left @ right)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("depth", [16, 21, 3])
def test_depth_in_two(depth: int, with_bias: bool) -> None:
    left, right = torch.randn(8, depth), torch.randn(depth, 24)
    bias = torch.randn(24) if with_bias else None
    expected = left @ right if bias is None else torch.addmm(bias, left, right)
    torch.testing.assert_close(depth_in_two(left, right, bias), expected)
