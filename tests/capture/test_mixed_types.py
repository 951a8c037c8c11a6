"""Operators that refuse operands of two types, which their meta kernels take: what was written and
drawn before is there once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
import torch
from torch.nn import functional as F

import weft

pytestmark = pytest.mark.usefixtures("fresh")
PLACES: Final = torch.arange(3)

OPERATORS: Final[dict[str, tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...]]]] = {
    "mm": (torch.mm, (2, 3), (3, 2)),
    "bmm": (torch.bmm, (2, 2, 3), (2, 3, 2)),
    "addmm": (lambda a, b: torch.addmm(a.new_ones(2, 2), a, b), (2, 3), (3, 2)),
    "einsum": (lambda a, b: torch.einsum("ij,jk->ik", a, b), (2, 3), (3, 2)),
    "linear": (F.linear, (2, 3), (4, 3)),
    "conv1d": (F.conv1d, (1, 3, 8), (4, 3, 3)),
    "conv2d": (F.conv2d, (1, 3, 8, 8), (4, 3, 3, 3)),
    "conv_transpose1d": (F.conv_transpose1d, (1, 3, 8), (3, 4, 3)),
    "depthwise convolution": (lambda a, b: F.conv2d(a, b, groups=6), (1, 6, 8, 8), (6, 1, 3, 3)),
    "cdist": (torch.cdist, (2, 3), (2, 3)),
    "grid_sample": (lambda a, b: F.grid_sample(a, b, align_corners=False),
                    (1, 1, 4, 4), (1, 2, 2, 2)),
    "layer_norm": (lambda a, b: F.layer_norm(a, (3,), b), (2, 3), (3,)),
    "batch_norm": (lambda a, b: F.batch_norm(a, b, b), (2, 3), (3,)),
    "embedding_bag": (lambda a, b: F.embedding_bag(PLACES[None, :2], a, per_sample_weights=b,
                                                   mode="sum"), (3, 3), (1, 2)),
    "index_add": (lambda a, b: a.index_add(0, PLACES, b), (3,), (3,)),
    "index_put": (lambda a, b: a.index_put((PLACES,), b), (3,), (3,)),
    "complex": (torch.complex, (3,), (3,)),
    "binary_cross_entropy": (F.binary_cross_entropy, (3,), (3,)),
}


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("name", OPERATORS)
def test_what_was_written_before_is_written_once(name: str, backend: str) -> None:
    operator, left, right = OPERATORS[name]

    def program(a: torch.Tensor, b: torch.Tensor, seen: torch.Tensor) -> Any:
        seen.add_(torch.rand(2))
        return operator(a, b)

    def outcome(function: Callable[..., Any]) -> Any:
        torch.manual_seed(0)
        seen = torch.zeros(2)
        with pytest.raises(RuntimeError) as error:
            function(torch.ones(left), torch.ones(right, dtype=torch.float64), seen)
        return error.type, seen.tolist(), torch.rand(1).item()

    compiled = weft.compile(program, backend=backend)
    with weft.config.patch(fallback_random=True):
        for _ in range(2):
            assert outcome(compiled) == outcome(program)
