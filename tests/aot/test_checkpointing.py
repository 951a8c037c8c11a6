"""Activation checkpointing inside compiled functions: what is recomputed, kept and drawn again."""

import copy
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import weft
from weft.diagnostics import events

F = torch.nn.functional


@pytest.fixture(autouse=True)
def _strict():
    with weft.config.patch(strict=True):
        yield


class Layer(torch.nn.Module):
    """A checkpointed block and what follows."""

    def __init__(self, p: float = 0.0, **settings: object) -> None:
        super().__init__()
        self.a, self.b = torch.nn.Linear(6, 6), torch.nn.Linear(6, 6)
        self.p, self.settings = p, settings

    def block(self, x):
        return F.dropout(F.gelu(self.a(x)).sin(), self.p, True).cos()

    def forward(self, x):
        return self.b(checkpoint(self.block, x, use_reentrant=False, **self.settings))


def step(call: Callable, module: torch.nn.Module) -> list[torch.Tensor]:
    torch.manual_seed(3)
    module.zero_grad()
    loss = call(torch.linspace(-1, 1, 24).view(4, 6)).square().mean()
    loss.backward()
    return [loss.detach(), *(p.grad for p in module.parameters())]


def check(module: torch.nn.Module, backend: str) -> list:
    """Loss and gradients of two steps are eager's; gives the ATen graphs."""
    peer = copy.deepcopy(module)
    with events.collect() as seen:
        compiled = weft.compile(module, backend=backend)
        for _ in range(2):
            found, wanted = step(compiled, module), step(peer, peer)
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    return [e.gm for e in seen if e.kind == "aot"]


def targets(gm: torch.fx.GraphModule) -> list[str]:
    return [str(n.target) for n in gm.graph.nodes if n.op == "call_function"]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_dropout_draws_once(backend: str) -> None:
    """The recomputation uses the forward's random numbers, and draws none."""
    _, backward = check(Layer(p=0.5), backend)
    assert any("addmm" in t for t in targets(backward)), "the block runs again"
    assert not any("bernoulli" in t for t in targets(backward))


def test_compiling_draws_nothing() -> None:
    module = Layer(p=0.5)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    weft.compile(module, backend="aot_eager")
    with torch.no_grad():
        weft.compile(lambda x: x * 2, backend="aot_eager")(torch.ones(2))
    assert torch.equal(state, torch.get_rng_state())


def keep_products(context, operator, *args, **kwargs):
    products = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
    kept = operator in products
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE


PRODUCTS = [torch.ops.aten.addmm.default]


@pytest.mark.parametrize("what", [keep_products, PRODUCTS], ids=["policy", "operators"])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_selective(what: object, backend: str) -> None:
    contexts = partial(create_selective_checkpoint_contexts, what)
    forward, backward = check(Layer(context_fn=contexts), backend)
    assert targets(forward).count("aten.addmm.default") == 2
    assert "aten.addmm.default" not in targets(backward), "its result is kept"


def test_functions_under_a_dispatch_mode_run_eagerly() -> None:
    """The mode sees every operator, and compiled kernels are none."""
    from torch.utils.flop_counter import FlopCounterMode

    compiled = weft.compile(lambda x, w: (x @ w).relu())
    x = torch.randn(4, 4)
    compiled(x, x)
    with FlopCounterMode(display=False) as counter:
        compiled(x, x)
    assert counter.get_total_flops() == 128
