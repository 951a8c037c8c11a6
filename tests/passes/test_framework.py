"""Registration, order, torch.fx's own passes, events."""

import operator

import pytest
import torch
import torch.fx
from torch.fx.passes.infra.pass_base import PassBase, PassResult

from weft.backends import resolve
from weft.diagnostics import events
from weft.errors import BadValue
from weft.passes import register_pass, unregister_pass
from weft.passes.framework import Pass, ordered

aten = torch.ops.aten


def _graph() -> torch.fx.GraphModule:
    return torch.fx.symbolic_trace(lambda x: (x + 1) + 2)


def _names(*passes: Pass) -> list[str]:
    return [p.name for p in ordered(passes)]


def _pass(name: str, **needs: tuple[str, ...]) -> Pass:
    return Pass(name, lambda gm: False, **needs)


def test_order() -> None:
    assert _names(_pass("a"), _pass("b"), _pass("c")) == ["a", "b", "c"]
    assert _names(_pass("a", after=("b",)), _pass("b")) == ["b", "a"]
    assert _names(_pass("a"), _pass("b", before=("a",))) == ["b", "a"]
    assert _names(_pass("a", requires=("c",)), _pass("b"), _pass("c")) == ["b", "c", "a"]
    assert _names(_pass("a", after=("unknown",))) == ["a"]
    with pytest.raises(BadValue, match="requires 'c'"):
        ordered([_pass("a", requires=("c",))])
    with pytest.raises(BadValue, match="wait for each other"):
        ordered([_pass("a", after=("b",)), _pass("b", after=("a",))])


def _fold_two_additions(gm: torch.fx.GraphModule) -> bool:
    """(x + a) + b → x + (a + b)"""
    changed = False
    for node in gm.graph.nodes:
        inner = node.args[0] if node.args else None
        if node.target is aten.add.Tensor and getattr(inner, "target", None) is node.target:
            node.args = (inner.args[0], inner.args[1] + node.args[1])
            changed = True
    return changed


def test_user_pass_on_the_aten_graph() -> None:
    register_pass(before="codegen", name="fold_add")(_fold_two_additions)
    try:
        with events.collect() as seen:
            compiled = resolve("aot_eager")(_graph(), [torch.ones(2)])
        shown = [e for e in seen if e.kind == "pass" and e.name == "fold_add"]
        assert len(shown) == 1 and shown[0].before != shown[0].after
        graph = next(e.gm for e in seen if e.kind == "aot")
        assert [n.args[1] for n in graph.graph.nodes if n.target is aten.add.Tensor] == [3]
        assert torch.equal(compiled([torch.ones(2)]), torch.full((2,), 4.0))
    finally:
        unregister_pass("fold_add")


def test_user_pass_on_the_captured_graph_in_fx_convention() -> None:
    @register_pass(before="aot")
    class MultiplyInstead(PassBase):
        def call(self, gm: torch.fx.GraphModule) -> PassResult:
            for node in gm.graph.nodes:
                if node.target is operator.add:
                    node.target = operator.mul
            gm.recompile()
            return PassResult(gm, True)

    try:
        compiled = resolve("aot_eager")(_graph(), [torch.ones(2)])
        assert torch.equal(compiled([torch.ones(2) * 3]), torch.full((2,), 6.0))
    finally:
        unregister_pass("MultiplyInstead")
