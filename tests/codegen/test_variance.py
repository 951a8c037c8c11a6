"""Variances of long rows in pieces, as on GPUs: exact also far from zero."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import weft
from weft.codegen import occupancy
from weft.codegen.lowering import variance


@pytest.fixture(autouse=True)
def cut(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The rows that were cut."""
    found: list[Any] = []
    inner = variance._combine_pieces

    def combined(cx: Any, x: Any, dims: Any, pieces: Any, *rest: Any) -> Any:
        found.append(pieces)
        return inner(cx, x, dims, pieces, *rest)

    monkeypatch.setattr(variance, "CUT_ON", {"cpu"})
    monkeypatch.setattr(occupancy, "WORTH_A_KERNEL", 0)
    monkeypatch.setattr(variance, "_combine_pieces", combined)
    yield found
    weft.reset()


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_statistics_of_a_batch_norm(layout: torch.memory_format, cut: list[Any]) -> None:
    torch.manual_seed(0)
    x = (torch.randn(8, 6, 64, 64) * 3 + 50).to(memory_format=layout)
    norm = nn.BatchNorm2d(6)
    exact = copy.deepcopy(norm).double()
    torch.testing.assert_close(weft.compile(norm)(x), exact(x.double()).float(), rtol=0, atol=1e-5)
    for name in ("running_mean", "running_var"):
        wanted = getattr(exact, name).float()
        torch.testing.assert_close(getattr(norm, name), wanted, rtol=1e-6, atol=0)
    assert len(cut) == 1


@pytest.mark.parametrize(
    ("shape", "dims", "n_cut"),
    [((7, 3, 1024), [0, 2], 3), ((2, 70000), [1], 3), ((99991,), [0], 0), ((5, 31, 64), [2], 0),
     ((4, 256, 5, 64), [1, 3], 3), ((12, 40, 40, 3), [0, 1, 2], 3)],
)
def test_variances_over_any_dimensions(
    shape: tuple[int, ...], dims: list[int], n_cut: int, cut: list[Any]
) -> None:
    torch.manual_seed(1)
    x = torch.randn(shape) + 1000

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return *torch.var_mean(x, dims), x.std(dims, keepdim=True), x.var(dims, correction=0)

    exact = program(x.double())
    for found, wanted in zip(weft.compile(program)(x), exact, strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=0)
    assert len(cut) == n_cut
