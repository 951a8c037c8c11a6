"""Stances, regions, and the markers of weft and torch.compiler."""

from __future__ import annotations

import copy
import importlib
import marshal
import threading
from unittest import mock

import pytest
import torch

import weft
from tests.capture.harness import check


@pytest.fixture(autouse=True)
def fresh():
    weft.reset()
    yield
    weft.set_stance("default")


def _count_calls():
    """A compiled function, and the number of times that its graph was run."""
    runs = []

    def backend(gm, inputs):
        def call(*args):
            runs.append(len(args))
            return gm.forward(*args)
        return call

    return weft.compile(lambda x: x * 2, backend=backend, dynamic=False), runs


def test_force_eager_is_a_context():
    f, runs = _count_calls()
    f(torch.ones(2))
    with weft.set_stance("force_eager"):
        assert torch.equal(f(torch.ones(2)), torch.full((2,), 2.0))
        assert torch.equal(f(torch.ones(3)), torch.full((3,), 2.0))
    assert len(runs) == 1
    f(torch.ones(2))
    assert len(runs) == 2 and weft.stats()["graphs"] == 1


def test_force_eager_leaves_nested_frames_alone():
    @weft.disable
    def outside(x):
        with weft.set_stance("force_eager"):
            return f(x)

    f, runs = _count_calls()
    g = weft.compile(lambda x: outside(x) + 1, backend="eager")
    assert torch.equal(g(torch.ones(2)), torch.full((2,), 3.0))
    assert not runs


def test_eager_on_recompile():
    f, runs = _count_calls()
    f(torch.ones(2))
    weft.set_stance("eager_on_recompile")
    f(torch.ones(2))
    assert len(runs) == 2
    assert torch.equal(f(torch.ones(3)), torch.full((3,), 2.0))
    assert len(runs) == 2 and weft.stats()["graphs"] == 1
    weft.set_stance("default")
    f(torch.ones(3))
    assert len(runs) == 3


def test_fail_on_recompile():
    f, _ = _count_calls()
    f(torch.ones(2))
    with weft.set_stance("fail_on_recompile"):
        f(torch.ones(2))
        with pytest.raises(weft.errors.RecompileError, match="size mismatch"):
            f(torch.ones(3))
    f(torch.ones(3))


def test_stance_as_decorator_and_nested():
    f, runs = _count_calls()

    @weft.set_stance("force_eager")
    def plain(x):
        return f(x)

    f(torch.ones(2))  # making the decorator changed nothing
    plain(torch.ones(2))
    assert len(runs) == 1
    with weft.set_stance("force_eager"):
        with weft.set_stance("default"):
            f(torch.ones(2))
        f(torch.ones(2))
    assert len(runs) == 2


def test_stance_is_of_the_thread():
    f, runs = _count_calls()
    with weft.set_stance("force_eager"):
        worker = threading.Thread(target=lambda: f(torch.ones(2)))
        worker.start()
        worker.join()
        f(torch.ones(2))
    assert len(runs) == 1


def test_unknown_stance():
    with pytest.raises(weft.errors.UnknownStance, match="did you mean"):
        weft.set_stance("force_eagre")


def test_stance_set_inside_of_a_compiled_function():
    def f(x):
        x = x + 1
        with weft.set_stance("force_eager"):
            x = x * 2
        return x + 1

    check(f, (torch.ones(2),), breaks=None)


def _branching(x):
    if x.sum() > 0:
        return x + 1
    return x - 1


def test_error_on_graph_break_outside():
    f = weft.compile(_branching, backend="eager")
    with weft.error_on_graph_break(True), pytest.raises(weft.errors.GraphBreakError):
        f(torch.ones(2))
    assert torch.equal(f(torch.ones(2)), torch.full((2,), 2.0))
    strict = weft.compile(_branching, backend="eager", fullgraph=True)
    with weft.error_on_graph_break(False):
        assert torch.equal(strict(torch.ones(2)), torch.full((2,), 2.0))


def test_error_on_graph_break_inside():
    def f(x):
        x = _branching(x)
        with weft.error_on_graph_break(True):
            x = x * 2
        return x

    check(f, (torch.ones(2),), breaks=1)

    def g(x):
        with weft.error_on_graph_break(True):
            return _branching(x) * 2

    with pytest.raises(weft.errors.GraphBreakError):
        weft.compile(g, backend="eager")(torch.ones(2))


def test_error_on_graph_break_is_left_behind_a_break():
    @weft.error_on_graph_break(False)
    def may_break(x):
        return _branching(x)

    def f(x):
        return may_break(x) * 2

    compiled = weft.compile(f, backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 4.0))

    def g(x):
        return _branching(may_break(x))

    with pytest.raises(weft.errors.GraphBreakError):
        weft.compile(g, backend="eager", fullgraph=True)(torch.ones(2))


def test_error_on_graph_break_setting():
    with weft.config.patch(error_on_graph_break=True), \
            pytest.raises(weft.errors.GraphBreakError):
        weft.compile(_branching, backend="eager")(torch.ones(2))


@pytest.mark.parametrize("disable", [weft.disable, torch.compiler.disable])
def test_disabled_functions(disable):
    @disable
    def outside(x):
        assert not weft.is_compiling()
        return inner(x) + 1

    def inner(x):
        return x * 2

    def f(x):
        return outside(x + 1) + 1

    check(f, (torch.ones(2),), graphs=2, breaks=1)


@pytest.mark.parametrize("disable", [weft.disable, torch.compiler.disable])
def test_disabled_but_not_what_it_calls(disable):
    compiling = []

    def inner(x):
        if weft.is_compiling():
            return x * 2
        compiling.append("not captured")
        return x * 2

    @disable(recursive=False)
    def outside(x):
        compiling.append(weft.is_compiling())
        return inner(x) + 1

    def f(x):
        return outside(x + 1) + 1

    check(f, (torch.ones(2),), graphs=3, breaks=1)
    assert set(compiling) == {False, "not captured"}  # the latter by the eager runs


def test_disabled_methods_and_callables():
    class Plain:
        def method(self, x):
            return x * 2

        def __call__(self, x):
            return x * 3

    plain = Plain()
    method = weft.disable(plain.method, recursive=False)
    whole = weft.disable(plain)
    check(lambda x: method(x) + whole(x), (torch.ones(2),), breaks=2)


@pytest.mark.parametrize("allow", [weft.allow_in_graph, torch.compiler.allow_in_graph])
def test_allow_in_graph(allow):
    @allow
    def opaque(x, scale, pair):
        assert not weft.is_compiling()
        return x * scale + pair[0], {"b": pair[1]}

    def f(x):
        a, more = opaque(x, 2.0, (x, x + 1))
        return a + more["b"]

    graphs = []

    def backend(gm, inputs):
        graphs.append(gm)
        return gm.forward

    compiled = weft.compile(f, backend=backend, fullgraph=True)
    x = torch.randn(3)
    assert torch.equal(compiled(x), f(x))
    assert any(n.target is opaque for n in graphs[0].graph.nodes)
    weft.reset()
    assert torch.allclose(weft.compile(f, fullgraph=True)(x), f(x))


def test_is_compiling_in_all_spellings():
    def f(x):
        return (x + 1, weft.is_compiling(), torch.compiler.is_compiling(),
                torch.compiler.is_dynamo_compiling(), torch.compiler.is_exporting())

    assert weft.compile(f, backend="eager")(torch.ones(2))[1:] == (True, True, True, False)


def test_assume_constant_result():
    calls = []

    @torch.compiler.assume_constant_result
    def settings(name):
        calls.append(name)
        return len(calls)

    f = weft.compile(lambda x: x * settings("scale"), backend="eager")
    assert torch.equal(f(torch.ones(2)), f(torch.ones(2)))
    assert calls == ["scale"]


def test_substitute_in_graph():
    def spelled(a, b, /):
        return a * 2 + b

    torch.compiler.substitute_in_graph(_SUBSTITUTED, skip_signature_check=True)(spelled)
    f = weft.compile(lambda x: x + _SUBSTITUTED(3, 4), backend="eager", fullgraph=True)
    assert torch.equal(f(torch.zeros(1)), torch.full((1,), 10.0))


def test_substitutes_of_torch_compile_itself_are_not_used():
    torch.compiler.substitute_in_graph(marshal.loads, skip_signature_check=True)(lambda data: data)

    def f(x):
        return torch.nn.LazyLinear(3)(x)  # torch.compile has one for its `_make_subclass`

    weft.compile(f, backend="eager")(torch.ones(2, 2))


_SUBSTITUTED = marshal.dumps


def test_nested_compile_region():
    @torch.compiler.nested_compile_region
    def layer(x):
        return x.sin() * 2

    check(lambda x: layer(x) + layer(x + 1), (torch.ones(2),), graphs=1)


def test_compiled_functions_and_modules_within_compiled_ones_are_inlined():
    inner = weft.compile(torch.relu, backend="eager")
    linear = weft.compile(torch.nn.Linear(3, 3), backend="eager")

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.part = linear

        @weft.compile(backend="eager")
        def scaled(self, x):
            return x * 2

        def forward(self, x):
            return self.scaled(self.part(inner(x))), inner

    weft.reset()
    model = Model()
    y, same_inner = weft.compile(model, backend="eager")(torch.ones(3))
    assert torch.equal(y, linear._orig_mod(torch.ones(3)) * 2)
    assert same_inner is inner
    stats = weft.stats()
    assert (stats["graphs"], stats["graph_breaks"]) == (1, 0)


def test_modules_are_made_inside_beside_torch_compile() -> None:
    """Once used, torch.compile patches `nn.Module.__init__` to count modules: a break."""
    guard = importlib.import_module("torch._dynamo.mutation_guard")
    with (
        mock.patch.object(torch.nn.Module, "__init__", torch.nn.Module.__init__),
        mock.patch.object(torch.nn.Module, "__setstate__", torch.nn.Module.__setstate__),
        mock.patch.object(torch.nn.Module, "___needs_generation_tag_patch", True, create=True),
    ):
        guard.install_generation_tagging_init()
        assert torch.nn.Module.__init__.__name__ == "patched_init"
        layers = torch.nn.ModuleList([torch.nn.Linear(3, 3) for _ in range(3)])
        weft.reset()
        x = torch.randn(2, 3)
        sliced = weft.compile(lambda x: [layer(x) for layer in layers[:2]][1], backend="eager")
        copied = weft.compile(lambda x: copy.deepcopy(layers)[1](x), backend="eager")
        torch.testing.assert_close([sliced(x), copied(x)], [layers[1](x)] * 2)
        assert weft.stats()["graph_breaks"] == 0
