"""A constant mask that hides nothing is dropped; every other mask counts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import weft
from weft.aot.tracing.attention import hides_nothing


def all_true(query: torch.Tensor) -> torch.Tensor:
    return (torch.arange(6) + 0)[None, None, :, None].ge(0).expand(2, 1, 6, 6)


def causal(query: torch.Tensor) -> torch.Tensor:
    return torch.ones(6, 6, dtype=torch.bool).tril()


def random(query: torch.Tensor) -> torch.Tensor:
    return torch.rand(6, 6) >= 0


def from_input(query: torch.Tensor) -> torch.Tensor:
    return query.sum() * torch.zeros(6, 6) == 0


def filled(query: torch.Tensor) -> torch.Tensor:
    mask = torch.zeros(6, 6)
    mask.masked_fill_(torch.ones(6, 6, dtype=torch.bool).triu(1), -float("inf"))
    return mask


def filled_in_part(query: torch.Tensor) -> torch.Tensor:
    mask = torch.ones(6, 6, dtype=torch.bool)
    mask[:, 4:] = False
    return mask


@pytest.mark.parametrize(
    ("mask", "dropped"), [(all_true, True), (causal, False), (random, False), (from_input, False),
                          (filled, False), (filled_in_part, False)]
)
def test_masks(mask: Callable[[torch.Tensor], torch.Tensor], dropped: bool) -> None:
    seen: list[bool] = []

    def look(gm: torch.fx.GraphModule, example_inputs: list[torch.Tensor]) -> Callable[..., object]:
        (node,) = [n for n in gm.graph.nodes if "scaled_dot_product" in str(n.target)]
        seen.append(hides_nothing(node.kwargs["attn_mask"]))
        return weft.compile_fx(gm, example_inputs)

    def program(query: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(query, query, query, mask(query))

    query = torch.randn(2, 3, 6, 8)
    result = weft.compile(program, backend=look)(query)
    torch.testing.assert_close(result, program(query), rtol=1e-5, atol=1e-5)
    assert seen == [dropped]
