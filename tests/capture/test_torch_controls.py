"""torch.compile's controls, however they are applied: at call time, inside, on methods and modules.

Each control is applied in each way, outside and inside of the compiled function, in a callee and in
a module's `forward`. The marked function adds 2 where it is captured and 1 where it runs as plain
Python; what is expected is what torch.compile does (measured with backend="eager").
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import weft

dynamo = importlib.import_module("torch._dynamo")
Mark = Callable[[Any], Any]
X = torch.zeros(2)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    weft.reset()
    yield
    torch.compiler.set_stance("default")


def add(x: torch.Tensor, times: int = 1) -> torch.Tensor:
    return x + (2 if torch.compiler.is_compiling() else 1) * times


def added() -> Callable[..., Any]:
    """A new function like `add`: marks stay on functions."""
    return type(add)(add.__code__.replace(), add.__globals__, "added", add.__defaults__)


class Owner:
    def method(self, x: torch.Tensor) -> torch.Tensor:
        return add_here(x)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return add_here(x)


class Layer(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return add_here(x)


def add_here(x: torch.Tensor) -> torch.Tensor:
    return x + (2 if torch.compiler.is_compiling() else 1)


DISABLING: dict[str, Mark] = {
    "torch.compiler.disable": torch.compiler.disable,
    "torch._dynamo.disable": dynamo.disable,
    "weft.disable": weft.disable,
}
TRANSPARENT: dict[str, Mark] = {
    "error_on_graph_break": lambda f: dynamo.error_on_graph_break(True)(f),
    "patch_dynamo_config": lambda f: dynamo.patch_dynamo_config(capture_scalar_outputs=True)(f),
    "dont_skip_tracing": dynamo.dont_skip_tracing,
    "torch.compile": lambda f: torch.compile(f, backend="eager"),
}


def outside(mark: Mark) -> Iterator[tuple[str, Callable[..., Any], int]]:
    """What the program holds before it compiles, and how often it adds."""
    yield "function", mark(added()), 1
    yield "lambda", mark(lambda x: add_here(x)), 1
    yield "partial", mark(functools.partial(added(), times=3)), 3
    yield "bound method", mark(Owner().method), 1
    yield "callable", mark(Owner()), 1
    yield "module", mark(Layer()), 1
    yield "partial of it", functools.partial(mark(added()), times=3), 3
    yield "twice", mark(mark(added())), 1
    yield "compiled", mark(weft.compile(added(), backend="eager")), 1

    class Marked:
        @mark
        def method(self, x: torch.Tensor) -> torch.Tensor:
            return add_here(x)

        @staticmethod
        @mark
        def static(x: torch.Tensor) -> torch.Tensor:
            return add_here(x)

    yield "method", Marked().method, 1
    yield "static method", Marked.static, 1
    layer = Layer()
    layer.forward = mark(layer.forward)  # type: ignore[method-assign]
    yield "module's forward", layer, 1


def inside(mark: Mark) -> Iterator[tuple[str, Callable[..., Any], int]]:
    """What marks something at each call, and how often it adds."""
    function, layer, owner = added(), Layer(), Owner()
    yield "function", lambda x: mark(function)(x), 1
    yield "lambda", lambda x: mark(lambda x: add_here(x))(x), 1
    yield "partial", lambda x: mark(functools.partial(function, times=3))(x), 3
    yield "bound method", lambda x: mark(owner.method)(x), 1
    yield "module's forward", lambda x: mark(layer.forward)(x), 1
    yield "object made inside", lambda x: mark(Owner())(x), 1

    def decorated(x: torch.Tensor) -> torch.Tensor:
        y = x + 0

        @mark
        def closure() -> torch.Tensor:
            return add_here(y)

        return closure()

    yield "closure", decorated, 1

    def looped(x: torch.Tensor) -> torch.Tensor:
        marked = mark(function)
        for _ in range(2):
            x = marked(x)
        return x

    yield "loop", looped, 2


def places(call: Callable[..., Any]) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Functions that call it between other operations."""
    def root(x: torch.Tensor) -> torch.Tensor:
        return call(x * 2) * 10

    def callee(x: torch.Tensor) -> torch.Tensor:
        return call(x + 0) * 1

    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return call(x * 2) * 10

    yield "root", root
    yield "callee", lambda x: callee(x * 2) * 10
    yield "forward", Model()


def cases(marks: dict[str, Mark]) -> Iterator[Any]:
    for name, mark in marks.items():
        for kind, forms in (("outside", outside), ("inside", inside)):
            for form, call, times in forms(mark):
                if name == "torch.compile" and (kind == "inside" or "module" in form):
                    continue
                for place, function in places(call):
                    if place == "root" or form == "function":
                        yield pytest.param(function, times, id=f"{name}-{kind}-{form}-{place}")


def run(function: Callable[..., Any], **settings: Any) -> float:
    """Its result, of two calls."""
    compiled = weft.compile(function, backend="eager", **settings)
    first, second = (float(compiled(X)[0]) for _ in range(2))
    assert first == second
    return first


@pytest.mark.parametrize(("function", "times"), [*cases(DISABLING)])
def test_disabled_functions_run_as_plain_python(function: Callable[..., Any], times: int) -> None:
    assert run(function) == 10 * times
    with pytest.raises(weft.errors.GraphBreakError, match="disabled"):
        run(function, fullgraph=True)


@pytest.mark.parametrize(("function", "times"), [*cases(TRANSPARENT)])
def test_controls_that_say_nothing_of_capture(function: Callable[..., Any], times: int) -> None:
    assert run(function) == 20 * times


@pytest.mark.parametrize("allow", [torch.compiler.allow_in_graph, dynamo.allow_in_graph,
                                   dynamo.nonstrict_trace, weft.allow_in_graph])
def test_allowed_functions_and_methods_are_operations(allow: Mark) -> None:
    assert run(dict(places(allow(added())))["callee"], fullgraph=True) == 10
    if allow is not dynamo.nonstrict_trace:
        kept = allow(Owner().method)
        assert run(dict(places(kept))["root"], fullgraph=True) == 10


def test_constant_results_of_tensors_are_captured() -> None:
    constant = torch.compiler.assume_constant_result(added())
    assert run(lambda x: constant(x * 2) * 10, fullgraph=True) == 20


@pytest.mark.parametrize("allow", [torch.compiler.allow_in_graph, dynamo.allow_in_graph,
                                   dynamo.nonstrict_trace])
def test_functions_allowed_inside_are_operations_as_if_allowed_outside(allow: Mark) -> None:
    function = added()
    assert run(lambda x: allow(function)(x * 2) * 10, fullgraph=True) == 10


def test_marks_that_stay_are_made_between_the_graphs() -> None:
    assert run(lambda x: dynamo.allow_in_graph([torch.sub])[0](x, -1) * 10) == 10
    with pytest.raises(weft.errors.GraphBreakError, match="allow_in_graph"):
        run(lambda x: dynamo.allow_in_graph([torch.sub])[0](x, -1), fullgraph=True)


COMPILING: dict[str, Callable[..., Any]] = {
    "torch.compile": lambda f, **settings: torch.compile(f, **settings),
    "torch.compile()": lambda f, **settings: torch.compile(**settings)(f),
    "weft.compile": lambda f, **settings: weft.compile(f, **settings),
}
SETTINGS: tuple[dict[str, Any], ...] = (
    {}, {"fullgraph": True}, {"dynamic": True}, {"mode": "max-autotune"}, {"backend": "eager"})


@pytest.mark.parametrize("installed", [False, True], ids=["", "installed"])
@pytest.mark.parametrize("way", COMPILING)
def test_what_is_compiled_inside_is_captured_with_it(way: str, installed: bool) -> None:
    make, layer, function = COMPILING[way], Layer(), added()
    for settings in SETTINGS:
        with weft.install() if installed else contextlib.nullcontext():
            assert run(lambda x, s=settings: make(function, **s)(x) * 10, fullgraph=True) == 20
            assert run(lambda x, s=settings: make(layer, **s)(x) * 10, fullgraph=True) == 20


def test_mistakes_in_settings_of_what_is_compiled_inside_are_errors() -> None:
    with pytest.raises(weft.errors.UnknownMode):
        run(lambda x: weft.compile(add, mode="fastest")(x))


def test_the_reason_of_disable_is_told() -> None:
    function = torch.compiler.disable(added(), reason="it prints")
    with pytest.raises(weft.errors.GraphBreakError, match="it prints"):
        run(lambda x: function(x), fullgraph=True)


def test_who_compiles_a_disabled_function_means_it() -> None:
    for mark in DISABLING.values():
        assert run(mark(added()), fullgraph=True) == 2
    assert run(torch.compiler.disable()(added()), fullgraph=True) == 2


def test_disabled_classes_and_methods_given_to_compile_stay_plain() -> None:
    @dynamo.disable
    class Plain(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return add_here(x)

    layer = Layer()
    layer.forward = dynamo.disable(layer.forward)  # type: ignore[method-assign]
    assert run(Plain()) == run(layer) == 1
    assert weft.stats()["graphs"] == 0


def test_disabled_without_recursion_is_what_it_calls_captured() -> None:
    def outer(x: torch.Tensor) -> torch.Tensor:
        return add_here(x) + (2 if torch.compiler.is_compiling() else 1)

    for disable in (torch.compiler.disable, dynamo.disable, weft.disable):
        weft.reset()
        marked = disable(outer, recursive=False)
        assert run(lambda x, marked=marked: marked(x * 2) * 10) == 30
    assert run(lambda x: dynamo.decorators.skip(outer)(x * 2) * 10) == 30


@pytest.mark.parametrize("ask", [
    lambda: dynamo.graph_break(), lambda: dynamo.graph_break("here"),
    lambda: dynamo.graph_break(msg="here"), lambda: dynamo.skip_frame("here"),
    lambda: dynamo.step_unsupported(), dynamo.graph_break,
])
def test_requested_breaks(ask: Callable[[], None]) -> None:
    def breaks(x: torch.Tensor) -> torch.Tensor:
        x = x + 1
        ask()
        return x * 2

    def in_blocks(x: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            with torch.no_grad():
                try:
                    ask()
                finally:
                    x = x + 1
        return x

    for function in (breaks, in_blocks):
        assert run(function) == 2
        assert weft.stats()["graph_breaks"] > 0
        with pytest.raises(weft.errors.GraphBreakError, match="user"):
            run(function, fullgraph=True)
        weft.reset()


def test_disallowed_operators_break_the_graph() -> None:
    dynamo.disallow_in_graph(torch.sub)
    try:
        assert run(lambda x: torch.sub(x + 3, 1) * 2) == 4
        assert (weft.stats()["graphs"], weft.stats()["graph_breaks"]) == (2, 1)
    finally:
        dynamo.allow_in_graph(torch.sub)


@pytest.mark.parametrize("call", [
    lambda x: torch.compiler.set_stance("default"), lambda x: dynamo.mark_dynamic(x, 0),
    lambda x: dynamo.maybe_mark_dynamic(x, 0), lambda x: dynamo.decorators.mark_unbacked(x, 0),
    lambda x: dynamo.mark_static_address(x),
])
def test_what_compiled_code_must_not_call_is_called_between_graphs(call: Mark) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        call(y)
        return y * 2

    assert run(function) == 2
    with pytest.raises(weft.errors.GraphBreakError, match="forbidden"):
        run(function, fullgraph=True)


# -- stances --------------------------------------------------------------------------------------


def calls(function: Callable[..., Any], name: str) -> Iterator[Callable[..., Any]]:
    """The function called under a stance that is set in each way."""
    def under_context(x: torch.Tensor) -> Any:
        with torch.compiler.set_stance(name):
            return function(x)

    def under_call(x: torch.Tensor) -> Any:
        torch.compiler.set_stance(name)
        try:
            return function(x)
        finally:
            torch.compiler.set_stance("default")

    yield under_context
    yield under_call
    yield torch.compiler.set_stance(name)(lambda x: function(x))
    yield dynamo.set_stance(name)(lambda x: function(x))


@pytest.mark.parametrize("way", range(4))
def test_stances_of_torch_are_weft_s(way: int) -> None:
    f = weft.compile(add, backend="eager", dynamic=False)
    eager = [*calls(f, "force_eager")][way]
    assert float(eager(X)[0]) == 1 and weft.stats()["graphs"] == 0
    assert float(f(X)[0]) == 2
    assert float(eager(X)[0]) == 1
    for name in ("eager_on_recompile", "fail_on_recompile"):
        kept = [*calls(f, name)][way]
        assert float(kept(X)[0]) == 2
        if name == "eager_on_recompile":
            assert float(kept(torch.zeros(3))[0]) == 1
        else:
            with pytest.raises(weft.errors.RecompileError, match="size mismatch"):
                kept(torch.zeros(3))
    assert weft.stats()["graphs"] == 1
    assert float(f(torch.zeros(3))[0]) == 2


@pytest.mark.parametrize("name", ["eager_then_compile", "aot_eager_then_compile"])
def test_stances_that_wait_for_the_second_call(name: str) -> None:
    f = weft.compile(add, backend="eager")
    with torch.compiler.set_stance(name):
        assert [float(f(X)[0]) for _ in range(3)] == [1, 2, 2]
    weft.reset()  # equal calls share what was compiled
    with weft.set_stance(name):
        assert [float(weft.compile(add, backend="eager")(X)[0])] == [1]


def test_a_forced_backend_compiles_anew_and_is_left_again() -> None:
    seen: list[str] = []

    def backend(name: str) -> Callable[..., Any]:
        def compiler(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
            def call(*args: Any) -> Any:
                seen.append(name)
                return gm.forward(*args)
            return call
        return compiler

    own, forced = backend("own"), backend("forced")
    model = weft.compile(Layer(), backend=own)
    f = weft.compile(lambda x: add_here(x).sin(), backend=own)
    f(X), model(X)
    for _ in range(2):
        with torch.compiler.set_stance("default", force_backend=forced):
            f(X), model(X)
    f(X), model(X)
    assert seen == ["own"] * 2 + ["forced"] * 4 + ["own"] * 2
    with torch.compiler.set_stance("default", force_backend="eager"):
        assert torch.equal(f(X), torch.full((2,), 2.0).sin())
    assert len(seen) == 8


@pytest.mark.parametrize("disable", [dynamo.disable, weft.disable])
def test_a_stance_set_in_the_middle_holds_for_the_rest(disable: Mark) -> None:
    @disable
    def change() -> None:
        torch.compiler.set_stance("force_eager")

    def function(x: torch.Tensor) -> torch.Tensor:
        x = add(x)
        change()
        return add(x)

    assert float(weft.compile(function, backend="eager")(X)[0]) == 3


def test_weft_s_own_stance_comes_first() -> None:
    f = weft.compile(add, backend="eager")
    f(X)
    with torch.compiler.set_stance("fail_on_recompile"), weft.set_stance("eager_on_recompile"):
        assert float(f(torch.zeros(5, 5))[0, 0]) == 1
