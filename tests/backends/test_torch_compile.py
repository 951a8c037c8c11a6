"""torch.compile(backend="weft"): torch.compile captures and guards, weft compiles the graphs."""

import copy
import importlib.metadata
import tomllib
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import weft
from weft import errors
from weft.backends.torch_compile import weft as backend

pytestmark = [pytest.mark.usefixtures("fresh"),
              pytest.mark.filterwarnings("ignore::DeprecationWarning"),
              pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0"),
              pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")]


@pytest.fixture(autouse=True)
def _forget():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def rows_and_columns(x, n):
    return (x * x.shape[0] + n).view(-1, x.shape[1]).softmax(-1), x.shape[0] + n


def branches_on_a_size(x, n):
    return x.relu() if x.shape[0] > 5 else x.sum(0) * n


def joined_and_repeated(x, n):
    return torch.cat([x, x[:2]]).repeat(2, 1).t().contiguous() + n


def writes_its_input(x, n):
    y = x.clone()
    y[1:].mul_(n)
    return y, y.t()


def makes_by_sizes(x, n):
    return torch.arange(x.shape[0]) * n, torch.ones(x.shape[0] // 2 + 1, x.numel()), x.new_zeros(n)


def modes(x, n):
    with torch.no_grad():
        y = x * n
    with torch.autocast("cpu", torch.bfloat16):
        z = x @ x.t()
    return y, z


def numbers_of_data(x, n):
    return x[x > 0].sum() * n, (x > 0).sum()


def floats(x, n):
    return x * (n / 3.0) + float(x.shape[0])


dropout, normalization = nn.Dropout(0.0), nn.BatchNorm1d(4, affine=False)


def layers_with_floats(x, n):
    return dropout(normalization(x)) + n


PROGRAMS = (rows_and_columns, branches_on_a_size, joined_and_repeated, writes_its_input,
            makes_by_sizes, modes, numbers_of_data, floats, layers_with_floats)
CALLS = ((3, 2), (7, 2), (11, 5))


SYMBOLIC_AT_ONCE = (rows_and_columns, writes_its_input, floats)
"""The others meet symbols in their second call."""


@pytest.mark.parametrize(("program", "dynamic"), [
    *((program, None) for program in PROGRAMS), *((program, True) for program in SYMBOLIC_AT_ONCE)])
def test_programs_give_what_eager_gives_for_all_sizes(program, dynamic):
    compiled = torch.compile(program, backend=backend, dynamic=dynamic)
    for size, n in CALLS:
        x = torch.randn(size, 4, requires_grad=True)
        expected, result = program(x, n), compiled(x, n)
        torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5, check_stride=True)
        gradients = [torch.autograd.grad(_total(value), x, allow_unused=True)
                     for value in (result, expected) if _total(value).requires_grad]
        if gradients:
            torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-5)
    made = weft.stats()
    assert made["kernels"] > 0
    assert made["fallbacks"] == made["uncompiled_graphs"] == 0


def _total(value):
    leaves = [v for v in torch.utils._pytree.tree_leaves(value) if isinstance(v, torch.Tensor)]
    return sum(v.double().sum() for v in leaves)


def test_symbolic_sizes_are_compiled_once():
    compiled = torch.compile(rows_and_columns, backend=backend, dynamic=True)
    compiled(torch.randn(3, 4), 2)
    first = weft.stats()["kernels"]
    for size, n in CALLS:
        compiled(torch.randn(size, 4), n)
    assert weft.stats()["kernels"] == first


def test_what_weft_asks_of_a_size_becomes_a_guard_of_torch_compile():
    def scale(x, y):
        return x + y.relu()

    compiled = torch.compile(scale, backend=backend, dynamic=True)
    for size in (4, 1, 4):  # broadcast: another graph
        x, y = torch.randn(4, 3), torch.randn(size, 3)
        torch.testing.assert_close(compiled(x, y), scale(x, y))


def test_marked_dimensions_stay_free():
    compiled = torch.compile(rows_and_columns, backend=backend, fullgraph=True)
    x = torch.randn(6, 4)
    torch._dynamo.mark_dynamic(x, 0)
    compiled(x, 2)
    first = weft.stats()["kernels"]
    torch.testing.assert_close(compiled(torch.randn(9, 4), 2)[1], 11)
    assert weft.stats()["kernels"] == first


def test_an_unbacked_dimension_decides_nothing():
    compiled = torch.compile(lambda x: x * 2 + 1, backend=backend, fullgraph=True)
    x = torch.randn(6, 4)
    torch._dynamo.decorators.mark_unbacked(x, 0)
    torch.testing.assert_close(compiled(x), x * 2 + 1)
    for size in (0, 1, 9):
        y = torch.randn(size, 4)
        torch.testing.assert_close(compiled(y), y * 2 + 1)


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_model_trains_as_eager(dynamic):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 1))
    twin = copy.deepcopy(model)
    compiled = torch.compile(model, backend=backend, dynamic=dynamic)
    optimizers = [torch.optim.AdamW(m.parameters(), 1e-2) for m in (model, twin)]
    for size in (4, 6, 4):
        x = torch.randn(size, 8)
        for run, optimizer in zip((compiled, twin), optimizers, strict=True):
            run(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    for mine, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)
    assert weft.stats()["fallbacks"] == 0


def test_a_graph_that_weft_cannot_compile_runs_as_it_is(monkeypatch):
    def fail(*args, **settings):
        raise errors.InternalError("no")

    monkeypatch.setattr("weft.backends.torch_compile.compile_fx", fail)
    monkeypatch.setattr(weft.config, "strict", False)
    compiled = torch.compile(lambda x: x + 1, backend=backend)
    with pytest.warns(errors.FallbackWarning, match="compiling a graph of torch.compile"):
        assert torch.equal(compiled(torch.zeros(2)), torch.ones(2))


def test_modes_and_options_reach_weft():
    x = torch.randn(4, 4)
    tuned = torch.compile(lambda x: x @ x, backend=backend, mode="max-autotune")
    torch.testing.assert_close(tuned(x), x @ x)
    own = torch.compile(lambda x: x + 1, backend=backend, options={"max_fusion_size": 3})
    torch.testing.assert_close(own(x), x + 1)
    with pytest.warns(errors.TorchOptionWarning, match="shape_padding"):
        torch.compile(lambda x: x + 2, backend=backend, options={"shape_padding": True})(x)
    with pytest.raises(Exception, match="did you mean 'max_autotune'"):
        torch.compile(lambda x: x + 3, backend=backend, options={"max_autotun": True})(x)


def test_torch_compile_finds_it_by_the_entry_point_of_the_package():
    project = tomllib.loads(
        (Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    points = project["entry-points"]["torch_dynamo_backends"]
    point = importlib.metadata.EntryPoint("weft", points["weft"], "torch_dynamo_backends")
    assert point.load() is backend


def test_without_the_compile_stack_it_is_a_name_of_wefts_own_backend():
    with warnings.catch_warnings(record=True) as seen:
        assert torch.equal(weft.compile(torch.relu, backend="weft")(torch.ones(2)), torch.ones(2))
    assert not seen
