import copy

import pytest
import torch
from torch import nn

from weft.module import CompiledModule


class Calls:
    """Stands for the compiler: counts which part ran."""

    def __init__(self):
        self.forward = self.call = 0

    def parts(self, module):
        def forward(*args, **kwargs):
            self.forward += 1
            return module.forward(*args, **kwargs)

        def call(*args, **kwargs):
            self.call += 1
            return module(*args, **kwargs)

        return forward, call


class Net(nn.Module):
    scale = 1.0

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("seen", torch.zeros(()))
        self.counter = 0

    def forward(self, x, *, twice=False):
        return self.layer(x) * (2 if twice else 1) * self.scale


@pytest.fixture
def made():
    model, calls = Net(), Calls()
    return model, CompiledModule(model, calls.parts), calls


def test_calls_go_to_the_compiled_forward(made):
    model, compiled, calls = made
    x = torch.randn(3, 2)
    torch.testing.assert_close(compiled(x, twice=True), model(x, twice=True))
    assert (calls.forward, calls.call) == (1, 0)


def test_attributes_pass_through_both_ways(made):
    model, compiled, _ = made
    assert compiled.layer is model.layer
    assert compiled.scale == 1.0
    compiled.counter = 5
    compiled.scale = 3.0
    assert (model.counter, model.scale) == (5, 3.0)
    del compiled.counter
    assert not hasattr(model, "counter")
    with pytest.raises(AttributeError, match="nothing"):
        _ = compiled.nothing
    assert "counter" not in dir(compiled)
    assert "layer" in dir(compiled)


def test_parameters_and_state_are_the_originals(made):
    model, compiled, _ = made
    assert [id(p) for p in compiled.parameters()] == [id(p) for p in model.parameters()]
    assert list(compiled.state_dict()) == [f"_orig_mod.{k}" for k in model.state_dict()]
    compiled.load_state_dict({k: v + 1 for k, v in compiled.state_dict().items()})
    assert model.seen.item() == 1


def test_mode_follows_the_original(made):
    model, compiled, _ = made
    compiled.eval()
    assert not model.training
    assert not model.layer.training
    model.train()
    assert compiled.training


def test_to_moves_the_original(made):
    model, compiled, _ = made
    assert compiled.to(torch.float64) is compiled
    assert model.layer.weight.dtype is torch.float64


def test_hooks_of_the_original_run_and_take_the_slow_way(made):
    model, compiled, calls = made
    seen = []
    handle = model.register_forward_hook(lambda m, args, out: seen.append("after"))
    compiled(torch.randn(1, 2))
    assert seen == ["after"]
    assert (calls.forward, calls.call) == (0, 1)
    handle.remove()
    compiled(torch.randn(1, 2))
    assert (calls.forward, calls.call) == (1, 1)


def test_hooks_of_the_wrapper_run_once(made):
    _, compiled, calls = made
    seen = []
    compiled.register_forward_pre_hook(lambda m, args: seen.append("before"))
    compiled.register_forward_hook(lambda m, args, out: seen.append("after"))
    compiled(torch.randn(1, 2))
    assert seen == ["before", "after"]
    assert calls.forward == 1


def test_global_hooks_run(made):
    _, compiled, _ = made
    seen = []
    handle = nn.modules.module.register_module_forward_hook(
        lambda m, args, out: seen.append(type(m).__name__))
    try:
        compiled(torch.randn(1, 2))
    finally:
        handle.remove()
    assert {"Net", "Linear"} <= set(seen)


def test_containers_keep_length_iteration_and_index():
    inner = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    compiled = CompiledModule(inner, Calls().parts)
    assert len(compiled) == 2
    assert list(compiled) == list(inner)
    assert compiled[0] is inner[0]
    with pytest.raises(TypeError, match="Linear"):
        len(CompiledModule(nn.Linear(1, 1), Calls().parts))


def test_copies_are_independent(made):
    model, compiled, _ = made
    twin = copy.deepcopy(compiled)
    twin.layer.weight.data.zero_()
    assert model.layer.weight.abs().sum() > 0
    assert isinstance(twin, CompiledModule)
    x = torch.randn(1, 2)
    torch.testing.assert_close(twin(x), twin._orig_mod(x))


def test_a_module_class_with_its_own_call_is_called_that_way():
    class Custom(nn.Module):
        def __call__(self, x):
            return x + 1

    calls = Calls()
    compiled = CompiledModule(Custom(), calls.parts)
    assert compiled(torch.zeros(1)).item() == 1
    assert calls.call == 1
