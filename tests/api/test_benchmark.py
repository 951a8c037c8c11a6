"""`weft.benchmark`: what is measured is the program's own result, and nothing of it is changed."""

import json
import subprocess
import sys

import pytest
import torch
from torch import nn

import weft
from weft.diagnostics.accuracy import relative_error, tensors
from weft.errors import BadValue, NotCallable, UnknownContender

pytestmark = pytest.mark.usefixtures("fresh")
QUICK = {"rounds": 3, "seconds": 0.2}


def pointwise(x: torch.Tensor) -> torch.Tensor:
    return x.relu() + x.sigmoid()


def test_a_comparison_has_a_row_for_each_contender():
    comparison = weft.benchmark(pointwise, (torch.randn(2**14),), **QUICK)
    assert [row.name for row in comparison.rows] == ["weft", "eager"]
    for row in comparison.rows:
        assert row.first_call > 0 and row.median > 0 and row.failure == ""
        assert row.error < 1e-6
    assert comparison["weft"].peak_memory == 2**16
    assert comparison["eager"].peak_memory > 2**17
    assert comparison.error_against == "float64"
    assert weft.stats()["graphs"] == 1


def test_a_comparison_is_shown_as_text_as_html_and_as_plain_values():
    comparison = weft.benchmark(pointwise, torch.randn(8), **QUICK)
    for text in (str(comparison), comparison._repr_html_()):
        assert all(part in text for part in ("pointwise", "first call", "eager", " x"))
    plain = json.loads(json.dumps(comparison.to_dict()))
    assert [row["name"] for row in plain["rows"]] == ["weft", "eager"]
    assert plain["rows"][0]["median"] == comparison["weft"].median
    assert plain["machine"]["torch"] == torch.__version__
    with pytest.raises(KeyError):
        comparison["jax"]


def test_names_in_html_are_escaped():
    comparison = weft.benchmark(lambda x: x + 1, torch.randn(8), **QUICK)
    assert "<lambda>" not in comparison._repr_html_()


def wrong(x: torch.Tensor) -> torch.Tensor:
    return pointwise(x) * 1.25


def failing(x: torch.Tensor) -> torch.Tensor:
    raise RuntimeError("no such kernel\nand more")


def test_callables_are_measured_too_and_one_that_fails_has_its_error_in_its_row():
    comparison = weft.benchmark(
        pointwise, torch.randn(64), against=("eager", wrong, failing), **QUICK)
    assert comparison["wrong"].error == pytest.approx(0.25, rel=1e-3)
    assert comparison["failing"].failure == "RuntimeError: no such kernel"
    assert "no such kernel" in str(comparison)
    assert comparison.to_dict()["rows"][3]["median"] is None


@pytest.mark.parametrize(("call", "error"), [
    (lambda: weft.benchmark(3), NotCallable),
    (lambda: weft.benchmark(pointwise, torch.ones(2), against=("egaer",)), UnknownContender),
    (lambda: weft.benchmark(pointwise, torch.ones(2), against=(3,)), BadValue),
    (lambda: weft.benchmark(pointwise, torch.ones(2), backward=True), BadValue),
    (lambda: weft.benchmark(pointwise, torch.ones(2), optoins={}), TypeError),
])
def test_wrong_calls_are_refused(call, error):
    with pytest.raises(error):
        call()


@pytest.mark.parametrize("compiled", [False, True])
def test_backwards_are_measured_with_all_gradients_and_leave_none(compiled):
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU())
    x = (torch.randn(4, 8, requires_grad=True) * 2)  # with a history
    fn = weft.compile(model) if compiled else model
    comparison = weft.benchmark(fn, (x,), backward=True, **QUICK)
    assert comparison.error_against == "float64"
    assert comparison.backward and 0 < comparison["weft"].error < 1e-5
    assert all(p.grad is None for p in model.parameters())


def test_a_function_finds_the_parameters_that_it_closes_over():
    layer, x = nn.Linear(8, 8), torch.randn(4, 8)
    comparison = weft.benchmark(lambda x: layer(x).relu(), x, backward=True, **QUICK)
    assert comparison.error_against == "eager"  # a closure cannot be copied to float64
    assert comparison["weft"].error < 1e-5


def test_buffers_and_the_random_state_are_as_before():
    model = nn.Sequential(nn.BatchNorm1d(8), nn.Dropout(0.5))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x = torch.randn(16, 8)
    state = torch.get_rng_state()
    comparison = weft.benchmark(model, x, **QUICK)
    assert torch.equal(state, torch.get_rng_state())
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, before[name], rtol=0, atol=0)
    assert comparison["weft"].error is None
    assert "change from call to call" in str(comparison)


def test_a_call_that_writes_to_its_argument_is_compared_with_a_fresh_one():
    def scale(x):
        return x.mul_(1.5).add_(1)

    comparison = weft.benchmark(scale, torch.ones(8), **QUICK)
    assert comparison["weft"].error < 1e-6


def test_fullgraph_and_other_settings_reach_weft():
    def prints(x):
        print("between")
        return x + 1

    with pytest.raises(weft.errors.GraphBreakError):
        weft.benchmark(prints, torch.ones(2), fullgraph=True, **QUICK)


def test_torch_compile_is_imported_only_if_it_is_asked_for():
    code = """
import sys, torch, weft
weft.benchmark(lambda x: x + 1, torch.ones(4), rounds=2, seconds=0.1)
assert "torch._dynamo" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_torch_compile_is_a_contender(monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "compile", lambda fn: asked.append(fn) or fn)
    comparison = weft.benchmark(pointwise, torch.ones(4), against="torch.compile", **QUICK)
    assert asked == [pointwise]
    assert comparison["torch.compile"].median > 0
    assert comparison.speedup("weft") is None  # eager was not measured
    assert comparison.speedup("weft", over="torch.compile") > 0


def test_error_measure_sees_a_wrong_value():
    right = {"a": torch.ones(3), "b": (torch.zeros(2),)}
    wrong = {"a": torch.ones(3) + torch.tensor([0, 0, 0.5]), "b": (torch.zeros(2),)}
    assert relative_error(tensors(right), tensors(right)) == 0
    assert relative_error(tensors(wrong), tensors(right)) == 0.5
    with pytest.raises(ValueError, match="zip"):
        relative_error(tensors({"a": right["a"]}), tensors(right))
