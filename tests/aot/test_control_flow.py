"""Graphs in stages: torch.cond (both sides, dynamic sizes, modes); leaves made inside."""

import pytest
import torch

import weft


@pytest.fixture(autouse=True)
def _fresh(fresh):
    yield


def make(weights):
    first, second = weights

    def f(x):
        y = x.sin() + 1
        z = torch.cond(x.mean() > 0, lambda y: y @ first, lambda y: (y @ second).cos(), (y,))
        z = torch.cond(z.sum() > 0, lambda z: z * 2, lambda z: z - 1, (z,))
        return z.sin() + y, z.mean()

    return f


def eager(weights):
    first, second = weights

    def f(x):
        y = x.sin() + 1
        z = y @ first if x.mean() > 0 else (y @ second).cos()
        z = z * 2 if z.sum() > 0 else z - 1
        return z.sin() + y, z.mean()

    return f


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("gradients", [False, True])
def test_cond(gradients: bool, dynamic: bool) -> None:
    torch.manual_seed(0)
    weights = [torch.randn(4, 4, requires_grad=True) for _ in range(2)]
    compiled = weft.compile(make(weights), backend="aot_eager", fullgraph=True, dynamic=dynamic)
    wanted = eager(weights)
    for n, sign in ((3, 1), (3, -1), (5, -1), (5, 1)):
        x = (torch.randn(n, 4).abs() * sign).requires_grad_(gradients)
        with torch.set_grad_enabled(gradients):
            found, expected = compiled(x), wanted(x)
        for f, e in zip(found, expected, strict=True):
            torch.testing.assert_close(f, e)
        if not gradients:
            continue
        sums = [sum(r.sum() for r in results) for results in (found, expected)]
        inputs = [x, *weights]
        pairs = [torch.autograd.grad(s, inputs, allow_unused=True) for s in sums]
        for f, e in zip(*pairs, strict=True):
            torch.testing.assert_close(f, torch.zeros_like(f) if e is None else e)


def test_cond_under_no_grad_and_autocast():
    w = torch.randn(4, 4, requires_grad=True)

    def f(x):
        with torch.no_grad():
            y = torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))
        with torch.autocast("cpu", torch.bfloat16):
            z = torch.cond(x.sum() > 0, lambda x: x @ w, lambda x: (x @ w) * 2, (x,))
        return y * 2 * x, z

    x = torch.rand(4, 4, requires_grad=True)
    found = weft.compile(f, backend="aot_eager", fullgraph=True)(x)
    assert found[1].dtype == torch.bfloat16
    torch.testing.assert_close(found, (x.sin() * 2 * x, (x.bfloat16() @ w.bfloat16())))
    torch.testing.assert_close(torch.autograd.grad(found[0].sum(), x)[0], x.detach().sin() * 2)
    wanted = w.detach().bfloat16().sum(1).expand(4, 4).float()
    torch.testing.assert_close(torch.autograd.grad(found[1].sum(), x)[0], wanted)


def test_leaves_that_are_made_and_returned_are_compiled_around():
    w = torch.randn(4, 4, requires_grad=True)

    def f(x):
        with torch.no_grad():
            scale = (x @ w).cos()
        z = (x @ w).tanh().detach()
        z.requires_grad_()
        d = torch.ones(4, requires_grad=True)
        return z, (z @ w + d).sin() * scale, d, x @ w

    x = torch.rand(4, 4, requires_grad=True)
    gradients = []
    for call in (f, weft.compile(f, backend="aot_eager", fullgraph=True)):
        z, s, d, m = call(x)
        assert z.is_leaf and d.is_leaf and not s.is_leaf
        gradients.append(torch.autograd.grad(s.sum() + m.cos().sum(), (x, w, z, d)))
    torch.testing.assert_close(*gradients)
    assert weft.stats()["uncompiled_graphs"] == 0


def test_backward_inside_a_graph_with_cond():
    """It raised; and the gradients of the branch that was captured second were left out."""
    a, b = (torch.nn.Linear(3, 2) for _ in range(2))

    @weft.compile(backend="aot_eager", fullgraph=True)
    def step(x):
        y = torch.cond(x.sum() > 0, lambda x: a(x), lambda x: b(x) * 2, (x.sin(),))
        y.relu_().sum().backward()
        return y.detach()

    for x in (torch.ones(2, 3), -torch.ones(2, 3)):
        taken, other = (a, b) if x.sum() > 0 else (b, a)
        wanted = torch.relu(taken(x.sin()) * (1 if taken is a else 2))
        gradient, = torch.autograd.grad(wanted.sum(), taken.weight)
        taken.zero_grad(), other.zero_grad()
        torch.testing.assert_close(step(x), wanted.detach())
        torch.testing.assert_close(taken.weight.grad, gradient)
        assert not other.weight.grad.any()  # as torch.cond's own


def test_a_view_that_is_written_without_gradients():
    """Asking whether it is a leaf raised."""

    def f(x):
        y = x[1:]
        y.zero_()
        return y

    x = torch.ones(3, 3, requires_grad=True) * 2
    with torch.no_grad():
        weft.compile(f, backend="aot_eager", fullgraph=True)(x)
    assert x[1:].sum() == 0


def test_an_activation_that_a_hook_stores_gets_its_whole_gradient() -> None:
    """It got the direct part only: what depends on it was a result of the same autograd node."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(3, 4), torch.nn.ReLU(inplace=True), torch.nn.Linear(4, 2)
    )
    found = {}
    model[0].register_forward_hook(lambda module, inputs, output: found.update(h=output))

    def gradient(call):
        loss = call(torch.linspace(-1, 1, 6).view(2, 3)).pow(2).sum()
        found["h"].retain_grad()
        loss.backward()
        return found["h"].grad, torch.autograd.grad(model(torch.ones(2, 3)).sum(), found["h"])[0]

    compiled = weft.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(gradient(compiled), gradient(model))


def test_a_view_made_without_gradients_of_what_was_written_since() -> None:
    """Autograd does not say whether it is a leaf: capture failed."""
    weight = torch.ones(2, 3, requires_grad=True)
    with torch.no_grad():
        flat = weight.view(-1)
        weight.mul_(2)
        weft.compile(lambda x: x.clamp_(max=1.5), backend="aot_eager")(flat)
    assert torch.equal(weight, torch.full((2, 3), 1.5))


def test_a_stage_computes_with_sizes_that_its_own_inputs_do_not_tell() -> None:
    """The second stage takes a cache of size s0 + 1: nothing defined s0."""
    layer, cache = torch.nn.Linear(4, 4), [torch.ones(1, 2, 4)]

    def grow(x):
        cache[0] = torch.cat([cache[0], layer(x)], 1)
        return (cache[0].softmax(1) * x).sum(1)

    compiled, kept = weft.compile(grow), cache[0]
    given = [torch.randn(1, 1, 4) for _ in range(4)]
    found = [compiled(x) for x in given]
    cache[0] = kept
    for one, x in zip(found, given, strict=True):
        torch.testing.assert_close(one, grow(x))
    assert weft.stats()["fallbacks"] == weft.stats()["uncompiled_graphs"] == 0
