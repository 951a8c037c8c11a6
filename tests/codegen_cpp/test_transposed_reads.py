"""Kernels that read one buffer along rows and along columns, of sizes that the compiler unrolls:
g++ took such a kernel for one without effects, and dropped its call."""

from __future__ import annotations

import pytest
import torch

import weft

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.mark.parametrize("shape", [(8, 4), (8, 2), (4, 8), (16, 4), (8, 3)], ids=str)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_rows_and_columns_of_one_buffer(shape: tuple[int, int], dtype: torch.dtype) -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x * 6, x.t().to(dtype), x.to(dtype)

    x = torch.randn(shape)
    for result, expected in zip(weft.compile(program, dynamic=False)(x), program(x), strict=True):
        torch.testing.assert_close(result, expected, rtol=0, atol=0)
        assert result.stride() == expected.stride()
