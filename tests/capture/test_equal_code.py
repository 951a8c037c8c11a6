"""Entries are found by code object: equal functions, layers and closures are compiled once."""

from __future__ import annotations

import functools
import gc
import os
import random
import warnings
import weakref
from collections.abc import Callable
from types import MethodType
from typing import Any

import pytest
import torch
from torch import fx, nn

import weft
from weft import _frame
from weft.config import config

pytestmark = pytest.mark.usefixtures("fresh")

X = torch.linspace(-1, 1, 12).reshape(3, 4)
Wrap = Callable[["Layer", Any], Callable[[torch.Tensor], torch.Tensor]]


class Counted:
    """A backend that counts its graphs."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, gm: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        self.graphs += 1
        return gm.forward


class Layer(nn.Module):
    def __init__(self, breaks: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.scale, self.kind, self.heads, self.breaks = 0.5, "relu", 2, breaks
        self.after: Any = None
        self.word = ""
        self.register_buffer("shift", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x) * self.scale
        y = y.relu() if self.kind == "relu" else y.sin()
        if self.breaks:
            print(end="")
            y = y * self.heads + len(self.word)
        y = y.view(3, self.heads, -1).sum(1)
        return y if self.after is None else y + self.after.sum()


def as_module(layer: Layer, backend: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    return weft.compile(layer, backend=backend)


def in_place(layer: Layer, backend: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    return weft.compile_inplace(layer, backend=backend)


def as_method(layer: Layer, backend: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    return weft.compile(layer.forward, backend=backend)


def as_closure(layer: Layer, backend: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    return weft.compile(lambda x: layer(x), backend=backend)


def as_partial(layer: Layer, backend: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    return weft.compile(functools.partial(layer), backend=backend)


def through_decorator(layer: Layer, backend: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    return weft.compile(torch.enable_grad()(layer.forward), backend=backend)


WRAPS: list[Wrap] = [as_module, in_place, as_method, as_closure, as_partial, through_decorator]


def nothing(layer: Layer, k: int) -> None:
    pass


def scale(layer: Layer, k: int) -> None:
    layer.scale = 0.25 + k


def kind(layer: Layer, k: int) -> None:
    layer.kind = "relu" if k % 2 else "sin"


def heads(layer: Layer, k: int) -> None:
    layer.heads = 1 + k % 2


def width(layer: Layer, k: int) -> None:
    layer.linear = nn.Linear(4, 8 if k % 2 else 4)


def mode(layer: Layer, k: int) -> None:
    layer.train(k % 2 == 0)


def frozen(layer: Layer, k: int) -> None:
    layer.requires_grad_(k % 2 == 0)


def double(module: nn.Module, args: Any, out: torch.Tensor) -> torch.Tensor:
    return out * 2


def hook(layer: Layer, k: int) -> None:
    if k % 2:
        layer.register_forward_hook(double)


def buffer(layer: Layer, k: int) -> None:
    layer.after = layer.shift if k % 2 else None


def cosine(layer: Layer, x: torch.Tensor) -> torch.Tensor:
    return layer.linear(x).cos()


def own_forward(layer: Layer, k: int) -> None:
    if k % 2:
        layer.forward = MethodType(cosine, layer)  # type: ignore[method-assign]


DIFFERENCES: list[tuple[Callable[[Layer, int], None], int]] = [
    (nothing, 1), (scale, 2), (kind, 2), (heads, 2), (width, 2), (mode, 2), (frozen, 2), (hook, 4),
    (buffer, 2), (own_forward, 2)]
"""What differs between layers, and how many graphs there are if there is no break. (Each hook has
a number of its own, which is a key of a dictionary.)"""


ALL = bool(int(os.environ.get("ALL_CASES", "0")))
CASES = [(wrap, *difference, breaks) for i, wrap in enumerate(WRAPS)
         for k, difference in enumerate(DIFFERENCES) for breaks in (False, True)
         if ALL or (i + k) % 3 == breaks]
"""A third of all combinations: of each two things there are some."""


@pytest.mark.parametrize(("wrap", "differ", "n_graphs", "breaks"), CASES)
def test_equal_layers_are_captured_once(wrap: Wrap, differ: Callable[[Layer, int], None],
                                        n_graphs: int, breaks: bool) -> None:
    if differ is hook and wrap in (as_method, through_decorator):
        pytest.skip("forward alone runs no hooks")
    backend = Counted()
    layers = [Layer(breaks) for _ in range(6)]
    for k, layer in enumerate(layers):
        differ(layer, k)
    expected = [layer(X).detach() for layer in layers]
    grads = [torch.autograd.grad(layer(X).square().sum(), layer.linear.weight, allow_unused=True)
             if layer.linear.weight.requires_grad else None for layer in layers]
    compiled = [wrap(layer, backend) for layer in layers]
    for k in [*range(6), *random.Random(0).sample(range(6), 6)]:
        y = compiled[k](X)
        torch.testing.assert_close(y.detach(), expected[k])
        assert y.requires_grad == (grads[k] is not None)
        if grads[k] is not None:
            y.square().sum().backward()
            torch.testing.assert_close(layers[k].linear.weight.grad, grads[k][0])
            layers[k].zero_grad()
    assert backend.graphs <= n_graphs * (4 if breaks else 1)
    assert breaks or weft.stats()["recompiles"] == 0


@pytest.mark.parametrize("breaks", [False, True])
def test_each_layer_may_have_its_own_variants(breaks: bool) -> None:
    """What is counted against the limit is what one compiled function has used."""
    backend = Counted()
    layers = [Layer(breaks) for _ in range(3 * config.cache_size_limit)]
    for k, layer in enumerate(layers):
        setattr(layer, "word" if breaks else "kind", f"kind {k}")
    compiled = [weft.compile(layer, backend=backend) for layer in layers]
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        for _ in range(2):
            for layer, f in zip(layers, compiled, strict=True):
                torch.testing.assert_close(f(X), layer(X))
    assert backend.graphs == len(layers) + breaks


def test_one_that_reaches_the_limit_stops_no_other() -> None:
    def f(x: torch.Tensor, word: str) -> torch.Tensor:
        return x.sin() if word == "sin" else x + len(word)

    backend = Counted()
    first, second = weft.compile(f, backend=backend), weft.compile(f, backend=backend)
    with config.patch(cache_size_limit=2), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for word in ("a", "bb", "ccc", "dddd"):
            torch.testing.assert_close(first(X, word), f(X, word))
        assert backend.graphs == 2
        torch.testing.assert_close(second(X, "sin"), f(X, "sin"))
    assert backend.graphs == 3


def test_a_function_tries_what_it_has_used_first() -> None:
    def f(x: torch.Tensor, word: str) -> torch.Tensor:
        return x + len(word)

    functions = [weft.compile(f, backend="eager") for _ in range(4)]
    for k, compiled in enumerate(functions):
        compiled(X, "w" * k)
    assert [len(compiled.used_entries) for compiled in functions] == [1] * 4
    functions[0](X, "www")
    assert functions[0].used_entries[0] is functions[3].used_entries[0]
    weft.reset()
    assert not functions[0].used_entries


def inner(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + 1


@torch.compiler.disable(recursive=False)
def middle(x: torch.Tensor) -> torch.Tensor:
    return inner(x)


def outer(x: torch.Tensor) -> torch.Tensor:
    return middle(x) + 1


SETTINGS: list[dict[str, Any]] = [
    {}, {"dynamic": True}, {"dynamic": False}, {"options": {"data_dependent": False}},
    {"options": {"cache_size_limit": 3}}, {"mode": "max-autotune-no-cudagraphs"}]


@pytest.mark.parametrize("function", [inner, outer])
def test_other_settings_have_other_entries(function: Any) -> None:
    """A frame that compiled code called ran through the entries of whoever came first."""
    log: list[int] = []

    def logging(k: int) -> Callable[..., Any]:
        def backend(gm: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
            def run(*args: Any) -> Any:
                log.append(k)
                return gm.forward(*args)
            return run
        return backend

    one_for_all = Counted()
    for settings in SETTINGS:
        before = one_for_all.graphs
        weft.compile(function, backend=one_for_all, **settings)(X)
        assert one_for_all.graphs == before + (1 if function is inner else 2), settings
        weft.compile(function, backend=one_for_all, **settings)(X)
        assert one_for_all.graphs == before + (1 if function is inner else 2), settings
    compiled = [weft.compile(function, backend=logging(k)) for k in range(3)]
    for k in (0, 1, 2, 1, 0):
        log.clear()
        torch.testing.assert_close(compiled[k](X), function(X))
        assert set(log) == {k} and len(log) == (1 if function is inner else 2)


def test_settings_of_the_process_are_settings() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    backend = Counted()
    weft.compile(f, backend=backend)(X)
    with config.patch(emulate_precision_casts=True):
        weft.compile(f, backend=backend)(X)
    assert backend.graphs == 2
    weft.compile(f, backend=backend)(X)
    assert backend.graphs == 2
    weft.reset()
    weft.compile(f, backend=backend)(X)
    assert backend.graphs == 3


def test_layers_beside_one_that_another_process_compiled() -> None:
    layers = [Layer() for _ in range(4)]
    for k, layer in enumerate(layers):
        layer.scale = 0.5 + k
    with config.patch(store_entries=True), torch.no_grad():
        weft.compile(layers[0])(X)
        weft.reset()
        compiled = [weft.compile(layer) for layer in layers]
        for layer, f in zip(layers, compiled, strict=True):
            torch.testing.assert_close(f(X), layer(X))
        assert weft.stats()["graphs"] <= 2 and weft.stats()["entries_loaded"]


def test_layers_with_cuda_graphs_are_compiled_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA graph reads the parameters of one layer in place."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    backend = Counted()
    for layer in (Layer(), Layer()):
        weft.compile(layer, backend=backend, options={"cudagraphs": True})(X)
    assert backend.graphs == 2


def test_what_failed_once_is_tried_by_later_compilations() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    backend = Counted()
    _frame.skip(weft.compile(f, backend=backend).__wrapped__.__code__)  # as a failed run does
    weft.compile(f, backend=backend)(X)
    assert backend.graphs == 1


def test_benchmarks_compile_anew() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    weft.compile(f, backend="eager")(X)
    before = weft.stats()["graphs"]
    weft.benchmark(f, X, against=("eager",), rounds=1, seconds=0, backend="eager")
    assert weft.stats()["graphs"] == before + 1


@pytest.mark.filterwarnings("ignore")
def test_scripted_modules_have_no_forward_in_their_class() -> None:
    scripted = torch.jit.script(nn.Linear(4, 4))
    torch.testing.assert_close(weft.compile(scripted)(X), scripted(X))


def test_explain_compiles_anew() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    weft.compile(f)(X)
    assert weft.explain(f)(X).graphs == weft.explain(f)(X).graphs != []


def test_a_lambda_that_is_compiled_at_each_call() -> None:
    backend = Counted()
    for n in (3, 4, 5, 6, 7):
        x = torch.ones(n)
        assert torch.equal(weft.compile(lambda x: x + 1, backend=backend)(x), x + 1)
    assert backend.graphs == 2


def test_layers_beside_each_other_keep_their_sizes() -> None:
    """Sizes that differ between two functions that are both in use are no reason for symbols."""
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + x.shape[0]

    shapes = []

    def backend(gm: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        shapes.append([x.shape for x in inputs if isinstance(x, torch.Tensor)])
        return gm.forward

    functions = [weft.compile(f, backend=backend) for _ in range(3)]
    for k, compiled in enumerate(functions):
        compiled(torch.ones(3 + k))
    assert shapes == [[(3,)], [(4,)], [(5,)]]


def test_one_that_has_used_a_variant_knows_its_sizes() -> None:
    """It compiled its second size as if it were its first one."""
    def f(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    backend = Counted()
    first, second = weft.compile(f, backend=backend), weft.compile(f, backend=backend)
    first(torch.ones(3))
    for n in range(3, 9):
        second(torch.ones(n))
    assert backend.graphs == 2


def test_functions_of_other_globals_and_defaults() -> None:
    made = []
    for k in range(3):
        names = {"__name__": "elsewhere", "K": k}
        exec("def f(x, y=K):\n    return x * y + K\n", names)
        made.append(names["f"])
    backend = Counted()
    for f in made:
        torch.testing.assert_close(weft.compile(f, backend=backend)(X), f(X))


def test_a_compiled_model_is_freed_with_its_function() -> None:
    def model_of(wrap: Wrap) -> weakref.ref[Layer]:
        layer = Layer(breaks=True)
        wrap(layer, "eager")(X)
        return weakref.ref(layer)

    for wrap in WRAPS:
        layer = model_of(wrap)
        gc.collect()
        assert layer() is None, wrap


def test_a_program_that_is_gone_takes_its_entries_along() -> None:
    """Entries that live on for the next function with this code held the globals of `exec`."""
    names: dict[str, Any] = {"layer": Layer()}
    exec("def f(x):\n    return layer(x)\n", names)
    weft.compile(names["f"], backend="eager")(X)
    layer = weakref.ref(names["layer"])
    del names
    gc.collect()
    assert layer() is None
