import copy

import pytest
import torch
from torch import nn

import weft
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


HOOKS = sorted(n for n in dir(nn.Module) if n.startswith("register_") and n.endswith("hook"))


def _life_with(kind: str, model: nn.Module, target: nn.Module) -> list[list[float]]:
    """What a hook of this kind is called with in two training steps, saving and loading."""
    seen: list[list[float]] = []

    def hook(*args: object) -> None:
        flat = torch.utils._pytree.tree_leaves(args)
        seen.append([v.sum().item() for v in flat if isinstance(v, torch.Tensor)])

    getattr(target, kind)(hook)
    x = torch.arange(6.0).reshape(3, 2).requires_grad_()
    for _ in range(2):
        target(x).sum().backward()
    target.load_state_dict(target.state_dict())
    return seen


@pytest.mark.filterwarnings("ignore:Using a non-full backward hook")
@pytest.mark.parametrize("kind", HOOKS)
def test_each_kind_of_hook_acts_on_the_wrapper_as_on_the_model(kind):
    torch.manual_seed(0)
    model = Net()
    compiled = CompiledModule(copy.deepcopy(model), Calls().parts)
    expected = _life_with(kind, model, model)
    assert expected
    assert _life_with(kind, compiled._orig_mod, compiled) == expected


def test_what_is_registered_with_the_wrapper_belongs_to_the_original(made):
    model, compiled, _ = made
    compiled.register_buffer("kept", torch.ones(2))
    compiled.register_buffer("mask", torch.ones(2), persistent=False)
    compiled.register_parameter("bias", nn.Parameter(torch.ones(2)))
    compiled.register_module("extra", nn.Linear(2, 2))
    compiled.add_module("more", nn.Linear(2, 2))
    assert {"kept", "mask"} <= set(model._buffers)
    assert "bias" in model._parameters
    assert {"extra", "more"} <= set(model._modules)
    assert "_orig_mod.mask" not in compiled.state_dict()
    del compiled.kept, compiled.bias, compiled.extra
    assert "kept" not in model._buffers
    assert "bias" not in model._parameters


def test_a_forward_set_on_the_wrapper_replaces_the_originals(made):
    model, compiled, _ = made
    x = torch.ones(1, 2)
    compiled.forward = lambda x: x + 1
    assert torch.equal(model(x), x + 1)
    assert torch.equal(compiled(x), x + 1)
    del compiled.forward
    assert torch.equal(compiled(x), model.layer(x))


def test_another_original_is_compiled_anew(made):
    _, compiled, calls = made
    x = torch.ones(1, 2)
    compiled(x)
    other = Net()
    compiled._orig_mod = other
    assert torch.equal(compiled(x), other(x))
    assert calls.forward == 2


def _double(module, args, result):
    return result * 2


def test_copies_keep_the_hooks_of_the_wrapper(made):
    model, compiled, _ = made
    x = torch.ones(1, 2)
    compiled.register_forward_hook(_double)
    twin = copy.deepcopy(compiled)
    assert torch.equal(twin(x), model(x) * 2)
    twin.register_forward_hook(_double)
    assert torch.equal(twin(x), model(x) * 4)
    assert torch.equal(compiled(x), model(x) * 2)


def test_a_wrapper_compiled_again_keeps_its_hooks():
    model = Net()
    compiled = weft.compile(model, backend="eager")
    compiled.register_forward_hook(_double)
    again = weft.compile(compiled, backend="eager")
    x = torch.ones(1, 2)
    assert torch.equal(again(x), model(x) * 2)


def test_hooks_of_all_modules_run_once_beside_a_hook_of_the_wrapper(made):
    model, compiled, _ = made
    x, counts = torch.ones(1, 2), []
    compiled.register_forward_hook(_double)
    for called in (model, compiled):
        seen = []
        handle = nn.modules.module.register_module_forward_hook(
            lambda m, args, out, seen=seen: seen.append(m))
        called(x)
        handle.remove()
        counts.append(len(seen))
    assert counts[0] == counts[1] == 2
