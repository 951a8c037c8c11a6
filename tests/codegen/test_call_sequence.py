"""How tensors are spelled in call sequences."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import weft
from weft.codegen.calls.bindings import binding_of
from weft.codegen.calls.call_sequence import plain_strides


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


def test_library_calls_use_the_binding_that_can_mean_nothing_else() -> None:
    aten = torch.ops.aten
    assert binding_of(aten.convolution.default) is torch.convolution
    other = [aten.sort.default, aten.zeros.default, aten.mse_loss.default, aten.relu_.default,
             aten.index_put.default]  # its list of indices may have None
    assert [binding_of(op) for op in other] == [None] * 5


@pytest.mark.parametrize(
    "function",
    [
        lambda a, b: torch.cat([a, b], 1),
        lambda a, b: torch.diag_embed(a) + 1,
        lambda a, b: (a * b, (a * b).t()),
    ],
    ids=["cat", "diag_embed", "aliases"],
)
def test_complex_results_are_laid_out_by_copies(function: Callable[..., object]) -> None:
    inputs = [torch.randn(2, 3, dtype=torch.complex64, requires_grad=True) for _ in range(2)]
    expected, given = function(*inputs), weft.compile(function, fullgraph=True)(*inputs)
    torch.testing.assert_close(given, expected)
    torch.testing.assert_close(gradients(given, inputs), gradients(expected, inputs))


def gradients(results: object, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    first = results[0] if isinstance(results, tuple) else results
    found = torch.autograd.grad(first.abs().sum(), inputs, allow_unused=True)
    return [g for g in found if g is not None]
