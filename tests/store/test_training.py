"""Training from the store: gradients and their gradients are eager's, nothing is compiled."""

import copy

import pytest
import torch
from torch import nn

import weft
from weft.diagnostics import events

WORK = {"capture", "aot", "partition", "lower", "schedule"}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2)

    def forward(self, x):
        h = self.norm(torch.nn.functional.gelu(self.first(x)))
        return h, self.last(nn.functional.dropout(h, 0.5)).sin()


def _loss(net, x):
    _, y = net(x)
    y.sum().backward()


def _both_results(net, x):
    h, y = net(x)
    (h.sum() + y.sum()).backward()


def _one_after_the_other(net, x):
    h, y = net(x)
    h.sum().backward(retain_graph=True)
    y.sum().backward()


def _inputs_alone(net, x):
    _, y = net(x)
    (x.grad,) = torch.autograd.grad(y.sum(), x)


def _second_derivative(net, x):
    _, y = net(x)
    (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    gradient.pow(2).sum().backward()


def _gradient_of_an_inner_result(net, x):
    h, y = net(x)
    h.register_hook(lambda gradient: gradient * 2)
    y.sum().backward()


def _accumulated(net, x):
    for _ in range(2):
        _loss(net, x)


def _frozen(net, x):
    net.first.requires_grad_(False)
    _loss(net, x)


def _without_gradients(net, x):
    with torch.no_grad():
        _, y = net(x)
    x.grad = y.sum() * x.detach()


STEPS = [_loss, _both_results, _one_after_the_other, _inputs_alone, _second_derivative,
         _gradient_of_an_inner_result, _accumulated, _frozen, _without_gradients]


def _state(net, x):
    return [x.grad, *(p.grad for p in net.parameters()), *(b.clone() for b in net.buffers())]


def _run(net, call, step):
    torch.manual_seed(0)
    x = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(3, 4).requires_grad_()
    step(call, x)
    return _state(net, x)


@pytest.fixture
def stored(tmp_path):
    with weft.config.patch(cache_dir=str(tmp_path / "cache"), store_entries=True,
                           fallback_random=True):
        yield
    weft.reset()


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.__name__)
@pytest.mark.parametrize("dynamic", [None, True])
def test_a_second_process_trains_without_compiling(stored, step, dynamic):
    torch.manual_seed(1)
    net = Net().double()
    expected = _run(copied := copy.deepcopy(net), copied, step)
    for is_second in (False, True):
        weft.reset()
        own = copy.deepcopy(net)
        with events.collect() as seen:
            actual = _run(own, weft.compile(own, backend="aot_eager", dynamic=dynamic), step)
        torch.testing.assert_close(actual, expected)
        stages = {event.name for event in seen if event.kind == "stage_start"}
        reasons = [event.reason for event in seen if event.kind == "not_stored"]
        assert not (is_second and stages & WORK), (stages, reasons)


def test_another_backward_than_that_of_the_first_process_is_compiled(stored):
    def program(x, w):
        return x.sin() * w, (x * w).exp()

    def run(call, results):
        x, w = torch.ones(3), torch.full((3,), 0.5, requires_grad=True)
        values = call(x, w)
        sum(values[k].sum() for k in results).backward()
        return w.grad

    for results, compiled in ([0], 1), ([1], 1), ([0, 1], 1), ([0], 0), ([1], 0):
        weft.reset()
        torch.testing.assert_close(
            run(weft.compile(program, backend="aot_eager"), results), run(program, results))
        assert events.counters().get("backwards_stored", 0) == compiled


def test_writes_to_inputs_in_training(stored):
    def program(x, w, count):
        count += 1
        y = x * w
        y.mul_(count)
        return y.exp()

    def run(call):
        x, w, count = torch.ones(3), torch.ones(3, requires_grad=True), torch.zeros(3)
        for _ in range(2):
            call(x, w, count).sum().backward()
        return w.grad, count

    expected = run(program)
    for loaded in (0, 1):
        weft.reset()
        before = events.counters().get("entries_loaded", 0)
        torch.testing.assert_close(run(weft.compile(program, backend="aot_eager")), expected)
        assert events.counters().get("entries_loaded", 0) - before == loaded
