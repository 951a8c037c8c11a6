"""Branches on data of which one way only raises: a check in the graph, and eager when it fails."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import weft
from tests.capture.harness import check, compare, run


def test_assertions_on_tensors():
    def f(x):
        y = x * 2
        torch._assert((y > 0).all(), f"bad {tuple(y.shape)}")
        if y.isnan().any():
            raise ValueError("nan")
        torch._assert(y.sum() < 100, "large")
        return y + 1

    calls = [torch.ones(3), -torch.ones(3), torch.full((3,), 40.0), torch.ones(3)]
    check(f, *[(x,) for x in calls], graphs=1)


def test_asynchronous_assertions_stay_in_the_graph():
    def f(x):
        torch._assert_async((x >= 0).all(), "below zero")
        torch._assert_async((x <= 9).all(), assert_msg="above nine")
        torch._assert_async(x.sum() >= 1)
        return x.sqrt()

    calls = [torch.ones(3), -torch.ones(3), torch.full((3,), 10.0), torch.zeros(3), torch.ones(3)]
    check(f, *[(x,) for x in calls], graphs=1)
    for backend in ("aot_eager", "inductor"):
        compiled = weft.compile(f, backend=backend, fullgraph=True)
        for x in calls:
            compare(run(f, (x,), {}), run(compiled, (x,), {}))


def test_failing_check_is_caught_by_the_program():
    def f(x):
        try:
            if not (x > 0).all():
                raise ValueError
        except ValueError:
            return x - 1
        return x + 1

    check(f, (torch.ones(2),), (-torch.ones(2),), breaks=0)


def test_effects_before_a_failing_check_happen_once():
    def make():
        seen = []

        def f(x):
            seen.append(1)
            y = x * 2
            if (y < 0).any():
                raise ValueError(f"{len(seen)} calls")
            seen.append(2)
            return y

        return f

    check(lambda x: x, (torch.ones(2),), (-torch.ones(2),), (torch.ones(2),), make=make)


@pytest.mark.parametrize("backend", ["eager", "inductor", "custom"])
def test_a_failing_check_undoes_what_the_graph_wrote(backend):
    """Such graphs ended before the check."""
    def f(x, w, mean, var):
        w.add_(1)
        y = F.batch_norm(x, mean, var, training=True)
        row = w[0]
        if (x < 0).any():
            raise ValueError(f"negative {w.sum().item()} {mean.sum().item()}")
        row.mul_(2)
        return y + w, row, torch.rand(2)

    weft.reset()
    compiled = weft.compile(f, backend=backend if backend != "custom" else lambda gm, _: gm.forward)
    state = torch.zeros(2, 2), torch.zeros(2), torch.ones(2)
    for x in (torch.eye(2), -torch.ones(2, 2), torch.eye(2)):
        compare(run(f, (x, *state), {}), run(compiled, (x, *state), {}))
    stats = weft.stats()
    assert (stats["graphs"], stats["graph_breaks"]) == (1, 0)


def test_writes_that_autograd_sees_end_the_graph_before_a_check():
    def f(x, w):
        w.add_(x)
        if (x < 0).any():
            raise ValueError("negative")
        return x * w

    calls = [(x.requires_grad_(), torch.zeros(2)) for x in (torch.ones(2), -torch.ones(2))]
    check(f, *calls, breaks=1)


def test_a_check_that_fails_where_an_inlined_function_catches_it():
    """The error was reported as one of weft's."""
    def positive(x):
        if not (x > 0).all():
            raise ValueError
        return x

    def inner(x):
        try:
            return positive(x)
        except ValueError:
            return x - 1

    check(lambda x: inner(x) * 2, (torch.ones(2),), (-torch.ones(2),), breaks=0)


def test_gradients_that_a_step_drops_behind_a_check_are_there_if_it_fails():
    def make():
        layer = torch.nn.Linear(2, 1)
        torch.nn.init.ones_(layer.weight)
        torch.nn.init.zeros_(layer.bias)
        optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

        def f(x):
            loss = layer(x).sum()
            if loss > 100:
                raise ValueError("diverged", layer.weight.grad)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return layer.weight.clone(), layer.weight.grad.clone()

        return f

    calls = [(torch.full((1, 2), value),) for value in (1.0, 1000.0, 2.0)]
    check(make(), *calls, make=make)


def test_parts_written_of_what_the_graph_made_do_not_end_it_before_a_check():
    """Slices and lists among a write's arguments were taken for written inputs."""
    def f(x, places):
        y = x * 2
        y.view(-1)[1::2] += 1
        y[:, places] = torch.stack([x[:, 0], x[:, 1]], 1)
        if (y < 0).any():
            raise ValueError("negative")
        return y

    places = torch.tensor([0, 1])
    check(f, (torch.ones(2, 3), places), (-torch.ones(2, 3), places), graphs=1)


def test_assertions_of_operators_are_no_writes():
    """`one_hot` (of a distribution's sample) asserts; beside a check it ended the graph."""
    def f(x, places):
        y = F.one_hot(places, 3) * x
        if (y < 0).any():
            raise ValueError("negative")
        return y

    places = torch.tensor([0, 2])
    check(f, (torch.ones(2, 3), places), (-torch.ones(2, 3), places),
          (torch.ones(2, 3), -places), graphs=1)


def test_branches_with_two_ways_break():
    def f(x):
        if x.sum() > 0:
            x = x + 1
        return x * 2

    check(f, (torch.ones(2),), (-torch.ones(2),), breaks=None)
    assert weft.stats()["graph_breaks"] >= 1


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_checks_in_compiled_graphs(backend):
    def f(loc, scale):
        normal = torch.distributions.Normal(loc, scale, validate_args=True)
        return normal.log_prob(loc + 1)

    compiled = weft.compile(f, backend=backend, fullgraph=True)
    x = torch.randn(4)
    assert torch.allclose(compiled(x, x.exp()), f(x, x.exp()))
    with pytest.raises(ValueError, match="Expected parameter scale"):
        compiled(x, -x.exp())
    assert torch.allclose(compiled(x, x.exp()), f(x, x.exp()))


def test_data_of_constants_is_known():
    def f(x):
        mask = torch.triu(torch.full((4, 4), float("-inf")), diagonal=1)
        if bool((mask == mask.triu(1)).all()):
            x = x + 1
        for rate in [v.item() for v in torch.linspace(0, 0.1, 4)]:
            if rate > 0.05:
                x = x * rate
        return x, torch.arange(3).tolist()

    check(f, (torch.ones(2),), graphs=1, breaks=0)


def test_data_of_written_tensors_is_known_and_that_of_random_ones_not():
    def f(x):
        written = torch.zeros(3)
        view = written[1:]
        view.add_(1)
        if written.sum() > 1:
            x = x + 1
        return x - 1 if torch.rand(1) > 2 else x * 2

    check(f, (torch.ones(2),), breaks=1)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_what_an_operator_asks_of_its_data_and_refuses_otherwise_is_answered(backend):
    window = torch.hann_window(16)

    def f(x, window):
        parts = torch.stft(x, 16, 4, window=window, return_complex=True)
        return torch.istft(parts * 2, 16, 4, window=window)

    weft.reset()
    compiled = weft.compile(f, backend=backend)
    x = torch.randn(2, 64)
    assert torch.allclose(compiled(x, window), f(x, window), atol=1e-5)
    with pytest.raises(RuntimeError, match="window overlap add min"):
        compiled(x, window * 0)
    stats = weft.stats()
    assert (stats["graphs"], stats["graph_breaks"]) == (1, 0)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_tests_for_nan_are_expected_to_find_none(backend):
    """A training step that skips bad batches was three graphs."""
    def make():
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(2, 3, bias=False), torch.nn.BatchNorm1d(3))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        skipped = []

        def step(x):
            optimizer.zero_grad()
            loss = model(x).pow(3).mean()
            if not torch.isfinite(loss):
                skipped.append(len(skipped))
                return None, skipped
            loss.backward()
            bad = torch.stack([torch.isnan(p.grad).any() for p in model.parameters()]).any()
            if bad.item() or torch.isinf(model[0].weight.grad).sum() > 0:
                return "bad", skipped
            optimizer.step()
            return model[0].weight.clone(), model[1].running_var.clone()

        return step

    weft.reset()
    eager, compiled = make(), weft.compile(make(), backend=backend)
    good, bad = torch.randn(4, 2), torch.full((4, 2), float("nan"))
    for x in (good, good * 2, bad, good, bad, good * 3):
        compare(run(eager, (x,), {}), run(compiled, (x,), {}))
    assert weft.stats()["graph_breaks"] == 0


def test_tests_for_nan_that_find_some_break():
    def f(x):
        if torch.isnan(x).any():
            x = torch.nan_to_num(x)
        return x * 2

    calls = [(torch.ones(2),)] + [(torch.full((2,), float("nan")),)] * 20
    check(f, *calls, breaks=1)


def test_loops_while_numbers_are_finite_break():
    def f(x):
        while torch.isfinite(x).all():
            x = x * x
        return x

    check(f, (torch.full((2,), 3.0),), breaks=None)
    assert weft.stats()["graph_breaks"] > 0


def test_a_flag_that_must_be_false_is_checked_in_the_graph():
    """`!=` of a symbolic bool ended the graph."""
    def f(x):
        if (x > 100).any().item():
            raise ValueError("large")
        return x * 2

    check(f, (torch.ones(3),), (torch.full((3,), 200.0),), (torch.ones(3),), graphs=1)


@pytest.mark.parametrize("condition", ["np.int64(2) < 3", "x.sum() < 9", "1", "x.shape[0]"])
def test_a_check_of_what_is_no_bool_raises(condition: str) -> None:
    """A comparison of a drawn NumPy integer counted as a bool."""
    scope = {"np": np, "torch": torch}
    exec(f"def f(x):\n    torch._check({condition})\n    return x * 2", scope)
    check(scope["f"], (torch.ones(3),), breaks=None)
