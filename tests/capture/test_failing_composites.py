"""Composite operators that raise leave what was written before them written once, in any mode.

In inference mode PyTorch calls them as a whole, and nothing knew that their parts may raise.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import weft

MODES: dict[str, Callable[[], Any]] = {
    "gradients": nullcontext, "no_grad": torch.no_grad, "inference": torch.inference_mode}
WHOLE = torch.arange(9.0).reshape(3, 3)
FAILING: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "linear": lambda x, n: F.linear(x, WHOLE.double()),
    "matmul": lambda x, n: x.expand(2, 3, 3) @ WHOLE.double(),
    "cross_entropy": lambda x, n: F.cross_entropy(x, n),
    "nll_loss of images": lambda x, n: F.nll_loss(x[None, :, :, None], n[None, :, None]),
    "one_hot": lambda x, n: F.one_hot(n, 3) * x,
    "embedding": lambda x, n: F.embedding(n, x),
    "matrix_power": lambda x, n: torch.linalg.matrix_power(x * 0, -1),
    "index_select": lambda x, n: torch.index_select(x, 0, n) + 1,
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", FAILING)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_what_was_written_before_an_error_is_written_once(
        name: str, mode: str, backend: str) -> None:
    def program(x: torch.Tensor, n: torch.Tensor, seen: torch.Tensor) -> Any:
        seen.add_(1)
        y = F.dropout(x) * seen.sum()
        seen.add_(torch.rand(2))
        return y + FAILING[name](x, n)

    def outcome(function: Callable[..., Any]) -> Any:
        torch.manual_seed(0)
        seen = torch.zeros(2)
        with MODES[mode]():
            try:
                return function(WHOLE.clone(), torch.tensor([0, 7, 1]), seen), seen.tolist()
            except (RuntimeError, IndexError) as error:
                return type(error), seen.tolist(), torch.rand(1).item()

    compiled = weft.compile(program, backend=backend)
    with weft.config.patch(fallback_random=True):
        for _ in range(2):
            assert outcome(compiled) == outcome(program)
            assert isinstance(outcome(program)[0], type)
