"""Floats that C++ takes as plain ones and that change between calls: one artifact for all."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import weft

pytestmark = pytest.mark.usefixtures("fresh")

Program = Callable[[Tensor, float], Any]

PROGRAMS: dict[str, Program] = {
    "eps": lambda x, p: F.layer_norm(x, (4,), eps=p) + F.group_norm(x, 2, eps=p),
    "losses": lambda x, p: F.huber_loss(x, x * 3, delta=p) + F.smooth_l1_loss(x, x.exp(), beta=p),
    "margins": lambda x, p: F.margin_ranking_loss(x, x * 0.3, x.sign(), margin=p)
    + F.triplet_margin_loss(x, x * 2, x * 3, margin=p),
    "smoothed labels": lambda x, p: F.cross_entropy(x, torch.tensor([0, 1, 2]), label_smoothing=p),
    "distances": lambda x, p: torch.cdist(x, x * 2, p=p + 2) + F.pdist(x, p=p + 1).sum(),
    "norms": lambda x, p: torch.linalg.vector_norm(x, p) + torch.norm(x, p=p + 1, dim=1).sum(),
    "quantiles": lambda x, p: torch.quantile(x, p, dim=1) + torch.nanquantile(x, p),
    "replaced": lambda x, p: F.pad(torch.nan_to_num(x.log(), p, -p, p), (1, 1), value=p),
    "steps": lambda x, p: torch.trapezoid(x, dx=p) + torch.cumulative_trapezoid(x, dx=p).sum(),
    "single precision": lambda x, p: F.rms_norm(x, (4,), eps=p) + F.celu(x, p),
    "compared": lambda x, p: torch.isclose(x, x + 0.3, atol=p),
}


def results(program: Program, x: Tensor, p: float) -> list[Tensor]:
    """The result and the gradient."""
    torch.manual_seed(7)
    given = x.clone().requires_grad_()
    result = program(given, p)
    if not result.requires_grad:
        return [result]
    return [result.detach(), *torch.autograd.grad(result.sum(), given)]


def graphs(program: Program, numbers: Sequence[float], backend: str) -> int:
    """How many it takes to serve all numbers, each compared with eager."""
    compiled = weft.compile(program, backend=backend)
    for p in numbers:
        x = torch.randn(3, 4)
        expected, actual = results(program, x, p), results(compiled, x, p)
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5, equal_nan=True)
    assert weft.stats()["graph_breaks"] == 0
    return int(weft.stats()["graphs"])


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_float_that_changes_needs_no_variant(name: str) -> None:
    assert graphs(PROGRAMS[name], (0.1, 0.2, 0.3, 0.47, 0.9), "inductor") == 2


def test_random_numbers_take_floats_that_change() -> None:
    def drawn(x: Tensor, p: float) -> Tensor:
        noise = torch.empty(3, 4).normal_(p, 2 * p) + torch.empty(3, 4).uniform_(p, p + 1)
        return F.dropout(x, p, training=True) + noise.exponential_(p)

    assert graphs(drawn, (0.1, 0.2, 0.3, 0.47, 0.9), "aot_eager") == 2


def test_numbers_that_an_operator_treats_in_their_own_way_have_variants() -> None:
    def dropped(x: Tensor, p: float) -> Tensor:
        return F.dropout(x * 2, p, training=True)

    assert graphs(dropped, (0.1, 0.2, 0.0, 1.0, 0.3, 0.9), "aot_eager") == 4
    with pytest.raises(ValueError, match="between 0 and 1"):
        weft.compile(dropped)(torch.ones(3), 1.5)


def test_a_float_that_data_decides_is_carried_too() -> None:
    def pulled(x: Tensor, p: float) -> Tensor:
        return F.huber_loss(x, x * p, delta=1 / math.sqrt(x.shape[0])) + p

    compiled = weft.compile(pulled, backend="aot_eager", dynamic=True)
    for n in (3, 5, 9, 14):
        x = torch.randn(n)
        torch.testing.assert_close(compiled(x, 0.3), pulled(x, 0.3))
    assert weft.stats()["graphs"] == 1


def test_images_resized_by_a_factor_that_keeps_their_size() -> None:
    """The gradient of bicubic scaling copies then, whatever the factor; the formula did not."""

    def resized(x: Tensor, p: float) -> Tensor:
        return F.interpolate(x[None, None], scale_factor=p, mode="bicubic")

    assert graphs(resized, (1.1, 1.2, 1.21, 1.22), "inductor") == 2


def test_a_float_that_meets_a_symbolic_size_in_the_operator() -> None:
    """`label_smoothing / n_classes` was computed with what stood for the number."""
    compiled = weft.compile(lambda x, y, p: F.cross_entropy(x, y, label_smoothing=p),
                            backend="aot_eager", dynamic=True)
    for classes, p in ((5, 0.1), (7, 0.3), (4, 0.2)):
        x, y = torch.randn(3, classes), torch.arange(3)
        torch.testing.assert_close(compiled(x, y, p), F.cross_entropy(x, y, label_smoothing=p))
    assert weft.stats()["graphs"] == 1


def test_a_float_that_one_operator_hands_on_and_the_backward_of_another_computes_with() -> None:
    """That of celu divides by it as a float32: it was taken for a constant there."""

    def program(x: Tensor, p: float) -> Tensor:
        return F.huber_loss(x, x * 3, delta=p) + F.celu(x, p)

    assert graphs(program, (0.1, 0.2, 0.3), "aot_eager") == 2


def _averages(x: Tensor, p: float) -> tuple[Tensor, float]:
    average = rate = 1.0
    for n in range(150):
        average = average * 0.9 + p / (n + 2)
        rate = rate / p
    return x * average, rate


def test_a_float_that_many_operations_make_is_computed_one_by_one() -> None:
    """As one expression it had more parentheses than Python takes, and twice the length with each
    division."""
    compiled = weft.compile(_averages, backend="eager", dynamic=True)
    for p in (0.96, 1.07):
        expected, found = _averages(torch.ones(3), p), compiled(torch.ones(3), p)
        assert torch.equal(found[0], expected[0]) and found[1] == expected[1]
