"""Training steps: gradients, optimizers, autograd functions under capture (backend eager)."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import weft


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.0),
                         nn.Linear(8, 1))


def _grads(model):
    return [p.grad.clone() for p in model.parameters()]


def test_forward_then_backward():
    eager, model = _model(), _model()
    compiled = weft.compile(model, backend="eager", fullgraph=True)
    x = torch.randn(6, 4)
    for _ in range(2):
        eager(x).pow(2).mean().backward()
        compiled(x).pow(2).mean().backward()
        for a, b in zip(_grads(eager), _grads(model), strict=True):
            assert torch.allclose(a, b)
    for a, b in zip(eager.buffers(), model.buffers(), strict=True):
        assert torch.allclose(a, b)


@pytest.mark.parametrize("make", [
    lambda p: torch.optim.SGD(p, lr=0.1),
    lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    lambda p: torch.optim.Adam(p, lr=0.01),
    lambda p: torch.optim.AdamW(p, lr=0.01),
    lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
    lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, fused=True),
    lambda p: torch.optim.RAdam(p, lr=0.01),
    lambda p: torch.optim.ASGD(p, lr=0.01, t0=3),
])
def test_optimizer_step(make):
    """In double precision: counts of steps are tensors here, Python's numbers in eager."""
    results = []
    for compile_it in (False, True):
        weft.reset()
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).double()
        optimizer = make(list(model.parameters()))

        def step():
            optimizer.step()

        run = weft.compile(step, backend="eager") if compile_it else step
        torch.manual_seed(1)
        for _ in range(7):
            optimizer.zero_grad()
            model(torch.randn(6, 4, dtype=torch.float64)).pow(2).mean().backward()
            run()
        results.append([t.detach() for p in model.parameters() for t in (p, p.grad)])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


def test_whole_training_step():
    results = []
    for compile_it in (False, True):
        weft.reset()
        model = _model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(x):
            optimizer.zero_grad()
            loss = model(x).pow(2).mean()
            loss.backward()
            optimizer.step()
            return loss

        run = weft.compile(step, backend="eager") if compile_it else step
        torch.manual_seed(1)
        losses = [run(torch.randn(6, 4)).item() for _ in range(4)]
        results.append((losses, copy.deepcopy(model.state_dict())))
    (la, sa), (lb, sb) = results
    assert la == pytest.approx(lb)
    for key in sa:
        assert torch.allclose(sa[key], sb[key], atol=1e-6)


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 2 + x * 0


def test_autograd_function():
    def f(x):
        return Double.apply(x.sin()).cos()

    a = torch.randn(3, requires_grad=True)
    b = a.detach().clone().requires_grad_()
    f(a).sum().backward()
    weft.compile(f, backend="eager")(b).sum().backward()
    assert torch.allclose(a.grad, b.grad)


def test_requires_grad_is_guarded():
    weft.reset()
    f = weft.compile(lambda x: x * 2, backend="eager")
    assert not f(torch.ones(2)).requires_grad
    assert f(torch.ones(2, requires_grad=True)).requires_grad
    assert weft.stats()["recompiles"] == 1
    with torch.no_grad():
        assert not f(torch.ones(2, requires_grad=True)).requires_grad


def test_no_grad_within():
    def f(x):
        with torch.no_grad():
            y = x * 2
        return y + x

    x = torch.ones(2, requires_grad=True)
    out = weft.compile(f, backend="eager", fullgraph=True)(x)
    out.sum().backward()
    assert torch.equal(x.grad, torch.ones(2))


def test_checkpoint():
    def block(x):
        return x.sin().exp()

    def f(x):
        return torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False).sum()

    a = torch.randn(3, requires_grad=True)
    b = a.detach().clone().requires_grad_()
    f(a).backward()
    weft.compile(f, backend="eager")(b).backward()
    assert torch.allclose(a.grad, b.grad)


def test_autocast_within():
    def f(x, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return x @ w

    x, w = torch.randn(3, 3), torch.randn(3, 3)
    out = weft.compile(f, backend="eager", fullgraph=True)(x, w)
    assert out.dtype is torch.bfloat16 and torch.equal(out, f(x, w))


def test_recompile_reason_names_tensor_and_dtypes():
    from weft.diagnostics import events

    weft.reset()
    f = weft.compile(lambda x: x + 1, backend="eager")
    f(torch.ones(3))
    with events.collect() as seen:
        f(torch.ones(3, dtype=torch.bfloat16))
    (reason,) = [e.reason for e in seen if e.kind == "recompile"]
    assert "'x'" in reason and "float32" in reason and "bfloat16" in reason


def test_checkpoint_is_one_node_and_recomputes():
    layer = nn.Linear(3, 3)
    calls = []

    @weft.allow_in_graph
    class Probe(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            calls.append(1)
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            return grad

    def f(x):
        def block(y, scale):
            return layer(Probe.apply(y)).relu() * scale

        return torch.utils.checkpoint.checkpoint(block, x, 2.0, use_reentrant=False).sum()

    x = torch.randn(2, 3, requires_grad=True)
    f(x).backward()
    expected, layer.weight.grad, x.grad = (x.grad, layer.weight.grad), None, None
    seen = []

    def backend(gm, inputs):
        seen.append(gm)
        return gm.forward

    out = weft.compile(f, backend=backend, fullgraph=True)(x)
    calls.clear()
    out.backward()
    assert calls, "the block is recomputed in the backward pass"
    assert torch.allclose(x.grad, expected[0]) and torch.allclose(layer.weight.grad, expected[1])
    (gm,) = seen
    assert [n.target for n in gm.graph.nodes].count(torch.utils.checkpoint.checkpoint) == 1


def test_the_gradient_mode_in_a_reentrant_checkpoint():
    """It is off in the forward and on when the backward runs the function again."""
    def block(x):
        return x.sin() * 2 if torch.is_grad_enabled() else x.sin() * 2 + 0

    def outer(x):
        return block(x) if torch.is_grad_enabled() else x

    def f(x):
        return torch.utils.checkpoint.checkpoint(outer, x, use_reentrant=True)

    x = torch.randn(3, requires_grad=True)
    expected = f(x)
    expected.sum().backward()
    expected_grad, x.grad = x.grad, None
    actual = weft.compile(f, backend="eager")(x)
    actual.sum().backward()
    assert torch.equal(actual, expected) and torch.equal(x.grad, expected_grad)
    assert [b.id for b in weft.explain(f, backend="eager")(x).graph_breaks] == ["checkpoint"]


def test_cond():
    weft.reset()
    weights = torch.ones(3), torch.ones(3) * 2

    def f(x):
        return torch.cond(x.mean() > 0, lambda a: a * weights[0], lambda a: a @ a + weights[1] * a,
                          (x,))

    g = weft.compile(f, backend="eager", fullgraph=True)
    with torch.no_grad():
        for x in (torch.ones(3), -torch.ones(3)):
            expected = x * weights[0] if x.mean() > 0 else x @ x + weights[1] * x
            assert torch.allclose(g(x), expected)
    assert weft.stats()["graph_breaks"] == 0


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_batch_norms_that_average_over_all_batches(backend):
    """The number of batches is no Python number in the graph, which serves all of them."""
    def statistics(compiler):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
        batches = [torch.randn(4, 3) + i for i in range(3)]
        refresh = compiler(torch.optim.swa_utils.update_bn)
        refresh(batches, model)
        refresh(batches[1:], model)
        return [*model.buffers(), model[1].momentum]

    weft.reset()
    found = statistics(lambda f: weft.compile(f, backend=backend, fullgraph=True))
    torch.testing.assert_close(found, statistics(lambda f: f))
