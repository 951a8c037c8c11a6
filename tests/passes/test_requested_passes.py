"""Passes that users give for one call, by `options={"passes": …}`, or by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.fx import Graph, GraphModule, Transformer

import weft
from weft.aot.standard_passes import STANDARD
from weft.config import config
from weft.diagnostics import events
from weft.errors import BadValue, PassError, UnknownPass
from weft.passes import register_pass, unregister_pass
from weft.passes.framework import REGISTERED, passes_of

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    weft.reset()
    with config.patch(strict=True):
        yield


def double_sines(gm: GraphModule) -> None:
    """sin(x) → sin(x) * 2, as one writes it for torch.fx: without metadata."""
    for node in gm.graph.find_nodes(op="call_function", target=aten.sin.default):
        users = [*node.users]
        with gm.graph.inserting_after(node):
            double = gm.graph.call_function(aten.mul.Tensor, (node, 2))
        for user in users:
            user.replace_input_with(node, double)


def cosines_for_sines(gm: GraphModule) -> GraphModule:
    """A new module instead of a change."""
    for node in gm.graph.find_nodes(op="call_function", target=aten.sin.default):
        node.target = aten.cos.default
    return GraphModule(gm, gm.graph)


def _with_another_input(gm: GraphModule) -> GraphModule:
    graph = Graph()
    graph.output((graph.call_function(aten.add.Tensor, (
        graph.placeholder("x"), graph.placeholder("y"))),))
    return GraphModule(gm, graph)


def sine(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + 1


def _compiled(*passes: Any, **settings: Any) -> Any:
    return weft.compile(sine, options={"passes": [*passes]}, **settings)


def _ran(*passes: Any) -> list[str]:
    """The names of the passes of the joint stage."""
    with config.patch(passes=passes):
        return [p.name for p in passes_of("joint")]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_functions_change_the_graph(backend: str) -> None:
    x = torch.randn(5)
    torch.testing.assert_close(_compiled(double_sines, backend=backend)(x), x.sin() * 2 + 1)


def test_they_run_in_the_order_given() -> None:
    x = torch.randn(5)
    compiled = _compiled(double_sines, cosines_for_sines, backend="aot_eager")
    torch.testing.assert_close(compiled(x), x.cos() * 2 + 1)
    compiled = _compiled(cosines_for_sines, double_sines, backend="aot_eager")
    torch.testing.assert_close(compiled(x), x.cos() + 1)


def test_each_call_has_its_own() -> None:
    x = torch.randn(5)
    doubled, plain = _compiled(double_sines), weft.compile(sine)
    for _ in range(2):
        torch.testing.assert_close(doubled(x), x.sin() * 2 + 1)
        torch.testing.assert_close(plain(x), x.sin() + 1)
    assert config.passes == ()


def test_new_nodes_in_a_joint_graph_are_cut() -> None:
    """The gradient of the sine has a sine of its own, if a function of the program has."""
    x = torch.randn(5, requires_grad=True)
    y = weft.compile(lambda x: x.cos(), options={"passes": [double_sines]})(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, -2 * x.detach().sin())


def test_a_transformer_of_torch_fx_gives_a_new_graph() -> None:
    class Cosines(Transformer):
        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            return super().call_function(aten.cos.default if target is aten.sin.default else target,
                                         args, kwargs)

    x = torch.randn(5, requires_grad=True)
    y = _compiled(lambda gm: Cosines(gm).transform(), backend="aot_eager")(x)
    torch.testing.assert_close(y, x.cos() + 1)
    y.sum().backward()
    torch.testing.assert_close(x.grad, x.detach().cos())  # that of the sine, which was traced
    with pytest.raises(PassError, match="made 2 inputs of 1"):
        _compiled(_with_another_input, backend="aot_eager")(torch.randn(5))


def test_backwards_that_are_compiled_later_have_the_same_settings() -> None:
    seen: list[int] = []

    def count(gm: GraphModule) -> bool:
        seen.append(len(gm.graph.nodes))
        return False

    register_pass(count, name="count_nodes", on_request=True)
    try:
        a, b = (torch.randn(3, requires_grad=True) for _ in range(2))
        y, z = weft.compile(lambda a, b: (a.exp(), b.exp()),
                            options={"passes": ["count_nodes"]})(a, b)
        assert len(seen) == 1
        (y.sum() + z.sum()).backward()
        torch.testing.assert_close(a.grad, a.detach().exp())
    finally:
        unregister_pass("count_nodes")


def test_passes_on_request_run_where_they_are_named() -> None:
    register_pass(double_sines, on_request=True)
    try:
        x = torch.randn(5)
        torch.testing.assert_close(weft.compile(sine)(x), x.sin() + 1)
        torch.testing.assert_close(_compiled("double_sines")(x), x.sin() * 2 + 1)
    finally:
        unregister_pass("double_sines")


def test_a_registered_pass_that_is_named_runs_once() -> None:
    register_pass(double_sines)
    try:
        x = torch.randn(5)
        torch.testing.assert_close(_compiled("double_sines", "simplify")(x), x.sin() * 2 + 1)
        assert _ran("double_sines").count("double_sines") == 1
        assert "double_sines_2" in _ran(double_sines)  # the function, once more
    finally:
        unregister_pass("double_sines")


def test_the_place_of_users_passes() -> None:
    names = [p.name for p in STANDARD if p.stage == "joint"]
    at = names.index(REGISTERED)
    assert _ran() == names
    assert _ran(double_sines, "simplify", lambda gm: None) == [
        *names[:at], "double_sines", "simplify_2", "<lambda>", *names[at:]]
    register_pass(double_sines, before="expand", after="keep_errors")
    try:
        assert _ran().index("double_sines") == names.index("expand")
    finally:
        unregister_pass("double_sines")


def test_their_changes_are_events() -> None:
    with events.collect() as seen:
        _compiled(double_sines)(torch.randn(5))
    [change] = [e for e in seen if e.kind == "pass" and e.name == "double_sines"]
    assert "mul" in change.after and "mul" not in change.before


@pytest.mark.parametrize(("passes", "error", "message"), [
    (["simplyfy"], UnknownPass, "did you mean 'simplify'"), ([3], BadValue, "got 3"),
    ("simplify", BadValue, "passes"), (double_sines, BadValue, "passes"),
    ([None], BadValue, "got None")])
def test_wrong_ones_are_refused_at_once(passes: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        weft.compile(sine, options={"passes": passes})


@pytest.mark.parametrize("strict", [False, True])
def test_one_that_fails_says_so(strict: bool) -> None:
    def broken(gm: GraphModule) -> None:
        raise ZeroDivisionError("my own mistake")

    with config.patch(strict=strict), pytest.raises(PassError, match="broken raised ZeroDivision"):
        _compiled(broken)(torch.randn(5))
    with config.patch(strict=strict), pytest.raises(PassError, match="returned 'done'"):
        _compiled(lambda gm: "done")(torch.randn(5))


def test_changed_calls_get_new_metadata() -> None:
    """Kernels were written for the sizes of what a call was before."""
    def transposed(gm: GraphModule) -> None:
        for node in gm.graph.find_nodes(op="call_function", target=aten.relu.default):
            node.target = aten.t.default

    x = torch.randn(5, 3)
    compiled = weft.compile(lambda x: x.relu().sin().sum(), options={"passes": [transposed]})
    torch.testing.assert_close(compiled(x), x.sin().sum())


def _calls_torch(gm: GraphModule) -> None:
    for node in gm.graph.find_nodes(op="call_function", target=aten.sin.default):
        node.target = torch.sin


def _writes(gm: GraphModule) -> None:
    for node in gm.graph.find_nodes(op="call_function", target=aten.add.Tensor):
        node.target = aten.add_.Tensor


def _sums(gm: GraphModule) -> None:
    for node in gm.graph.find_nodes(op="call_function", target=aten.sin.default):
        node.target = aten.sum.default


def _two_sizes(gm: GraphModule) -> None:
    for node in gm.graph.find_nodes(op="call_function", target=aten.add.Tensor):
        node.args = (node.args[0], gm.graph.find_nodes(op="placeholder")[0])
        with gm.graph.inserting_before(node):
            short = gm.graph.call_function(aten.slice.Tensor, (node.args[1], 0, 0, 2))
        node.args = (node.args[0], short)


@pytest.mark.parametrize(("wrong", "message"), [
    (_calls_torch, "no operator overload"), (_writes, "writes its arguments"),
    (_sums, r"float32\[5\] on cpu became float32\[\]"), (_two_sizes, "left a graph")])
@pytest.mark.parametrize("strict", [False, True])
def test_a_graph_that_breaks_a_rule_is_refused(wrong: Any, message: str, strict: bool) -> None:
    with config.patch(strict=strict), pytest.raises(PassError, match=message):
        _compiled(wrong)(torch.randn(5))


def test_names_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    from weft.config import _from_environment

    assert _from_environment({"WEFT_PASSES": "one, two,"}).passes == ("one", "two")
    assert _from_environment({"WEFT_PASSES": ""}).passes == ()
