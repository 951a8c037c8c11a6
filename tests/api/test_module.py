import copy
import inspect
import pickle
import pydoc

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
    assert list(compiled.state_dict()) == list(model.state_dict())
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
    assert "mask" not in compiled.state_dict()
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


class Speaker(nn.Module):
    """A model that calls itself."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x, *, twice: bool = False):
        """One step."""
        return self.layer(x) * (2 if twice else 1)

    def generate(self, x, steps):
        """Calls the model again and again."""
        for _ in range(steps):
            x = self(x, twice=True)
        return x


@pytest.mark.usefixtures("fresh")
def test_methods_compile_the_calls_that_they_make():
    model = Speaker()
    compiled = weft.compile(model, backend="eager", fullgraph=True)
    x = torch.randn(3, 2)
    expected = model.generate(x, 3)
    for _ in range(2):
        with torch.no_grad():
            result = compiled.generate(x, steps=3)
        torch.testing.assert_close(result, expected)
        assert weft.stats()["graphs"] == 1
    assert inspect.signature(compiled.generate) == inspect.signature(model.generate)
    assert compiled.generate.__self__ is model
    assert compiled.generate.__doc__ == model.generate.__doc__
    weft.reset()
    model(x)
    with pytest.raises(TypeError):
        compiled.generate(x)
    assert "_compiled_call_impl" not in vars(model)
    assert weft.stats()["graphs"] == 0, "the model itself stays as it was"


@pytest.mark.usefixtures("fresh")
def test_a_compiled_module_inside_of_compiled_code_keeps_its_methods():
    compiled = weft.compile(Speaker(), backend="eager")
    program = weft.compile(lambda x: compiled.generate(x, 2) + 1, backend="eager",
                           fullgraph=True)
    x = torch.randn(3, 2)
    torch.testing.assert_close(program(x), compiled._orig_mod.generate(x, 2) + 1)


def test_it_reads_as_the_users_module():
    model = Speaker()
    compiled = weft.compile(model)
    assert inspect.signature(compiled.forward) == inspect.signature(model.forward)
    assert compiled.forward.__doc__ == "One step."
    assert compiled.__doc__ == Speaker.__doc__
    assert Speaker.__doc__ in pydoc.render_doc(compiled, renderer=pydoc.plaintext)
    assert repr(compiled).startswith("CompiledModule(")
    x = torch.randn(3, 2)
    torch.testing.assert_close(compiled.forward(x, twice=True), model(x, twice=True))


def test_it_passes_for_torch_compiles_class_where_that_is_loaded():
    from torch._dynamo.eval_frame import OptimizedModule

    model = Speaker()
    compiled = weft.compile(model)
    assert isinstance(compiled, OptimizedModule)
    assert not isinstance(model, OptimizedModule)
    assert type(compiled) is CompiledModule
    assert isinstance(compiled, CompiledModule | nn.Module)
    pickled = pickle.loads(pickle.dumps(compiled))
    for twin in (copy.copy(compiled), copy.deepcopy(compiled), pickled):
        assert isinstance(twin, OptimizedModule)
        assert type(twin) is CompiledModule
    assert copy.copy(compiled)._orig_mod is model
    step = compiled.dynamo_ctx(lambda x: x + 1)  # as Lightning's `from_compiled`
    assert torch.equal(step(torch.ones(1)), torch.full((1,), 2.0))
    compiled._compile_kwargs = {"mode": "default"}  # as Lightning's Fabric
    assert compiled._compile_kwargs == {"mode": "default"}
    assert not hasattr(model, "_compile_kwargs")
    assert weft.compile(model, mode="max-autotune")._compile_kwargs["backend"] == "weft"


def _forms(state):
    """A state as weft gives it, and as torch.compile does."""
    return state, {f"_orig_mod.{name}": value for name, value in state.items()}


@pytest.mark.parametrize("form", [0, 1])
@pytest.mark.parametrize("assign", [False, True])
def test_states_of_both_forms_are_loaded(form, assign):
    state = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).state_dict()
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    result = weft.compile(model).load_state_dict(_forms(state)[form], assign=assign)
    assert result.missing_keys == result.unexpected_keys == []
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name])


def test_what_does_not_fit_a_state_is_named_as_in_the_model():
    compiled = weft.compile(nn.Linear(2, 2))
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "bias"'):
        compiled.load_state_dict({"weight": torch.ones(2, 2)})
    other = {"weight": torch.ones(2, 2), "more": torch.ones(1)}
    result = compiled.load_state_dict(other, strict=False)
    assert (result.missing_keys, result.unexpected_keys) == (["bias"], ["more"])


@pytest.mark.parametrize("form", [0, 1])
def test_a_compiled_part_of_a_model_loads_the_models_state(form):
    whole = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))
    state = {name: value + 1 for name, value in whole.state_dict().items()}
    parts = nn.Sequential(whole[0], weft.compile(whole[1]))
    assert list(parts.state_dict()) == list(state)
    given = state if form == 0 else {
        name.replace("1.", "1._orig_mod.", 1) if name.startswith("1.") else name: value
        for name, value in state.items()}
    parts.load_state_dict(given)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, state[name])


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "a part"])
def test_checkpoints_of_torch_distributed_have_the_models_names(whole):
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    model = nn.Sequential(Speaker())
    compiled = weft.compile(model) if whole else nn.Sequential(weft.compile(model[0]))
    optimizer = torch.optim.SGD(compiled.parameters(), 0.1, momentum=0.9)
    compiled(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    state, optimizer_state = get_state_dict(compiled, optimizer)
    assert list(state) == list(model.state_dict())
    assert set(optimizer_state["state"]) == set(state)
    set_state_dict(compiled, optimizer, optim_state_dict=optimizer_state,
                   model_state_dict={name: value + 1 for name, value in state.items()})
    assert torch.equal(model[0].layer.weight, state["0.layer.weight"])


@pytest.mark.usefixtures("fresh")
def test_copies_of_a_module_compiled_in_place_are_compiled():
    model = weft.compile_inplace(Speaker(), backend="eager", fullgraph=True)
    x = torch.randn(3, 2)
    before = weft.stats()["graphs"]
    for twin in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(twin(x), twin.forward(x))
        assert len(twin._compiled_call_impl.__func__.used_entries) == 1
    assert weft.stats()["graphs"] == before + 2  # copies have their attributes in another order
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.layer.weight.zero_()
    assert not torch.equal(twin(x), model(x))
    assert weft.uncompile_inplace(twin) is twin
    assert vars(twin).keys() == vars(Speaker()).keys()


def test_backends_of_users_go_with_copies_and_pickles():
    compiled = weft.compile(Speaker(), backend=eager_backend)
    x = torch.randn(3, 2)
    for twin in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        torch.testing.assert_close(twin(x), compiled(x))


def eager_backend(gm, example_inputs):
    return gm.forward
