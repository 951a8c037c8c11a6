import ast
import asyncio
import copy
import functools
import inspect
import pickle
import threading
from pathlib import Path

import pytest
import torch
from torch import nn

import weft
from weft import errors

pytestmark = pytest.mark.usefixtures("fresh")
X = torch.arange(6.0).reshape(2, 3)


def double(x, *, scale=2.0):
    """Doubles."""
    return x * scale


class Thing:
    factor = 3

    def __call__(self, x):
        return x * self.factor

    def method(self, x):
        return x + self.factor

    @staticmethod
    def static(x):
        return x - 1

    @classmethod
    def cls_method(cls, x):
        return x * cls.factor


CALLABLES = {
    "function": double,
    "lambda": lambda x: x.relu() + 1,
    "partial": functools.partial(double, scale=5.0),
    "bound method": Thing().method,
    "static method": Thing.static,
    "class method": Thing.cls_method,
    "object with __call__": Thing(),
    "torch function": torch.relu,
    "functional": nn.functional.gelu,
    "tensor method": torch.Tensor.sum,
    "module method": nn.Linear(3, 3).forward,
}


@pytest.mark.parametrize("name", CALLABLES)
def test_every_kind_of_callable(name):
    fn = CALLABLES[name]
    compiled = weft.compile(fn)
    for _ in range(2):
        torch.testing.assert_close(compiled(X), fn(X))


def test_decorator_bare_and_with_arguments():
    @weft.compile
    def bare(x):
        return x + 1

    @weft.compile(fullgraph=True, dynamic=False)
    def given(x):
        return x + 2

    @weft.optimize("eager")
    def optimized(x):
        return x + 3

    for fn, n in ((bare, 1), (given, 2), (optimized, 3)):
        torch.testing.assert_close(fn(X), X + n)


def test_a_decorated_method_belongs_to_its_instance():
    class Holder:
        def __init__(self, n):
            self.n = n

        @weft.compile
        def add(self, x):
            return x + self.n

    one, two = Holder(1), Holder(2)
    torch.testing.assert_close(one.add(X), X + 1)
    torch.testing.assert_close(two.add(X), X + 2)


def test_name_doc_and_signature_are_the_originals():
    compiled = weft.compile(double)
    assert compiled.__name__ == "double"
    assert compiled.__doc__ == "Doubles."
    assert inspect.signature(compiled) == inspect.signature(double)


def test_two_compilations_of_one_function_do_not_share_code():
    seen = []

    def backend(gm, inputs):
        seen.append(gm)
        return gm.forward

    first, second = weft.compile(double, backend="eager"), weft.compile(double, backend=backend)
    first(X)
    assert not seen
    torch.testing.assert_close(second(X), double(X))
    assert len(seen) == 1
    torch.testing.assert_close(double(X), X * 2)


def test_compiling_a_compiled_function_compiles_the_original():
    once = weft.compile(double, backend="eager")
    twice = weft.compile(once)
    torch.testing.assert_close(twice(X), double(X))
    module = weft.compile(weft.compile(nn.Linear(3, 3)))
    assert isinstance(module._orig_mod, nn.Linear)


def test_disable_returns_the_argument():
    assert weft.compile(double, disable=True) is double
    with weft.config.patch(disable=True):
        assert weft.compile(double) is double


def test_wrong_arguments_of_a_call_raise_as_eager_does():
    compiled = weft.compile(double)
    for args, kwargs in (((), {}), ((X, 1), {}), ((X,), {"sclae": 1})):
        with pytest.raises(TypeError) as wanted:
            double(*args, **kwargs)
        with pytest.raises(TypeError) as found:
            compiled(*args, **kwargs)
        assert str(found.value) == str(wanted.value)


@pytest.mark.parametrize("bad", [
    {"fullgraph": 1}, {"dynamic": "yes"}, {"options": [1]}, {"options": {"strict": "yes"}}])
def test_bad_settings_are_refused_at_once(bad):
    with pytest.raises(errors.BadValue):
        weft.compile(double, **bad)


def test_options_apply_to_this_compilation_only():
    seen = []

    def backend(gm, inputs):
        seen.append(weft.config.fallback_random)
        return gm.forward

    weft.compile(double, backend=backend, options={"fallback_random": True})(X)
    weft.compile(double, backend=backend)(X)
    assert seen == [True, False]
    assert not weft.config.fallback_random


@pytest.mark.parametrize("mode", [None, "default", "reduce-overhead", "max-autotune",
                                  "max-autotune-no-cudagraphs"])
def test_every_mode_is_right(mode):
    torch.testing.assert_close(weft.compile(double, mode=mode)(X), double(X))


def test_generators_and_coroutines_still_work():
    def numbers(x):
        for i in range(3):
            yield x * i

    async def later(x):
        await asyncio.sleep(0)
        return x + 1

    for found, wanted in zip(weft.compile(numbers)(X), numbers(X), strict=True):
        torch.testing.assert_close(found, wanted)
    torch.testing.assert_close(asyncio.run(weft.compile(later)(X)), X + 1)


def test_module_state_changes_are_seen():
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)).eval()
    compiled = weft.compile(model)
    torch.testing.assert_close(compiled(X), model(X))
    with torch.no_grad():
        model[0].weight.mul_(2)
    torch.testing.assert_close(compiled(X), model(X))
    model[0] = nn.Linear(3, 3)
    torch.testing.assert_close(compiled(X), model(X))
    model.train()
    assert (compiled(torch.ones(50, 3)) == 0).any()


def test_modules_are_copied_and_their_state_is_saved():
    compiled = weft.compile(nn.Linear(3, 3))
    compiled(X)
    twin = copy.deepcopy(compiled)
    with torch.no_grad():
        twin.weight.zero_()
    torch.testing.assert_close(compiled(X), compiled._orig_mod(X))
    torch.testing.assert_close(twin(X), twin._orig_mod(X))
    state = pickle.loads(pickle.dumps(compiled.state_dict()))
    assert list(state) == ["weight", "bias"]


def test_hooks_added_after_compiling_run():
    model = nn.Linear(3, 3)
    compiled = weft.compile(model)
    compiled(X)
    handle = model.register_forward_hook(lambda m, args, out: out + 100)
    torch.testing.assert_close(compiled(X), model(X))
    assert compiled(X).min() > 50
    handle.remove()
    torch.testing.assert_close(compiled(X), model(X))


def test_inplace_compilation_follows_hooks_and_can_be_undone():
    model = nn.Linear(3, 3)
    wanted = model(X)
    weft.compile_inplace(model, backend="eager")
    torch.testing.assert_close(model(X), wanted)
    handle = model.register_forward_hook(lambda m, args, out: out + 1)
    torch.testing.assert_close(model(X), wanted + 1)
    handle.remove()
    weft.compile_inplace(model, disable=True)
    torch.testing.assert_close(model(X), wanted)
    with pytest.raises(errors.BadValue):
        weft.compile_inplace(double)


def test_threads_compile_and_call_at_once():
    compiled = weft.compile(lambda x: (x * 2).relu() - 1)
    wrong = []

    def work(n):
        for size in (n, n + 1, n):
            x = torch.randn(size)
            if not torch.equal(compiled(x), (x * 2).relu() - 1):
                wrong.append(size)

    threads = [threading.Thread(target=work, args=(n,)) for n in (3, 3, 5, 9)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_disabled_functions_run_as_plain_python():
    calls = []

    @weft.disable
    def log(x):
        calls.append(weft.is_compiling())
        return x

    def f(x):
        return log(x + 1) * 2

    compiled = weft.compile(f)
    torch.testing.assert_close(compiled(X), (X + 1) * 2)
    compiled(X)
    assert calls == [False, False]
    assert weft.stats()["graph_breaks"] == 1


def test_is_compiling_is_true_only_in_captured_code():
    compiled = weft.compile(lambda x: x + 1 if weft.is_compiling() else x - 1)
    torch.testing.assert_close(compiled(X), X + 1)
    assert not weft.is_compiling()


def test_marks_on_dimensions_are_checked():
    weft.mark_dynamic(X.clone(), 0, min=1, max=9)
    weft.mark_static(X.clone())
    for dim, bounds in ((2, {}), (-3, {}), (0, {"min": 5, "max": 2})):
        with pytest.raises(errors.BadValue):
            weft.mark_dynamic(X.clone(), dim, **bounds)


def test_the_stub_declares_the_public_names():
    stub = ast.parse(Path(weft.__file__).with_suffix(".pyi").read_text())
    declared = {name.asname for node in stub.body if isinstance(node, ast.ImportFrom)
                for name in node.names}
    assert declared == set(weft.__all__)


def test_every_public_name_is_real():
    for name in weft.__all__:
        assert getattr(weft, name) is not None
    assert set(dir(weft)) == set(weft.__all__)
    with pytest.raises(AttributeError, match="no_such"):
        _ = weft.no_such


def test_custom_backend_can_end_with_the_default_compiler():
    def backend(gm, inputs):
        return weft.compile_fx(gm, inputs)

    torch.testing.assert_close(weft.compile(double, backend=backend)(X), double(X))
    assert weft.stats()["kernels"] == 1


def test_a_registered_backend_is_listed_and_used():
    weft.register_backend("test_api_backend", lambda gm, inputs: gm.forward)
    assert "test_api_backend" in weft.list_backends()
    compiled = weft.compile(double, backend="test_api_backend")
    torch.testing.assert_close(compiled(X), double(X))
