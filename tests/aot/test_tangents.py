"""Backwards in which some results get no tangent, or some gradients are not asked for."""

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import weft
from weft.aot.pipeline import compile_aot
from weft.aot.python_code import compile_calls
from weft.aot.training.tangents import TangentLayout
from weft.diagnostics import events
from weft.errors import FallbackWarning

F = torch.nn.functional


@pytest.fixture(autouse=True)
def _strict():
    with weft.config.patch(strict=True):
        yield


class Operators(TorchDispatchMode):
    """Counts the operators that run, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.counts[func._schema.name.split("::")[1]] += 1
        return func(*args, **kwargs or {})


def operators_of(call: Callable) -> Counter[str]:
    """What the second of two equal calls runs (the first one compiles)."""
    call()
    with Operators() as seen:
        call()
    return seen.counts


def classifier(backend: str) -> tuple[nn.Module, Callable, list[torch.Tensor]]:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 5))

    def loss_and_logits(x, target):
        logits = module(x)
        return F.cross_entropy(logits, target), logits

    compiled = weft.compile(loss_and_logits, backend=backend)
    return module, compiled, [torch.randn(4, 6, requires_grad=True), torch.randint(5, (4,))]


def test_absent_tangents_are_not_filled_with_zeros() -> None:
    module, compiled, (x, target) = classifier("aot_eager")
    counts = operators_of(lambda: compiled(x, target)[0].backward())
    assert not counts["zeros"] and not counts["full"]
    assert counts["mm"] == 4  # the gradients of two layers


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)])
def test_any_of_several_results(used: tuple[int, ...], backend: str) -> None:
    module, compiled, (x, target) = classifier(backend)

    def gradients(call: Callable) -> list:
        results = [r.sum() for r in call(x, target)]
        return list(torch.autograd.grad([results[i] for i in used], [x, *module.parameters()]))

    wanted = gradients(compiled.__wrapped__)
    torch.testing.assert_close(gradients(compiled), wanted)
    torch.testing.assert_close(gradients(compiled), wanted)


def test_gradients_that_nobody_asks_for_are_not_computed() -> None:
    module, compiled, (x, target) = classifier("aot_eager")
    counts = operators_of(lambda: torch.autograd.grad(compiled(x, target)[0], x))
    assert counts["mm"] == 2
    last = [module[2].weight, module[2].bias]
    counts = operators_of(lambda: torch.autograd.grad(compiled(x, target)[0], last))
    assert counts["mm"] == 1


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_gradients_of_chosen_inputs(backend: str) -> None:
    module, compiled, (x, target) = classifier(backend)
    eager = compiled.__wrapped__
    middle = x * 2
    for chosen in [[x], [module[0].weight], [middle], [middle, module[2].bias], [x, middle]]:
        wanted = torch.autograd.grad(eager(middle, target)[0], chosen, retain_graph=True)
        found = torch.autograd.grad(compiled(middle, target)[0], chosen, retain_graph=True)
        torch.testing.assert_close(found, wanted)
    compiled(middle, target)[0].backward(inputs=[module[0].weight])
    assert module[2].weight.grad is None and x.grad is None
    torch.testing.assert_close(
        module[0].weight.grad,
        torch.autograd.grad(eager(x * 2, target)[0], module[0].weight)[0],
    )


def test_backward_of_one_of_two_results_after_the_other() -> None:
    module, compiled, (x, target) = classifier("aot_eager")
    first, second = compiled(x, target)
    first.backward(retain_graph=True)
    second.sum().backward()
    found, x.grad = x.grad, None
    first, second = compiled.__wrapped__(x, target)
    (first + second.sum()).backward()
    torch.testing.assert_close(found, x.grad)


def test_a_result_that_is_not_used_does_not_turn_an_infinite_slope_into_nan() -> None:
    x = torch.zeros(3, requires_grad=True)
    compiled = weft.compile(lambda x: (x.sqrt(), x * 2), backend="aot_eager")
    counts = operators_of(lambda: torch.autograd.grad(compiled(x)[1].sum(), x))
    assert torch.equal(torch.autograd.grad(compiled(x)[1].sum(), x)[0], torch.full((3,), 2.0))
    assert counts["sqrt"] == 1, "the forward was run again"


class Shifts(torch.autograd.Function):
    """A backward that is not linear: eager calls it with zeros for what has no tangent."""

    @staticmethod
    def forward(ctx, x):
        return x * 1, x * 2

    @staticmethod
    def backward(ctx, first, second):
        return first * 3 + (second + 1)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_functions_of_the_program_get_zeros(backend: str) -> None:
    x = torch.ones(3, requires_grad=True)
    compiled = weft.compile(lambda x: Shifts.apply(x), backend=backend)
    (found,) = torch.autograd.grad(compiled(x)[0].sum(), x)
    assert torch.equal(found, torch.full((3,), 4.0))


def test_results_of_an_lstm_that_are_not_used() -> None:
    torch.manual_seed(0)
    lstm = nn.LSTM(4, 5, batch_first=True)
    compiled = weft.compile(lstm)
    x = torch.randn(2, 3, 4)
    for pick in (lambda o: o[0], lambda o: o[1][0], lambda o: o[1][1] + o[1][0]):
        found = torch.autograd.grad(pick(compiled(x)).sum(), list(lstm.parameters()))
        wanted = torch.autograd.grad(pick(lstm(x)).sum(), list(lstm.parameters()))
        torch.testing.assert_close(found, wanted)


def test_many_patterns_share_one_backward() -> None:
    graphs: list[object] = []
    unsubscribe = events.subscribe(lambda e: graphs.append(e) if e.kind == "aot" else None)
    x = torch.ones(3, requires_grad=True)
    compiled = weft.compile(lambda x: tuple(x * i for i in range(1, 6)), backend="aot_eager")
    for pattern in range(1, 32):
        chosen = [i for i in range(5) if pattern >> i & 1]
        results = compiled(x)
        (found,) = torch.autograd.grad([results[i].sum() for i in chosen], x)
        assert torch.equal(found, torch.full((3,), float(sum(i + 1 for i in chosen))))
    unsubscribe()
    assert len(graphs) <= 10


def test_a_backward_that_cannot_be_compiled_runs_through_aten() -> None:
    graphs: list[object] = []

    def forward_only(graph):
        graphs.append(graph)
        if len(graphs) > 1:
            raise ValueError("a backward")
        return compile_calls(graph)

    x = torch.ones(3, requires_grad=True)
    compiled = weft.compile(
        lambda x: (x.sin(), x.cos()),
        backend=lambda gm, inputs: compile_aot(gm, inputs, forward_only),
    )
    with weft.config.patch(strict=False), pytest.warns(FallbackWarning):
        compiled(x)[0].sum().backward()
    torch.testing.assert_close(x.grad, x.detach().cos())


@pytest.mark.parametrize("whole", [
    lambda a, b: torch.cat([a, b], 1).sin(), lambda a, b: torch.stack([a, b], 1).sin(),
    lambda a, b: torch.cat([a, b], 1), lambda a, b: torch.cat([a, b], 1) + torch.cat([b, a], 1),
])
def test_gradients_that_are_parts_of_one_tensor_share_its_memory_as_in_eager(whole) -> None:
    """All but the first were copied, into memory with eager's gaps."""
    inputs = [torch.randn(3, 4, requires_grad=True) for _ in range(2)]
    found, expected = ([out := f(*inputs), torch.autograd.grad(out, inputs, out.detach())][1]
                       for f in (weft.compile(whole), whole))
    torch.testing.assert_close(found, expected, check_stride=True)
    shared = [len({g.untyped_storage().data_ptr() for g in grads}) for grads in (found, expected)]
    assert shared[0] == shared[1]


def test_a_tangent_of_an_image_that_fits_is_not_permuted() -> None:
    image = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    layout = TangentLayout.of(image)
    assert layout.fit(image) is image
    assert layout.fit(image.contiguous()).stride() == image.stride()
