"""Gradients that a compiled backward hands over in stages: the same as eager's, in all uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import weft
from tests.aot.test_peak_memory import step_in_hook
from weft.aot.training import backward_stages as stages
from weft.aot.training import compile as training
from weft.aot.training.backward_stages import stages_of

Program = Callable[[nn.Sequential, Callable[..., Any], torch.Tensor], list[Any]]


def gradients(model: nn.Module) -> list[Any]:
    return [p.grad for p in model.parameters()]


def accumulated(model: nn.Sequential, call: Callable[..., Any], x: torch.Tensor) -> list[Any]:
    for _ in range(3):
        call(x).sum().backward()
    return gradients(model)


def retained(model: nn.Sequential, call: Callable[..., Any], x: torch.Tensor) -> list[Any]:
    call(x).sum().backward()
    loss = call(x).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    return gradients(model)


def hooked(model: nn.Sequential, call: Callable[..., Any], x: torch.Tensor) -> list[Any]:
    """Hooks of tensors and of nodes, and an optimizer that runs in the backward."""
    nodes, seen = [], []
    for p in model.parameters():
        p.register_hook(lambda g: 2 * g)
        step_in_hook(p)
        nodes.append(p.view_as(p).grad_fn.next_functions[0][0])  # type: ignore[union-attr]
        nodes[-1].register_prehook(lambda g: seen.append(g[0].shape))
    accumulated(model, call, x)
    return [*model.parameters(), sorted(seen)]


def some(model: nn.Sequential, call: Callable[..., Any], x: torch.Tensor) -> list[Any]:
    """Some gradients only, of early and of late stages."""
    first, *_, last = model.parameters()
    call(x).sum().backward()
    loss = call(x).sum()
    early = torch.autograd.grad(loss, [last], retain_graph=True)
    late = torch.autograd.grad(loss, [first], retain_graph=True)
    loss.backward(inputs=[first, last])
    return [*gradients(model), *early, *late]


def twice(model: nn.Sequential, call: Callable[..., Any], x: torch.Tensor) -> list[Any]:
    call(x).sum().backward()
    found = torch.autograd.grad(call(x).sum(), list(model.parameters()), create_graph=True)
    torch.stack([g.pow(2).sum() for g in found]).sum().backward()
    return gradients(model)


def checkpointed(model: nn.Sequential, call: Callable[..., Any], x: torch.Tensor) -> list[Any]:
    x = x.clone().requires_grad_()
    for _ in range(2):
        for reentrant in (True, False):
            checkpoint(call, x, use_reentrant=reentrant).sum().backward()
    return [*gradients(model), x.grad]


PROGRAMS = [accumulated, retained, hooked, some, twice, checkpointed]


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_stages_change_nothing(
    program: Program, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    links = []
    monkeypatch.setitem(stages._LEAST, "cpu", 1)
    monkeypatch.setattr(stages, "_later", lambda *a, f=stages._later: links.append(a) or f(*a))
    found = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Linear(32, 4))
        call = weft.compile(model, backend=backend) if compiled else model
        found.append(program(model, call, torch.randn(5, 8)))
    torch.testing.assert_close(found[1], found[0], rtol=2e-5, atol=1e-6)
    assert links


def test_a_stage_holds_no_more_than_the_largest_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums for biases run late: large gradients used to wait for them, and for each other."""
    found: list[stages.Stages] = []
    monkeypatch.setitem(stages._LEAST, "cpu", 1)
    monkeypatch.setattr(training, "stages_of", lambda *a: found.append(stages_of(*a)) or found[-1])
    model = nn.Sequential(*(nn.Linear(96, 96) for _ in range(3)))
    weft.compile(model)(torch.randn(2, 96)).sum().backward()
    assert [len(stage) for stage in found[0]] == [1, 1, 4]


def test_looking_for_saved_tensors_computes_no_checkpoint(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """It unpacked each of them, which ran the checkpoint again, and failed where sizes are symbolic
    (torch.fx printed the traceback)."""
    weft.reset()

    def f(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        def body(x: torch.Tensor) -> torch.Tensor:
            later = torch.arange(4) >= torch.arange(y.shape[0])[:, None]
            return (x * later.view(1, y.shape[0], 4)).exp()

        return checkpoint(body, x, use_reentrant=False), x.cos()

    x, y = torch.ones(3, 4, requires_grad=True), torch.ones(3, 7)
    found, wanted = weft.compile(f, backend="aot_eager", dynamic=True)(x, y), f(x, y)
    torch.testing.assert_close(found, wanted)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(*(torch.autograd.grad(y.sum(), x) for y in (a, b)))
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_stages_read_sizes_of_what_they_get(backend: str) -> None:
    """Losses of a continuation, one for an earlier graph's result, raised: None has no size."""
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first, on = x[..., :4].sigmoid().sum(), x[..., 4:].detach().amax(-1) > 0
        first = first / max(on.sum(), 1)
        labels = on[..., None].float().expand(-1, -1, 4)
        return first, F.binary_cross_entropy_with_logits(x[..., 4:], labels).sum()

    weft.reset()
    x = torch.linspace(-1, 1, 2 * 5 * 8).view(2, 5, 8).requires_grad_()
    losses = [f(x * 1), weft.compile(f, backend=backend, dynamic=True)(x * 1)]
    wanted, found = (torch.autograd.grad(a + b, x)[0] for a, b in losses)
    torch.testing.assert_close(found, wanted)
