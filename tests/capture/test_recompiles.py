"""Recompiles explain themselves: guard, source, old and new value, what avoids them; limits."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import weft
from weft.capture.core.source import describe
from weft.config import config
from weft.diagnostics import events
from weft.diagnostics.changes import Change, summary
from weft.errors import RecompileLimitWarning

pytestmark = pytest.mark.usefixtures("fresh")

X = torch.ones(4, 8)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.eps = 0.5
        self.act = torch.relu

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(x) + self.eps


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(4))
        self.config = {"scale": 1}

    def forward(self, x: torch.Tensor, items: Any = ()) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        for item in items:
            x = x + item
        return x * self.config["scale"] * (2 if self.training else 1)


def changes(model: Model, then: Callable[[Any], Any]) -> list[Change]:
    """What the recompile tells that `then(compiled)` causes; results are compared with eager."""
    compiled = weft.compile(model, backend="eager", dynamic=False)
    compiled(X)
    with events.collect() as seen:
        torch.testing.assert_close(then(compiled), then(model))
    recompiles = [e for e in seen if e.kind == "recompile"]
    assert len(recompiles) == 1
    return list(recompiles[0].changes)


def _set_eps(m: Any) -> Any:
    m.layers[3].eps = 0.75
    return m(X)


def _set_activation(m: Any) -> Any:
    m.layers[1].act = torch.sin
    return m(X)


def _set_config(m: Any) -> Any:
    m.config["scale"] = 2
    return m(X)


def _register_hook(m: Any) -> Any:
    if not m.layers[0]._forward_hooks:
        m.layers[0].register_forward_hook(lambda module, args, result: result + 1)
    return m(X)


def _no_grad(m: Any) -> Any:
    with torch.no_grad():
        return m(X)


def _autocast(m: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return m(X)


CASES: list[tuple[Callable[[Any], Any], str, str]] = [
    (_set_eps, "'self.layers[3].eps' was 0.5, now 0.75", "self.layers[3].eps == 0.5"),
    (_set_activation, "'self.layers[1].act' was relu, now sin", "self.layers[1].act is relu"),
    (_set_config, "'self.config['scale']' was 1, now 2", "self.config['scale'] == 1"),
    (lambda m: m.eval()(X), "'self.training' was True, now False", "self.training == True"),
    (_register_hook, "'self.layers[0]._forward_hooks' keys mismatch", "_forward_hooks"),
    (lambda m: m(X.double()), "'x' dtype mismatch: expected float32, got float64", "x is a Tensor"),
    (lambda m: m(X[:2]), "'x' size mismatch: expected [4, 8], got [2, 8]", "x is a Tensor"),
    (lambda m: m(X[None]), "'x' rank mismatch: expected [4, 8], got [1, 4, 8]", "x is a Tensor"),
    (lambda m: m(torch.ones(8, 4).t()), "'x' stride mismatch: expected [8, 1], got [1, 4]",
     "x is a Tensor"),
    (lambda m: m(X.clone().requires_grad_()),
     "'x' requires_grad mismatch: expected False, got True", "x is a Tensor"),
    (lambda m: m(X, (1,)), "'items' length mismatch: expected 0, got 1", "len(items) == 0"),
    (lambda m: m(X, []), "'items' type mismatch: expected tuple, got list", "type(items) is tuple"),
    (_no_grad, "gradient mode: was on, now off", "global modes"),
    (_autocast, "autocast on cpu: was off, now bfloat16", "global modes"),
]


@pytest.mark.parametrize(("then", "told", "guard"), CASES, ids=[c[1][:40] for c in CASES])
def test_a_recompile_says_what_changed(then: Any, told: str, guard: str) -> None:
    (change,) = changes(Model(), then)
    assert told in str(change)
    assert guard in change.guard
    assert change.hint
    if change.source:
        assert __file__ in change.line


def test_the_log_and_the_explanation_show_guard_values_and_hint(
    capsys: pytest.CaptureFixture[str]
) -> None:
    def program(x: torch.Tensor, mode: str) -> torch.Tensor:
        return x + 1 if mode == "a" else x - 1

    compiled = weft.compile(program, backend="eager")
    weft.set_logs("recompiles")
    try:
        with events.collect() as seen:
            for mode in "abc":
                compiled(X, mode)
    finally:
        weft.set_logs()
    text = capsys.readouterr().err
    assert "'mode' was 'b', now 'c'" in text
    assert "guard: mode == 'b' (asked for at" in text
    assert "avoid it: each value is compiled once" in text
    assert "the variants before it: 'mode' was 'a', now 'c'" in text
    explanation = weft.diagnostics.explanation.Explanation.from_events(seen, name="program")
    assert [len(r.changes) for r in explanation.recompiles] == [1, 2]
    assert "mode == 'a' | each value is compiled once" in str(explanation)


def test_the_limit_warning_shows_what_kept_changing_and_names_the_users_line() -> None:
    compiled = weft.compile(lambda x, name: x + len(name), backend="eager",
                            options={"cache_size_limit": 3})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for i in range(6):
            compiled(X, f"v{i}")
    (warning,) = caught
    assert warning.category is RecompileLimitWarning
    assert warning.filename == __file__
    assert "'name' was 'v0', 'v1', 'v2', now 'v3'" in str(warning.message)
    assert "weft.config.cache_size_limit = 3" in str(warning.message)


def test_the_limit_may_be_raised_beyond_64() -> None:
    compiled = weft.compile(lambda x, name: x + len(name), backend="eager",
                            options={"cache_size_limit": 80})
    for i in range(70):
        compiled(X, f"v{i}")
    assert weft.stats()["graphs"] == 70


def test_the_total_limit_counts_recompiles_of_all_code() -> None:
    def inner(x: torch.Tensor, name: str) -> torch.Tensor:
        print(end="")
        return x + len(name)

    def outer(x: torch.Tensor, name: str) -> torch.Tensor:
        return inner(x, name) * 2

    with config.patch(recompile_limit=4):
        compiled = weft.compile(outer, backend="eager")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for i in range(7):
                torch.testing.assert_close(compiled(X, "v" * i), outer(X, "v" * i))
    assert weft.stats()["recompiles"] == 4
    assert any("recompile_limit = 4" in str(w.message) for w in caught)


def test_many_values_are_abridged() -> None:
    several = [Change(f"n == {i}", "n", "value", str(i), "99", "", "") for i in range(20)]
    (text,) = summary(several)
    assert text.startswith("'n' was 19, 18,") and text.endswith("… 8 more, now 99")


def test_what_changed_is_told_of_a_list_that_holds_itself() -> None:
    items: list[object] = [1, *range(100)]
    items[0] = (items, "text")
    assert len(describe(items)) < 10_000


def test_the_length_of_a_cache_was_compiled_for_each_number() -> None:
    class Cache:
        def __init__(self) -> None:
            self.keys = torch.zeros(2, 1)

        def __len__(self) -> int:
            return self.keys.size(1)

    cache = Cache()

    def f(x: torch.Tensor) -> tuple[torch.Tensor, int]:
        cache.keys = torch.cat([cache.keys, x], 1)
        return cache.keys.sum() + len(cache), len(cache)

    weft.reset()
    compiled = weft.compile(f, backend="eager")
    for n in range(2, 8):
        total, length = compiled(torch.ones(2, 1))
        assert (float(total), length) == (2.0 * (n - 1) + n, n)
        assert type(length) is int
    assert weft.stats()["graphs"] <= 3


def test_the_truth_of_a_cache_was_compiled_for_each_length() -> None:
    class Cache:
        seen = 0

        def __len__(self) -> int:
            return self.seen

    cache = Cache()

    def f(x: torch.Tensor) -> torch.Tensor:
        if cache:
            x = x + 1
        cache.seen += x.size(0)
        return x

    weft.reset()
    compiled = weft.compile(f, backend="eager")
    for n in range(6):
        assert compiled(torch.ones(2)).tolist() == [1.0 + (n > 0)] * 2
    assert weft.stats()["graphs"] <= 3


def test_a_dataclass_that_the_caller_made_was_compiled_at_each_call() -> None:
    """Its fields share `_field_type`: one was compared before the other was read."""
    @dataclass
    class Output:
        loss: torch.Tensor
        logits: torch.Tensor

    def f(x: torch.Tensor) -> list[str]:
        return [field.name for field in fields(Output(x, x))]

    weft.reset()
    compiled = weft.compile(f, backend="eager")
    for _ in range(3):
        assert compiled(torch.ones(2)) == ["loss", "logits"]
    assert weft.stats()["cache_entries"] == 1


def test_calls_that_a_mode_watches_are_no_variants_and_no_failures() -> None:
    graphs: list[torch.fx.GraphModule] = []

    def backend(gm: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(gm)
        return gm

    compiled = weft.compile(lambda x: x @ x + 1, backend=backend)

    def watched_calls() -> None:
        for _ in range(config.cache_size_limit + 1):
            with FlopCounterMode(display=False) as counter:
                compiled(torch.ones(3, 3))
            assert counter.get_total_flops() == 54

    watched_calls()
    compiled(torch.ones(3, 3))
    watched_calls()
    compiled(torch.ones(3, 3, dtype=torch.float64))
    assert len(graphs) == 2
    assert weft.stats()["recompiles"] == 1


def test_torch_jit_trace_of_a_compiled_function_failed() -> None:
    compiled = weft.compile(lambda x: x.sin() + x.shape[0], backend="eager")
    compiled(X)
    traced = torch.jit.trace(compiled, (X,))
    torch.testing.assert_close(traced(X + 1), compiled(X + 1))
