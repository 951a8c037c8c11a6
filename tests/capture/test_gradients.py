"""Gradients within graphs: backward passes, `.grad`, leaves, parameters, attributes of tensors.

Each program is run eagerly and compiled, by several backends, over several calls; results, what is
in `.grad`, and whether results have a gradient must be the same. All are one graph.
"""

from __future__ import annotations

import copy
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensor

import weft

Made = tuple[Callable[..., Any], Callable[[], Any]]
PROGRAMS: list[Callable[[], Made]] = []


def program(make: Callable[[], Made]) -> Callable[[], Made]:
    """`make` gives the function and what is looked at after each call."""
    PROGRAMS.append(make)
    return make


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def state(*modules: nn.Module) -> Callable[[], Any]:
    def look() -> Any:
        return [(p.detach().clone(), None if p.grad is None else p.grad.clone())
                for module in modules for p in module.parameters()]

    return look


def _step(optimizer_of: Callable[[Any], torch.optim.Optimizer]) -> Made:
    model = mlp()
    optimizer = optimizer_of(model.parameters())

    def f(x):
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss

    return f, state(model)


@program
def step_sgd():
    return _step(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))


@program
def step_adam():
    return _step(lambda p: torch.optim.Adam(p, lr=0.1))


@program
def step_adamw_fused():
    return _step(lambda p: torch.optim.AdamW(p, lr=0.1, fused=True))


@program
def gradients_kept_and_zeroed():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def f(x):
        optimizer.zero_grad(set_to_none=False)
        model(x).pow(2).mean().backward()
        optimizer.step()

    return f, state(model)


@program
def accumulation():
    model = mlp()

    def f(x):
        (model(x).sum() / 2).backward()
        (model(x + 1).pow(2).sum() / 2).backward()

    return f, state(model)


@program
def clipping():
    model = mlp()

    def f(x):
        model.zero_grad()
        model(x).pow(2).sum().backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        torch.nn.utils.clip_grad_value_(model.parameters(), 0.1)
        return norm

    return f, state(model)


@program
def several_steps():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def f(x):
        losses = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(x).pow(2).mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return losses

    return f, state(model)


@program
def closure():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def f(x):
        def evaluate():
            optimizer.zero_grad()
            loss = model(x).pow(2).mean()
            loss.backward()
            return loss

        return optimizer.step(evaluate)

    return f, state(model)


@program
def leaves_made_inside():
    def f(x):
        w = x[0].detach().clone().requires_grad_()
        (x * w).sin().sum().backward()
        p = nn.Parameter(x.sum(0))
        (x * p).pow(2).sum().backward()
        return w.grad, p.grad

    return f, lambda: None


@program
def retained_gradients():
    w = torch.randn(4, requires_grad=True)

    def f(x):
        y = x * w
        y.retain_grad()
        z = y.sin()
        z.sum().backward(retain_graph=True)
        z.sum().backward()
        return y.grad

    return f, lambda: w.grad


@program
def gradient_and_inputs_given():
    w = torch.randn(4, requires_grad=True)
    b = torch.randn(4, requires_grad=True)

    def f(x):
        y = x * w + b
        y.backward(torch.ones_like(y) * 2, inputs=[w])
        torch.autograd.backward([(x * b).sum(), (x * b).sin().sum()])

    return f, lambda: (w.grad, b.grad)


@program
def shared_gradient_has_memory_of_its_own():
    a = torch.randn(4, requires_grad=True)
    b = torch.randn(4, requires_grad=True)

    def f(x):
        g = x.sum(0)
        (a + b).backward(g)
        a.grad.add_(1)
        return g

    return f, lambda: (a.grad, b.grad)


@program
def gradient_penalty():
    model = mlp()

    def f(x):
        x = x.clone().requires_grad_(True)
        out = model(x)
        g = torch.autograd.grad(out.sum(), x, create_graph=True)[0]
        (out.mean() + ((g.norm(2, dim=1) - 1) ** 2).mean()).backward()

    return f, state(model)


@program
def adapted_weights():
    model = mlp()

    def f(x):
        weights = dict(model.named_parameters())
        loss = torch.func.functional_call(model, weights, (x,)).square().mean()
        steps = torch.autograd.grad(loss, weights.values(), create_graph=True)
        adapted = {k: w - 0.1 * g for (k, w), g in zip(weights.items(), steps, strict=True)}
        torch.func.functional_call(model, adapted, (x,)).sum().backward()

    return f, state(model)


@program
def gradients_read_and_set():
    w = torch.randn(4, requires_grad=True)

    def f(x):
        w.grad = x.sum(0)
        w.grad.mul_(0.5)
        w.grad += 1
        y = w.grad * 2
        w.grad = None
        return y, w.grad is None

    return f, lambda: w.grad


@program
def attributes_of_tensors():
    w = torch.ones(4)

    def f(x):
        y = x + w
        y.tag = 3
        y.other = x
        w.note = "seen"
        return y, y.tag + 1, hasattr(y, "nothing")

    return f, lambda: w.note


@program
def data_set_and_trained_on():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def f(x):
        for p in model.parameters():
            p.data = p.data.clamp(-0.2, 0.2)
        optimizer.zero_grad()
        loss = model(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return f, state(model)


@program
def data_shared():
    a, b = torch.randn(4), torch.zeros(4)

    def f(x):
        b.data = a.data
        a.add_(x[0])
        return x * b

    return f, lambda: (a.clone(), b.clone(), a.data_ptr() == b.data_ptr())


@program
def requires_grad_switched_off():
    model = mlp()

    def f(x):
        for p in model[0].parameters():
            p.requires_grad_(False)
        return model(x)

    return f, lambda: [p.requires_grad for p in model.parameters()]


@program
def leaves_frozen_for_a_while():
    """The two steps of a GAN: gradients pass through the discriminator, and then come to it."""
    generator, critic = mlp(), nn.Linear(3, 1)

    def f(x):
        fake = generator(x)
        critic.requires_grad_(False)
        critic(fake).mean().backward()
        frozen = [p.requires_grad for p in critic.parameters()]
        critic.requires_grad_(True)
        critic(fake.detach()).pow(2).mean().backward()
        return frozen

    return f, state(generator, critic)


@program
def a_leaf_frozen_before_the_backward():
    a, b = torch.ones(4, requires_grad=True), torch.ones(4, requires_grad=True)

    def f(x):
        early = (a * b * x).sum()
        a.requires_grad = False
        early.backward(retain_graph=True)
        a.requires_grad_()
        (early + (a * x).sum()).backward()
        return a.requires_grad

    return f, lambda: (a.grad, b.grad)


@program
def gradients_wanted_from_here_on():
    w = torch.ones(4)

    def f(x):
        (w * x).sum()
        w.requires_grad_(True)
        (w * x * w).sum().backward()
        w.requires_grad_(False)
        return (w * x).requires_grad, w.requires_grad

    return f, lambda: w.grad


@program
def parameters_that_escape():
    def f(x):
        p = nn.Parameter(x.sum(0))
        return p, type(p) is nn.Parameter, isinstance(p, torch.Tensor)

    return f, lambda: None


def _look(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        extra = {k: _look(v) for k, v in value.__dict__.items()}
        return (type(value), value.requires_grad, value.is_leaf, value.stride(),
                value.detach().clone(), extra)
    if isinstance(value, (list, tuple)):
        return [_look(item) for item in value]
    return value


def _assert_same(a: Any, b: Any) -> None:
    if isinstance(a, torch.Tensor):
        assert torch.allclose(a, b, atol=1e-5), (a, b)
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            _assert_same(one, other)
    elif isinstance(a, dict):
        _assert_same(list(a.items()), list(b.items()))
    else:
        assert a == b


def _outcomes(make: Callable[[], Made], compiler: Callable[[Any], Any]) -> list[Any]:
    torch.manual_seed(0)
    function, look = make()
    run = compiler(function)
    inputs = [torch.randn(3, 4) for _ in range(3)]
    return [(_look(run(x)), _look(look())) for x in inputs]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("make", PROGRAMS, ids=lambda make: make.__name__)
def test_same_as_eager(make, backend):
    weft.reset()
    expected = _outcomes(make, lambda f: f)
    actual = _outcomes(make, lambda f: weft.compile(f, backend=backend, fullgraph=True))
    _assert_same(expected, actual)


def test_a_training_step_is_one_graph():
    weft.reset()
    function, _ = step_sgd()
    compiled = weft.compile(function, backend="eager", fullgraph=True)
    for _ in range(4):
        compiled(torch.randn(3, 4))
    assert weft.stats()["graphs"] == 2  # the first step makes the momenta


@pytest.mark.parametrize("name", [
    "SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "Adagrad", "Adadelta",
    "ASGD"])
@pytest.mark.parametrize("foreach", [False, True])
def test_steps_of_all_optimizers(name, foreach):
    results = []
    for compiler in (lambda f: f, lambda f: weft.compile(f, backend="eager", fullgraph=True)):
        weft.reset()
        torch.manual_seed(0)
        model = mlp()
        optimizer = getattr(torch.optim, name)(model.parameters(), foreach=foreach)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

        def step(optimizer=optimizer):
            optimizer.step()

        run = compiler(step)
        for _ in range(7):
            for p in model.parameters():
                p.grad = torch.randn_like(p)
            run()
            schedule.step()
        results.append(copy.deepcopy(model.state_dict()))
    assert weft.stats()["graphs"] <= 3  # without state, then with, then with any learning rate
    for key, value in results[0].items():
        assert torch.allclose(value, results[1][key], atol=1e-5)


def test_a_gradient_to_replaced_data_ends_the_graph_there():
    results = []
    for compiler in (lambda f: f, lambda f: weft.compile(f, backend="eager")):
        weft.reset()
        torch.manual_seed(0)
        w = torch.randn(4, requires_grad=True)

        def f(x, w=w):
            w.data = w.data + x.sum(0)
            return (x * w).sum()

        run = compiler(f)
        for _ in range(2):
            run(torch.randn(3, 4)).backward()
        results.append((w.detach().clone(), w.grad))
    _assert_same(*results)


def test_a_loop_that_replaces_the_data_of_parameters_ends_the_graph_once():
    """It ended at the first parameter, and then at each: vector_to_parameters."""
    results = []
    for compiler in (lambda f: f, lambda f: weft.compile(f, backend="eager")):
        weft.reset()
        model, vector = mlp(), torch.linspace(-1, 1, 1000)

        def f(x, vector, model=model):
            torch.nn.utils.vector_to_parameters(vector * 2, model.parameters())
            return model(x).sum()

        run = compiler(f)
        for _ in range(2):
            run(torch.ones(3, 4), vector).backward()
        results.append([(p.detach(), p.grad) for p in model.parameters()])
    assert weft.stats()["graph_breaks"] <= 2
    for eager, compiled in zip(*results, strict=True):
        _assert_same(eager, compiled)


def test_state_dict_inside():
    weft.reset()
    model = mlp()

    def f(x):
        found = model.state_dict()
        return x.sum() + found["0.weight"].sum(), found

    plain, compiled = f(torch.ones(3, 4)), weft.compile(f, backend="eager", fullgraph=True)(
        torch.ones(3, 4))
    assert type(plain[1]) is type(compiled[1]) and list(plain[1]) == list(compiled[1])
    assert plain[1]._metadata == compiled[1]._metadata


def test_second_backward_through_a_returned_loss_fails_as_in_eager():
    w = torch.randn(4, requires_grad=True)

    def f(x):
        loss = (x * w).sin().sum()
        loss.backward()
        return loss, w.sum()

    loss, other = weft.compile(f, backend="eager", fullgraph=True)(torch.randn(3, 4))
    assert loss.requires_grad and not loss.is_leaf
    other.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def _double(p):
    p.grad.mul_(2)


def test_hooks_on_leaves_run():
    results = []
    for compiler in (lambda f: f, lambda f: weft.compile(f, backend="eager")):
        weft.reset()
        torch.manual_seed(0)
        w = torch.randn(4, requires_grad=True)
        w.register_hook(lambda g: g * 3)
        v = torch.randn(4, requires_grad=True)
        v.register_post_accumulate_grad_hook(_double)

        def f(x, w=w, v=v):
            (x * w * v).sin().sum().backward()
            return w.grad + v.grad

        run = compiler(f)
        results.append([run(torch.randn(3, 4)) for _ in range(3)])
    _assert_same(*results)


def test_a_hook_added_later_is_seen():
    w = torch.ones(4, requires_grad=True)

    def f(x):
        w.grad = None
        (x * w).sum().backward()
        return w.grad.clone()

    compiled = weft.compile(f, backend="eager")
    x = torch.ones(4)
    assert torch.equal(compiled(x), x)
    w.register_hook(lambda g: g * 3)
    assert torch.equal(compiled(x), x * 3)


def test_leaf_questions():
    w = torch.ones(4, requires_grad=True)
    v = w * 2

    def f(x):
        y = x * w
        return (y + v, y.is_leaf, w.is_leaf, v.is_leaf, y.grad_fn is None, w.grad_fn is None,
                v.grad_fn is None)

    compiled = weft.compile(f, backend="eager", fullgraph=True)
    assert compiled(torch.ones(4))[1:] == f(torch.ones(4))[1:]


def test_the_first_step_is_the_one_that_stays():
    for make in (lambda p: torch.optim.AdamW(p, amsgrad=True), torch.optim.RMSprop,
                 lambda p: torch.optim.NAdam(p, foreach=True)):
        weft.reset()
        results = []
        for compiler in (lambda f: f, lambda f: weft.compile(f, backend="eager", fullgraph=True)):
            torch.manual_seed(0)
            model = mlp()
            model[0].bias.requires_grad_(False)
            optimizer = make(model.parameters())

            def step(x, model=model, optimizer=optimizer):
                optimizer.zero_grad()
                model(x).pow(2).mean().backward()
                optimizer.step()

            run = compiler(step)
            for _ in range(4):
                run(torch.randn(3, 4))
            results.append((copy.deepcopy(model.state_dict()), optimizer.state_dict()["state"]))
        assert weft.stats()["graphs"] == 1
        assert results[0][1].keys() == results[1][1].keys()
        for key, value in results[0][0].items():
            assert torch.allclose(value, results[1][0][key], atol=1e-5)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_retained_gradient_of_a_result_that_is_used_on(backend):
    """The backward comes later, through the rest of the function."""
    w = torch.randn(4, requires_grad=True)

    def f(x):
        y = w * x
        y.retain_grad()
        return y.sin(), y

    x = torch.randn(4)
    result, y = weft.compile(f, backend=backend)(x)
    result.sum().backward()
    torch.testing.assert_close(y.grad, y.detach().cos())
    torch.testing.assert_close(w.grad, y.detach().cos() * x)


_FACTOR = 2.0


def _scaled(gradient):
    return gradient * _FACTOR


def _hooked(x, w):
    y = (x * w).relu()
    y.register_hook(_scaled)
    z = y * 2
    z.register_hook(lambda gradient, limit=1.5: gradient.clamp(-limit, limit))
    return z


def _hooked_within(x, w):
    y = x * w
    y.register_hook(_scaled)
    (gradient,) = torch.autograd.grad((y**2).sum(), w, retain_graph=True)
    return y * gradient


def _hooked_with_variables(x, w):
    weight, factor = w.detach() * 3, 2.0
    for power in (1.0, 2.0):
        y = (x * w).sin()
        y.register_hook(lambda gradient, power=power, x=x: gradient * x**power)
        x = x * y
    y.register_hook(lambda gradient: gradient * weight + factor)
    return x * y


def _hooked_with_a_written_variable(x, w):
    weight = w.detach().clone()
    y = x * w
    y.register_hook(lambda gradient: gradient * weight)
    weight.mul_(5)
    return y * weight


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("program", [
    _hooked, _hooked_within, _hooked_with_variables, _hooked_with_a_written_variable])
def test_hooks_of_computed_tensors_are_part_of_the_graph(program, backend):
    weft.reset()
    x = torch.arange(3.0)
    gradients = []
    for function in (program, weft.compile(program, backend=backend)):
        w = torch.ones(3, requires_grad=True)
        function(x, w).backward(torch.tensor([1.0, 2.0, 3.0]))
        gradients.append(w.grad)
    torch.testing.assert_close(*gradients)
    assert weft.stats()["graph_breaks"] == 0


def test_hooks_that_do_more_than_compute_run_when_their_gradient_comes():
    seen = []

    def f(x, w):
        y = x * w
        seen.append("forward")
        y.register_hook(lambda gradient: seen.append("backward"))
        for factor in (1.0, 3.0):
            y.register_hook(lambda gradient: gradient * factor)
        return y

    compiled = weft.compile(f, backend="eager")
    w = torch.ones(3, requires_grad=True)
    y = compiled(torch.ones(3), w)
    assert seen == ["forward"]
    y.sum().backward()
    assert seen == ["forward", "backward"]
    assert w.grad.tolist() == [9.0, 9.0, 9.0]


def test_a_hook_sees_what_its_variables_hold_when_it_runs():
    def rebinding(x):
        factor = x.detach()
        y = x.sin()
        y.register_hook(lambda gradient: gradient * factor)
        factor = factor * 2
        return (y * factor).sum()

    def used_on(x):
        factor = x.detach() * 3
        y = x.sin()
        y.register_hook(lambda gradient: gradient * factor)
        print(end="")
        return (y * factor).sum()

    for f in (rebinding, used_on):
        gradients = []
        for g in (f, weft.compile(f)):
            x = torch.arange(3.0, requires_grad=True)
            g(x).backward()
            gradients.append(x.grad)
        torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("read", [False, True])
def test_old_gradients_lived_beside_the_new_ones(read):
    """What the step forgets is freed ahead of the graph, unless the graph reads it."""
    weight = torch.ones(3, requires_grad=True)
    alive = []

    def looking(gm, inputs):
        def run(*args):
            alive.append(old())
            return gm(*args)

        return run

    def step(x):
        norm = weight.grad.norm() if read else None
        weight.grad = None
        (weight * x).sum().backward()
        return norm

    compiled = weft.compile(step, backend=looking)
    for _ in range(2):
        weight.grad = torch.ones(3)
        old = weakref.ref(weight.grad)
        compiled(torch.full((3,), 2.0))
        assert torch.equal(weight.grad, torch.full((3,), 2.0))
    assert [one is None for one in alive] == [not read] * 2


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_anomaly_mode_looks_at_real_gradients_only(backend):
    weft.reset()
    weight = torch.zeros(2, requires_grad=True)

    def f(x):
        (weight * x).sqrt().sum().backward()
        return weight.grad

    compiled = weft.compile(f, backend=backend)
    assert compiled(torch.zeros(2)).isnan().all()
    assert weft.stats()["graph_breaks"] == 0
    with torch.autograd.set_detect_anomaly(True):
        with warnings.catch_warnings(), pytest.raises(RuntimeError, match="nan values"):
            warnings.simplefilter("ignore")
            compiled(torch.zeros(2))
        weight.data.fill_(1.0)
        compiled(torch.ones(2))


def test_a_gradient_function_is_alive_at_a_break():
    def f(x):
        y = x.sin()
        function = y.grad_fn
        print(function.name())
        return y * 2, function is y.grad_fn, y.grad_fn.name(), x.grad_fn.name()

    compiled = weft.compile(f, backend="eager")
    for made in (torch.ones(2, requires_grad=True) * 2, torch.ones(2, requires_grad=True).exp()):
        assert compiled(made)[1:] == f(made)[1:]


def test_no_tensor_of_a_program_is_a_fake():
    def f(x):  # nn.Module._apply swaps fakes instead of setting their data
        return isinstance(x * 2, FakeTensor), isinstance(x * 2, torch.FloatTensor)

    assert weft.compile(f, backend="eager")(torch.ones(2)) == (False, True)
