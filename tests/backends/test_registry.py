"""Backends by name, by entry point, as callables; `compile_fx`."""

import importlib
import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest
import torch
import torch.fx

import weft
from weft.backends import list_backends, register_backend, registry, resolve
from weft.backends.inductor import compile_fx
from weft.errors import BadValue, UnknownBackend


def test_names() -> None:
    assert {"eager", "aot_eager", "aot_eager_decomposed", "inductor"} <= set(list_backends())
    with pytest.raises(UnknownBackend, match="did you mean 'inductor'"):
        resolve("inducter")
    with pytest.raises(UnknownBackend, match="torch:"):
        resolve("torch:nothing")
    with pytest.raises(BadValue):
        resolve(3)  # type: ignore[arg-type]


def test_register() -> None:
    def mine(gm, inputs):
        return gm.forward

    try:
        assert register_backend(mine) is mine and resolve("mine") is mine
        assert register_backend("other", mine) is mine and resolve("other") is mine
        register_backend("third")(mine)
        assert {"mine", "other", "third"} <= set(list_backends())
    finally:
        for name in ("mine", "other", "third"):
            registry._registered.pop(name, None)


@pytest.mark.parametrize("group", ["weft_backends", "torch_dynamo_backends"])
def test_entry_points(group: str, monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("installed", "weft.backends.eager:eager", group)

    def found(group: str, wanted: str = group):
        return [point] if group == wanted else []

    monkeypatch.setattr(registry, "entry_points", found)
    try:
        assert "installed" in list_backends()
        assert resolve("installed").__name__ == "eager"
    finally:
        registry._registered.pop("installed", None)


def test_backends_of_torch_without_a_prefix() -> None:
    torch_registry = importlib.import_module("torch._dynamo.backends.registry")
    seen: list[torch.fx.GraphModule] = []

    @torch_registry.register_backend
    def registered_with_torch(gm, inputs):
        seen.append(gm)
        return gm.forward

    try:
        for name in ("registered_with_torch", "torch:registered_with_torch"):
            compiled = weft.compile(lambda x: x + 1, backend=name)
            assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
        assert len(seen) == 2
        assert resolve("inductor").__name__ == "inductor" and registry.is_own(resolve("inductor"))
    finally:
        torch_registry._BACKENDS.pop("registered_with_torch", None)
        torch_registry._COMPILER_FNS.pop("registered_with_torch", None)


def test_nodes_say_where_they_come_from() -> None:
    """In the forms of torch.compile, for backends that read them."""
    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = torch.nn.Linear(3, 3)

        def forward(self, x):
            return torch.relu(self.lin(x))

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList([Block(), Block()])

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x.sum()

    graphs: dict[str, list[torch.fx.Node]] = {}
    model, x = Model(), torch.randn(2, 3)
    for name, compiler in (("torch", torch.compile), ("weft", weft.compile)):
        def backend(gm, inputs, name=name):
            graphs[name] = [n for n in gm.graph.nodes if n.op.startswith("call_")]
            return gm.forward

        compiler(model, backend=backend)(x)
    for theirs, ours in zip(graphs["torch"], graphs["weft"], strict=True):
        assert ours.meta["source_fn_stack"] == theirs.meta["source_fn_stack"]
        assert ours.meta["nn_module_stack"] == theirs.meta.get("nn_module_stack", {})
        shown = [line for line in theirs.meta["stack_trace"].splitlines() if "^" not in line]
        assert ours.meta["stack_trace"].splitlines() == shown


def test_compile_fx_after_own_passes() -> None:
    def with_pass(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]):
        for node in gm.graph.nodes:
            if node.target in (torch.add, torch.ops.aten.add.Tensor) or "add" in str(node.target):
                node.target = torch.sub
        gm.recompile()
        return compile_fx(gm, inputs)

    compiled = weft.compile(lambda x, y: torch.add(x, y).relu(), backend=with_pass)
    x, y = torch.randn(8), torch.randn(8)
    torch.testing.assert_close(compiled(x, y), (x - y).relu())


def test_compile_fx_gives_a_callable_of_the_inputs() -> None:
    x = torch.randn(8)
    compiled = weft.compile_fx(torch.fx.symbolic_trace(lambda x: x.relu() + 1), [x])
    result = compiled(x)
    torch.testing.assert_close(result, x.relu() + 1)
    with pytest.raises(BadValue, match="GraphModule, got int"):
        weft.compile_fx(3, [x])


def test_compile_fx_reads_parameters_at_each_call() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    gm = torch.fx.symbolic_trace(model)
    x = torch.randn(5, 4)
    compiled = compile_fx(gm, [x])
    for _ in range(2):
        reference = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
        reference.load_state_dict(model.state_dict())
        torch.testing.assert_close(compiled(x), reference(x))
        torch.testing.assert_close(model[1].running_mean, reference[1].running_mean)
        with torch.no_grad():
            model[0].weight.mul_(2)


def test_eager_does_not_load_the_compiler() -> None:
    program = (
        "import sys, weft.backends as b; b.resolve('inductor'); b.list_backends();"
        "sys.exit(any(m.startswith(('weft.codegen', 'weft.aot')) for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
