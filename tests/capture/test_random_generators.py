"""Numbers drawn by Python's `random` and by `numpy.random` inside captured programs."""

from __future__ import annotations

import contextlib
import io
import math
import random
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch.utils.checkpoint import checkpoint

import weft
from tests.capture.harness import check, same

_RNG = np.random.default_rng(0)
_RANDOM = random.Random(0)


def _restart() -> None:
    random.seed(0)
    _RANDOM.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    _RNG.bit_generator.state = np.random.default_rng(5).bit_generator.state


def _state() -> Any:
    numpys = np.random.get_state()
    return (random.getstate(), _RANDOM.getstate(), numpys[1].tolist(), numpys[2:],
            _RNG.bit_generator.state)


def _outcomes(function: Any, calls: list[torch.Tensor]) -> tuple[Any, Any]:
    _restart()
    results: list[Any] = []
    for x in calls:
        try:
            results.append(function(x))
        except Exception as error:
            results.append(type(error))
    return results, _state()


def _crop(x: torch.Tensor) -> Any:
    i, j = random.randint(0, x.shape[0] - 4), random.randrange(4)
    return x[i: i + 4, j: j + 4] * 2


def _mixup(x: torch.Tensor) -> Any:
    lam = np.random.beta(0.4, 0.4)
    return lam * x + (1 - lam) * x[torch.randperm(x.shape[0])]


def _arrays(x: torch.Tensor) -> Any:
    noise = np.random.normal(0, 0.1, size=(8, 8))
    order = torch.as_tensor(_RNG.permutation(8))
    return x[order] + torch.from_numpy(noise).float(), noise, _RNG.integers(3)


def _own_generator(x: torch.Tensor) -> Any:
    return x * _RANDOM.gauss(0, 1), _RANDOM.getrandbits(8)


def _seeded(x: torch.Tensor) -> Any:
    random.seed(5)
    return x * random.random()


def _rows(x: torch.Tensor) -> Any:
    n = random.randint(2, 5)
    return x.new_zeros(n) + x.sum(), torch.arange(n)


def _raising(x: torch.Tensor) -> Any:
    return x[torch.tensor([99])] * random.random()


@pytest.mark.parametrize("program", [
    lambda x: (x * random.uniform(0, 2), random.random()),
    _crop, _mixup, _arrays, _own_generator, _seeded, _rows, _raising,
])
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_each_call_draws_anew_and_leaves_the_state_as_eager(program: Any, backend: str) -> None:
    torch.manual_seed(1)
    calls = [torch.randn(8, 8) for _ in range(5)]
    weft.reset()
    compiled = weft.compile(program, backend=backend, options={"fallback_random": True})
    actual, expected = _outcomes(compiled, calls), _outcomes(program, calls)
    assert same(expected[0], actual[0])
    assert expected[1] == actual[1]
    stats = weft.stats()
    assert (stats["graphs"], stats["graph_breaks"], stats["recompiles"]) == (1, 0, 0), stats


def _branch(x: torch.Tensor) -> Any:
    return x + 1 if np.random.rand() < 0.5 else x - 1


def _shuffled(x: torch.Tensor) -> Any:
    order = list(range(8))
    random.shuffle(order)
    return x * random.choice(order)


@pytest.mark.parametrize(("program", "breaks"), [(_branch, 1), (_shuffled, 1)])
def test_a_drawn_number_that_python_needs_ends_the_graph(program: Any, breaks: int) -> None:
    calls = [torch.randn(8, 8) for _ in range(8)]
    weft.reset()
    compiled = weft.compile(program, backend="eager")
    actual, expected = _outcomes(compiled, calls), _outcomes(program, calls)
    assert same(expected[0], actual[0])
    assert expected[1] == actual[1]
    assert weft.stats()["graph_breaks"] >= breaks


def test_a_replaced_function_of_random_is_called() -> None:
    program = weft.compile(lambda x: x * random.random(), backend="eager")
    program(torch.ones(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(random, "random", lambda: 3.0)
        assert program(torch.ones(2)).tolist() == [3.0, 3.0]


def test_compiling_draws_nothing_from_the_programs_generators() -> None:
    before = _state()
    weft.compile(lambda x: torch.relu(x) + 1)(torch.ones(31, 3))
    assert _state() == before


def test_what_is_computed_of_pythons_random_numbers_is_of_pythons_types() -> None:
    def f(x: torch.Tensor) -> Any:
        number, real = random.randrange(1 << 40), random.random()
        parts = [number | 3, number & 255, ~number, number << 30, real < 0.5, real * 2]
        return x + 1, parts, [type(part) for part in parts]

    check_draws = weft.compile(f, backend="eager")
    random.seed(3)
    expected = f(torch.ones(1))[1:]
    random.seed(3)
    results = check_draws(torch.ones(1))[1:]
    assert expected == results
    assert [type(part) for part in results[0]] == [int, int, int, int, bool, float]


def test_a_function_of_a_random_number_is_printed() -> None:
    def f(x: torch.Tensor) -> Any:
        value = random.random()
        print(math.sin(value))
        return x * 2

    compiled = weft.compile(f, backend="eager")
    texts = []
    for function in (f, compiled):
        random.seed(3)
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            function(torch.ones(1))
        texts.append(out.getvalue())
    assert texts[0] == texts[1]


class Noisy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x + torch.rand(2)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return gradient


def test_unused_results_of_bodies_that_draw() -> None:
    def f(x: Any) -> Any:
        Noisy.apply(x)
        checkpoint(lambda y: y + torch.rand(2), x, use_reentrant=False)
        torch.cond(x.sum() > 0, lambda y: y + torch.rand(2), lambda y: y - torch.rand(1), (x,))
        return torch.rand(1)

    check(f, (torch.ones(2, requires_grad=True),), graphs=1, breaks=0)


def _gammas(x: torch.Tensor, beta: float) -> Any:
    return x * 2, random.gammavariate(1.1, beta), random.uniform(1, beta)


def test_a_patched_generator_is_asked_by_the_program_alone() -> None:
    """Trying out what a method gives took from the mock."""
    with mock.patch("random.Random.random") as drawn:
        results = []
        for function in (_gammas, weft.compile(_gammas, backend="eager")):
            drawn.side_effect = [1e-8, 0.5, 0.3, 0.25]
            results.append(function(torch.ones(2), 2.3))
    same(results[1], results[0])


_TORCH = torch.Generator()


def _sampler(x: torch.Tensor, generator: torch.Generator) -> Any:
    assert generator.device.type == "cpu"
    x = x + torch.randn(x.shape, generator=generator, dtype=torch.float64)
    order = torch.randperm(x.shape[0], generator=_TORCH)
    start = torch.empty(2, 3).uniform_(-1, 1, generator=generator)
    return x[order], torch.randint(10, (3,), generator=generator), start


def _seeded_inside(x: torch.Tensor, _: Any) -> Any:
    generator = torch.Generator(device="cpu").manual_seed(x.shape[0])
    numpys = np.random.default_rng(2)
    noise = torch.randn(x.shape, generator=generator)
    return x + noise, numpys.normal() * x, random.Random(3).random() * x, generator.get_state()


def _drawn_from_the_graphs_own(x: torch.Tensor, generator: torch.Generator) -> Any:
    return torch.bernoulli(x.sigmoid(), generator=generator), x * 2


@pytest.mark.parametrize(("program", "breaks"), [
    (_sampler, 0), (_seeded_inside, 1), (_drawn_from_the_graphs_own, 1)])
def test_operations_draw_from_generators_of_the_program(program: Any, breaks: int) -> None:
    weft.reset()
    outcomes = []
    for function in (program, weft.compile(program, backend="inductor", dynamic=True)):
        _TORCH.manual_seed(1)
        given = torch.Generator().manual_seed(2)
        outcomes.append([(function(torch.ones(n, 2), given), given.get_state(),
                          _TORCH.get_state()) for n in (3, 4, 5)])
    assert same(*outcomes)
    assert weft.stats()["graph_breaks"] == breaks


def _lists(x: torch.Tensor, k: int) -> Any:
    order = list(range(3))
    random.shuffle(order)
    weights = random.choices([0.5, 1.0, 2.0], weights=[1, 2, 1], k=k)
    return x[order] * sum(weights) + x[:, random.sample(range(4), k)].sum(), order, weights


def test_lists_of_numbers_are_drawn_ahead_of_the_graph() -> None:
    weft.reset()
    x = torch.arange(12.0).view(3, 4)
    compiled = weft.compile(_lists, backend="eager")
    for seed, k in enumerate((2, 2, 3, 0, 2)):
        random.seed(seed)
        expected = _lists(x, k), random.random()
        random.seed(seed)
        assert same(expected, (compiled(x, k), random.random()))
    assert weft.stats()["graph_breaks"] == 0


def test_a_choice_of_ints_and_floats_is_not_always_an_int() -> None:
    def f(x: torch.Tensor) -> Any:
        chosen = random.choice([1, 2.5])
        return x * chosen, isinstance(chosen, int), torch.tensor(chosen)

    compiled = weft.compile(f, backend="eager")
    for seed in range(4):
        random.seed(seed)
        expected = f(torch.ones(2))
        random.seed(seed)
        assert same(expected, compiled(torch.ones(2)))
