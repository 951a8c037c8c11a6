"""Activation checkpointing inside compiled functions: what is recomputed, kept and drawn again."""

import copy
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
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
    """The recomputation uses the forward's random numbers, kept as booleans, and draws none."""
    _, backward = check(Layer(p=0.5), backend)
    assert any("addmm" in t for t in targets(backward)), "the block runs again"
    assert not any("bernoulli" in t for t in targets(backward))
    assert any(n.op == "placeholder" and n.meta["val"].dtype is torch.bool
               for n in backward.graph.nodes)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_large_dropouts_are_drawn_again(backend: str) -> None:
    """Eager keeps the generator's state; with masks, deep models needed 1.3 times its memory."""

    def blocks(x):
        for p in (0.3, 0.3, 0.5):
            x = F.dropout(x * torch.rand(()), p).sin()
        return x

    def f(x):
        for _ in range(2):
            x = checkpoint(blocks, x, use_reentrant=False)
        return x

    gradients = []
    with events.collect() as seen:
        for call in (f, weft.compile(f, backend=backend, fullgraph=True)):
            torch.manual_seed(3)
            x = torch.ones(128, 200, requires_grad=True)
            y = call(x)
            after = torch.rand(3)
            y.sum().backward()
            gradients.append((y.detach(), after, torch.rand(3), x.grad))
    torch.testing.assert_close(*gradients)
    backward = targets([e.gm for e in seen if e.kind == "aot"][1])
    assert backward.count("weft.bernoulli_again.default") == 6


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_each_dropout_has_its_own_mask_when_run_again(backend: str) -> None:
    """The second had the first's mask in the backward: a wrong gradient."""

    def masks(x):
        for p in (0.3, 0.3, 0.5):
            x = F.dropout(x, p)
        return checkpoint(F.dropout, x, 0.2, use_reentrant=False)

    x = torch.ones(64, 4, requires_grad=True)
    y = weft.compile(lambda x: checkpoint(masks, x, use_reentrant=False), backend=backend)(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, y.detach())


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


def test_selective_by_functions_made_in_the_frame() -> None:
    """It broke the graph."""
    weights = torch.randn(4, 4, requires_grad=True)

    def f(x, kept):
        def policy(context, operator, *args, **kwargs):
            must_save = operator is kept
            return CheckpointPolicy.MUST_SAVE if must_save else CheckpointPolicy.MUST_RECOMPUTE

        return checkpoint(lambda x: (x @ weights).sin().exp(), x, use_reentrant=False,
                          context_fn=lambda: create_selective_checkpoint_contexts(policy)).sum()

    kept = torch.ops.aten.mm.default
    with events.collect() as seen:
        found = weft.compile(f, backend="aot_eager", fullgraph=True)(torch.ones(3, 4), kept)
    found.backward()
    backward = targets([e.gm for e in seen if e.kind == "aot"][1])
    assert backward.count("aten.mm.default") == 1, "that of the gradient: the product is kept"


def test_functions_under_a_dispatch_mode_run_eagerly() -> None:
    """The mode sees every operator, and compiled kernels are none."""
    from torch.utils.flop_counter import FlopCounterMode

    compiled = weft.compile(lambda x, w: (x @ w).relu())
    x = torch.randn(4, 4)
    compiled(x, x)
    with FlopCounterMode(display=False) as counter:
        compiled(x, x)
    assert counter.get_total_flops() == 128


def gradients_of(call: Callable, module: torch.nn.Module) -> list[torch.Tensor]:
    x = torch.linspace(-1, 1, 12).view(3, 4).requires_grad_()
    module.zero_grad()
    result = call(x)
    result.sum().backward()
    return [result.detach(), x.grad, *(p.grad.clone() for p in module.parameters())]


def perceptron() -> torch.nn.Sequential:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4), torch.nn.Tanh()]
    return torch.nn.Sequential(*layers)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint_sequential(reentrant: bool, fresh: None) -> None:
    """It is one graph; its parts used to be compiled in the forward only. Reentrant parts whose
    input needs a gradient do the same."""
    module = perceptron()

    def call(x):
        return checkpoint_sequential(module, 2, x, use_reentrant=reentrant)

    compiled = weft.compile(call, backend="aot_eager")
    torch.testing.assert_close(gradients_of(compiled, module), gradients_of(call, module))
    assert weft.stats()["graph_breaks"] == 0


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_checkpoint_around_a_compiled_module(backend: str, reentrant: bool) -> None:
    """The recomputation stops early, by an exception that the compiled frame must let through."""
    module = perceptron()

    def around(layers):
        return lambda x: checkpoint(layers, x, use_reentrant=reentrant)

    found = gradients_of(around(weft.compile(module, backend=backend)), module)
    torch.testing.assert_close(found, gradients_of(around(module), module))


def test_checkpoint_called_where_nothing_is_captured() -> None:
    """The frame hook meets `checkpoint` in the forward, and would not in the backward."""
    module = perceptron()

    @weft.disable(recursive=False)
    def opaque(x):
        return checkpoint(module, x, use_reentrant=False)

    def call(x):
        return opaque(x * 2) + 1

    for backend in ("aot_eager", "inductor"):
        found = gradients_of(weft.compile(call, backend=backend), module)
        torch.testing.assert_close(found, gradients_of(call, module))


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_running_statistics_are_updated_again_in_the_backward(backend: str) -> None:
    """As eager does; batch norm in a checkpointed function used to raise in the backward."""
    torch.manual_seed(0)
    modules = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    peer = copy.deepcopy(modules)

    def call(m, x):
        return checkpoint(m, x * 2, use_reentrant=False).sin()

    compiled = weft.compile(call, backend=backend)
    for _ in range(2):
        found = gradients_of(lambda x: compiled(modules, x), modules)
        torch.testing.assert_close(found, gradients_of(lambda x: call(peer, x), peer))
    torch.testing.assert_close(list(modules.buffers()), list(peer.buffers()))
    assert int(modules[1].num_batches_tracked) == 4


class Attending(Layer):
    """The operator of attention draws numbers, but not without dropout."""

    def block(self, x):
        q, k = self.a(x)[None, None], x[None, None]
        return F.scaled_dot_product_attention(q, k, k)[0, 0]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_attention_without_dropout_runs_again(backend: str) -> None:
    """It counted as drawn in the forward, its parts as made again: there was no way to cut."""
    forward, backward = check(Attending(), backend)
    name = "_scaled_dot_product_flash_attention_for_cpu"
    found = [sum(name in str(n.target) for n in gm.graph.nodes) for gm in (forward, backward)]
    assert found == [1, 2]  # again, and its derivative


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_drawn_numbers_with_several_results_are_kept(backend: str) -> None:
    """`rrelu` and fused dropout return what they drew beside the result."""

    class Dropping(Layer):
        def block(self, x):
            return torch.ops.aten.native_dropout(self.a(x).sin(), 0.5, True)[0].cos()

    with weft.config.patch(fallback_random=True):
        check(Dropping(), backend)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_a_backward_inside_runs_dropout_again_with_the_same_numbers(backend):
    layer = torch.nn.Linear(4, 4)

    def step(x):
        def dropped(x):
            return torch.nn.functional.dropout(layer(x), 0.5)

        y = checkpoint(dropped, x, use_reentrant=False)
        y.pow(2).sum().backward()
        return y.detach(), torch.rand(2)

    results = []
    for function in (step, weft.compile(step, backend=backend)):
        layer.zero_grad()
        torch.manual_seed(1)
        results.append((function(torch.ones(3, 4)), layer.bias.grad))
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("settings", [{}, {"use_reentrant": True}], ids=str)
@pytest.mark.filterwarnings("ignore:torch.utils.checkpoint", "ignore:None of the inputs")
def test_reentrant_results_need_no_gradient_where_no_argument_does(settings, fresh: None) -> None:
    """PyTorch's default form was captured as the other one, whose results do."""
    module = perceptron()

    def call(x):
        return checkpoint(module, x, **settings)

    x = torch.ones(2, 4)
    assert weft.compile(call, backend="aot_eager")(x).requires_grad is call(x).requires_grad
