"""What operators ask of data is answered by what is expected of it, and tested when graphs run.

Sizes are expected to be neither 0 nor 1, and `bincount(minlength=n)` to count n classes; a call
with other data runs eagerly, before anything has happened.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pad_sequence

import weft
from weft.shapes.algebra.expr import symbol
from weft.shapes.algebra.facts import Facts
from weft.shapes.algebra.relation import eq

BACKENDS = ("eager", "aot_eager", "inductor")
Tensor = torch.Tensor


def ints(*numbers: int) -> Tensor:
    return torch.tensor(numbers)


def run(function: Callable[..., Any], args: tuple[Any, ...]) -> list[Tensor]:
    """The results and the gradients of floating inputs, or the error's type."""
    given = [a.clone().requires_grad_(a.is_floating_point()) for a in args]
    torch.manual_seed(3)
    result = function(*given)
    results = [r for r in (result if isinstance(result, tuple) else (result,))]
    total = sum(((r * r).sum() for r in results if r.requires_grad), torch.zeros(()))
    if total.requires_grad:
        total.backward()
    return [r.detach() for r in results] + [g.grad for g in given if g.grad is not None]


def check(function: Callable[..., Any], backend: str, *calls: tuple[Any, ...], breaks: int = 0
          ) -> None:
    weft.reset()
    compiled = weft.compile(function, backend=backend)
    for args in calls:
        for expected, found in zip(run(function, args), run(compiled, args), strict=True):
            assert expected.shape == found.shape and expected.dtype == found.dtype
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4, equal_nan=True)
    stats = weft.stats()
    assert stats["graph_breaks"] == breaks
    if not breaks:
        assert (stats["graphs"], stats["recompiles"]) == (1, 0)


X = torch.arange(32.0).reshape(8, 4) / 32
W = torch.linspace(-1, 1, 60).reshape(3, 4, 5)
EXPERTS = [(X, W, e) for e in (ints(0, 2, 1, 1, 0, 2, 2, 1), ints(*[0] * 8), ints(*[2] * 8),
                               ints(0, 0, 0, 0, 0, 0, 0, 1), ints(1, 1, 1, 1, 1, 1, 1, 2))]
COUNTS = [(X, c) for c in (ints(3, 2, 3), ints(8, 0, 0), ints(1, 1, 6), ints(0, 1, 7))]


def slices_of_sorted_tokens(x: Tensor, w: Tensor, expert: Tensor) -> Tensor:
    order = expert.argsort(stable=True)
    outs, start = [], 0
    for i, n in enumerate(torch.bincount(expert, minlength=3).tolist()):
        outs.append(x[order][start : start + n] @ w[i])
        start += n
    return torch.zeros(8, 5).index_copy(0, order, torch.cat(outs))


def split_by_counts(x: Tensor, w: Tensor, expert: Tensor) -> Tensor:
    order = expert.argsort(stable=True)
    parts = torch.split(x[order], torch.bincount(expert, minlength=3).tolist())
    return torch.cat([p @ w[i] for i, p in enumerate(parts)])[order.argsort()]


def slices_written_between_tensors(x: Tensor, w: Tensor, expert: Tensor) -> Tensor:
    ends = torch.bincount(expert, minlength=3).cumsum(0)
    ends = torch.cat([ends.new_zeros(1), ends])
    x, out = x[expert.argsort(stable=True)], torch.zeros(8, 5)
    for i in range(3):
        start, end = ends[i], ends[i + 1]
        out[start:end] = x[start:end] @ w[i]
    return out


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "program", [slices_of_sorted_tokens, split_by_counts, slices_written_between_tensors])
def test_experts_that_get_all_tokens_one_or_none(program: Any, backend: str) -> None:
    check(program, backend, *EXPERTS)


def padded_pieces(x: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    parts = x.split(counts.tolist())
    return pad_sequence(parts, batch_first=True), torch.stack([p.sum(0) for p in parts])


def stacked_pieces(x: Tensor, counts: Tensor) -> Tensor:
    longest, start, rows = int(counts.max()), 0, []
    for n in counts.tolist():
        rows.append(F.pad(x[start : start + n], (0, 0, 0, longest - n)))
        start += n
    return torch.stack(rows)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [padded_pieces, stacked_pieces])
def test_pieces_of_known_number_and_unknown_length(program: Any, backend: str) -> None:
    check(program, backend, *COUNTS)


@pytest.mark.parametrize("backend", BACKENDS)
def test_narrow_from_a_number_in_a_tensor(backend: str) -> None:
    def narrowed(x: Tensor, place: Tensor) -> Tensor:
        start, length = place.tolist()
        return x.narrow(0, start, length) * 2

    places = ints(3, 2), ints(0, 0), ints(1, 1), ints(0, 8), ints(-3, 2)
    check(narrowed, backend, *((X, place) for place in places))


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_hot_of_as_many_classes_as_the_data_has(backend: str) -> None:
    def shares(classes: Tensor) -> Tensor:
        return F.one_hot(classes, int(classes.max()) + 1).float().mean(0)

    check(shares, backend, (ints(0, 3, 1),), (ints(0, 0, 0),), (ints(5, 1, 1),))


def test_other_data_than_expected_runs_eagerly_and_in_the_end_by_another_graph() -> None:
    def counted(x: Tensor) -> list[int]:
        return torch.bincount(x, minlength=2).tolist()

    weft.reset()
    compiled = weft.compile(counted, backend="eager")
    assert compiled(ints(0, 1, 1)) == [1, 2]
    for n in range(2, 24):
        assert compiled(ints(0, n, n)) == counted(ints(0, n, n))
    assert weft.stats()["graph_breaks"] == 1
    assert compiled(ints(0, 1, 1)) == [1, 2]


def test_eager_run_draws_the_same_random_numbers() -> None:
    def noisy(x: Tensor, classes: Tensor) -> Tensor:
        x = F.dropout(x, 0.5)
        return x + torch.tensor(torch.bincount(classes, minlength=3).tolist()).sum()

    check(noisy, "eager", (X, ints(0, 2)), (X, ints(0, 5)), (X, ints(1, 1)))


def test_what_a_graph_wrote_is_undone_where_data_is_not_as_expected() -> None:
    def written(total: Tensor, classes: Tensor) -> Tensor:
        total.add_(1)
        return total + sum(torch.bincount(classes, minlength=3).tolist())

    weft.reset()
    compiled = weft.compile(written, backend="eager")
    for classes in (ints(0, 2), ints(4), ints(1, 1, 1)):
        expected, found = torch.zeros(2), torch.zeros(2)
        assert torch.equal(written(expected, classes), compiled(found, classes))
        assert torch.equal(expected, found)
    assert weft.stats()["graph_breaks"] == 0


def rows_of_each_class(x: Tensor, label: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for k in range(3):
        rows = (label == k).nonzero().squeeze(-1)
        if rows.numel() == 0:
            continue
        out[rows] = x[rows] * (k + 1)
    return out


def loss_of_positive_rows(x: Tensor, label: Tensor) -> Tensor:
    rows = torch.nonzero(label == 1).flatten()
    if not len(rows):
        return x.sum() * 0
    return F.smooth_l1_loss(x[rows], x[rows] * 2) / len(rows)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [rows_of_each_class, loss_of_positive_rows])
def test_branch_on_there_being_no_rows(program: Any, backend: str) -> None:
    labels = ints(0, 1, 1, 2, 2, 0, 0, 1), ints(*[1] * 8), ints(*[2] * 8), ints(1, *[0] * 7)
    check(program, backend, *((X, label) for label in labels))


def test_loop_that_a_data_dependent_size_ends_breaks() -> None:
    def suppressed(x: Tensor, near: Tensor) -> Tensor:
        left, kept = torch.arange(len(x)), []
        while left.numel() > 0:
            kept.append(left[0])
            left = left[1:][~near[left[0], left[1:]]]
        return x[torch.stack(kept)]

    weft.reset()
    compiled = weft.compile(suppressed, backend="eager")
    for near in (torch.eye(8) > 1, torch.ones(8, 8) > 0, torch.ones(8, 8).triu() > 0):
        assert torch.equal(compiled(X, near), suppressed(X, near))
    assert 1 <= weft.stats()["graph_breaks"] <= 4


def test_scattered_into_a_tensor_whose_stride_depends_on_data() -> None:
    def padded(x: Tensor, lengths: Tensor) -> Tensor:
        longest = int(lengths.max())
        mask = torch.arange(longest)[None] < lengths[:, None]
        out = x.new_zeros(len(lengths), longest, x.shape[1])
        out[mask] = x
        return out

    check(padded, "eager", *COUNTS)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradient_of_a_mean_over_nothing(backend: str) -> None:
    def loss(x: Tensor, label: Tensor) -> Tensor:
        return F.mse_loss(x[label == 1], x[label == 1] * 2)

    labels = ints(0, 1, 1, 2, 2, 0, 0, 1), ints(*[0] * 8), ints(1, *[0] * 7)
    check(loss, backend, *((X, label) for label in labels))


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradient_of_what_is_written_at_a_mask(backend: str) -> None:
    def written(x: Tensor, label: Tensor) -> Tensor:
        out = torch.zeros(2, 8, 4)
        out[torch.stack([label == 0, label != 0])] = x
        return out.cumsum(1)

    check(written, backend, (X, ints(0, 1, 1, 0, 0, 0, 0, 1)), (X, ints(*[0] * 8)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradient_of_a_loss_of_an_empty_tensor(backend: str) -> None:
    check(F.mse_loss, backend, (X[:0], X[:0]))


@pytest.mark.parametrize("backend", BACKENDS)
def test_squeezed_dimension_that_has_one_element_in_some_calls(backend: str) -> None:
    def squeezed(x: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
        rows = x[label == 1]
        return rows.squeeze() * 2, rows.squeeze(0).sum(-1)

    labels = ints(0, 1, 1, 2, 2, 0, 0, 1), ints(1, *[0] * 7), ints(*[0] * 8)
    check(squeezed, backend, *((X, label) for label in labels))


def test_a_symbol_stands_for_later_ones_never_for_earlier_ones() -> None:
    younger = symbol("u91", 0, 77, "unbacked")
    older, other = symbol("u90", 0, 77, "unbacked"), symbol("u89", 0, 77, "unbacked")
    facts = Facts()
    facts.learn(eq(older + other, younger))
    assert facts.simplify(younger) == older + other and facts.simplify(older) is older


def test_data_that_is_seldom_unexpected_leaves_the_graph_whole() -> None:
    weft.reset()
    compiled = weft.compile(lambda x: x[x > 0].softmax(0), backend="eager")
    few, many = -torch.ones(4), torch.arange(4.0)
    for _ in range(20):
        for x in (few, *[many] * 12):
            assert compiled(x).shape == x[x > 0].shape
    assert weft.stats()["graphs"] == 1
