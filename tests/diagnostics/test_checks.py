"""`check_numerics` and `repro_after`: planted defects are found, named and written down."""

import os
import subprocess
import sys
from unittest import mock

import pytest
import torch
from torch import nn

import weft
from weft.codegen.lowering import LOWERINGS
from weft.diagnostics import numerics
from weft.diagnostics.minimize import minimize
from weft.errors import BadValue, NumericsError

aten = torch.ops.aten
SIGMOID_AS_TANH = {aten.sigmoid.default: LOWERINGS[aten.tanh.default]}


@pytest.fixture(autouse=True)
def _fresh(tmp_path):
    weft.reset()
    with weft.config.patch(report_dir=str(tmp_path)):
        yield


def _model():
    layers = (nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Sigmoid(), nn.Linear(8, 6))
              for _ in range(3))
    return nn.Sequential(*layers)


@pytest.mark.parametrize(("stage", "dynamic"), [("capture", False), ("aot", True)])
def test_a_planted_wrong_kernel_is_found_and_its_program_shows_it(stage, dynamic):
    x = torch.randn(5, 6)
    with weft.config.patch(check_numerics=True, repro_after=stage), \
            mock.patch.dict(LOWERINGS, SIGMOID_AS_TANH), pytest.raises(NumericsError) as told:
        weft.compile(_model(), dynamic=dynamic)(x)
    assert [name.removesuffix(".default") for name in told.value.operators] == ["sigmoid"]
    assert "activation.py" in str(told.value)  # the line of nn.Sigmoid.forward
    source = told.value.path.read_text()
    assert "sigmoid" in source and "linear" not in source and "addmm" not in source
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run([sys.executable, told.value.path], env=env, check=False)
    assert ran.returncode == 0  # the defect is not in that process


def test_a_wrong_gradient_is_found():
    lowering = LOWERINGS[aten.mul.Tensor]
    with weft.config.patch(check_numerics=True, repro_after="aot"), \
            mock.patch.dict(LOWERINGS, {aten.sigmoid_backward.default: lowering}), \
            pytest.raises(NumericsError, match="sigmoid_backward"):
        weft.compile(_model())(torch.randn(5, 6))


def _takes_tanh_for_sigmoid(gm):
    for node in gm.graph.find_nodes(op="call_function", target=aten.sigmoid.default):
        node.target = aten.tanh.default


@pytest.mark.parametrize("stage", ["", "capture", "aot"])
def test_a_faulty_pass_is_found_at_every_stage(stage):
    with weft.config.patch(check_numerics=True, repro_after=stage,
                           passes=[_takes_tanh_for_sigmoid]), \
            pytest.raises(NumericsError, match="sigmoid") as told:
        weft.compile(lambda x: x.sigmoid() * 2)(torch.randn(5, 6))
    assert (told.value.path is None) is (stage == "")


def test_a_backend_that_is_wrong_is_found_without_writing_a_program(tmp_path):
    def halves(gm, example_inputs):
        return lambda *inputs: [t / 2 for t in gm(*inputs)]

    with weft.config.patch(check_numerics=True), pytest.raises(NumericsError) as told:
        weft.compile(lambda x: x.sin().cos(), backend=halves)(torch.randn(4))
    assert told.value.path is None and not list(tmp_path.iterdir())
    assert len(told.value.operators) == 1
    assert "repro_after" in str(told.value)


def test_right_programs_pass_and_keep_their_effects():
    def step(x, state):
        y = nn.functional.dropout(x, 0.5, training=True) * 2
        state.add_(y.detach().sum(0))
        return y.view(-1).relu_()

    x = torch.randn(8, 6, requires_grad=True)
    kept, expected = torch.zeros(6), torch.zeros(6)
    with weft.config.patch(check_numerics=True):
        compiled = weft.compile(step, fullgraph=True)
        for n in (8, 5, 3):
            torch.manual_seed(n)
            found = compiled(x[:n], kept)
            torch.manual_seed(n)
            wanted = step(x[:n], expected)
            torch.testing.assert_close(found, wanted)
            torch.testing.assert_close(
                torch.autograd.grad(found.sum(), x), torch.autograd.grad(wanted.sum(), x))
    torch.testing.assert_close(kept, expected)


@pytest.mark.parametrize("stage", ["capture", "aot"])
def test_a_graph_that_does_not_compile_is_reduced(tmp_path, stage):
    def refuse(*args, **kwargs):
        raise LookupError("planted")

    with weft.config.patch(repro_after=stage), \
            mock.patch.dict(LOWERINGS, {aten.sigmoid.default: refuse}), \
            pytest.raises(LookupError) as told:
        weft.compile(_model())(torch.randn(5, 6))
    (program,) = tmp_path.glob("repro-*.py")
    assert str(program) in "".join(told.value.__notes__)
    assert program.read_text().count("torch.ops.aten." if stage == "aot" else "torch.sigmoid") == 1


def test_unknown_stages_are_refused():
    with weft.config.patch(repro_after="dynamo"), pytest.raises(BadValue, match="capture, aot"):
        weft.compile(lambda x: x + 1)(torch.ones(2))


def test_the_smallest_part_is_minimal():
    def program(a, b):
        return ((a + b).exp() * b).sin() + a.cos()

    gm = torch.fx.symbolic_trace(program)

    def fails(part, inputs):
        names = [n.name for n in part.graph.nodes if n.op != "placeholder"]
        return "exp" in names and "sin" in names

    part, inputs = minimize(gm, [torch.ones(2), torch.ones(2)], fails)
    assert [n.name for n in part.graph.nodes if n.op.startswith("call")] == ["exp", "sin"]
    assert len(inputs) == 2  # what exp and sin read, as it was in the whole graph
    torch.testing.assert_close(inputs[0], torch.full((2,), 2.0))


def test_rounding_is_told_from_errors_by_float64():
    torch.manual_seed(0)
    x = torch.randn(4000) * 1e4
    gm = torch.fx.symbolic_trace(lambda x: x.sum())
    assert not numerics.compare(gm, lambda x: [x.flip(0).cumsum(0)[-1]], [x])
    assert "elements differ" in numerics.compare(gm, lambda x: [x.sum() * 1.001 + 1], [x])


def test_complex_results_are_compared():
    gm = torch.fx.symbolic_trace(lambda x: x * 2)
    x = torch.complex(torch.randn(5), torch.randn(5)).requires_grad_()
    assert not numerics.compare(gm, lambda x: [x + x], [x])
    assert "elements differ" in numerics.compare(gm, lambda x: [x.conj() * 2], [x])


def test_a_gradient_that_only_one_side_has_is_a_difference():
    gm = torch.fx.symbolic_trace(lambda x, y: x * 2)
    inputs = [torch.randn(3, requires_grad=True) for _ in range(2)]
    found = numerics.compare(gm, lambda x, y: [x * 2 + y * 0], inputs)
    assert found == "gradient of input 1: Tensor, not NoneType"


def test_random_numbers_begin_alike_in_each_run():
    gm = torch.fx.symbolic_trace(lambda x: torch.nn.functional.dropout(x, 0.5, True))
    before = torch.get_rng_state()
    assert not numerics.compare(gm, gm, [torch.ones(64)])
    assert torch.equal(before, torch.get_rng_state())


def test_written_inputs_and_raised_errors_are_compared():
    gm = torch.fx.symbolic_trace(lambda x: x.add_(1))
    assert "input 0 afterwards" in numerics.compare(gm, lambda x: [x + 1], [torch.ones(3)])

    def broken(x):
        raise ValueError("planted")

    assert "raises ValueError" in numerics.compare(gm, broken, [torch.ones(3)])
