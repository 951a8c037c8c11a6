"""The promises of the foundation, one test each."""

import warnings

import pytest
import torch

import weft
from weft import errors

pytestmark = pytest.mark.usefixtures("fresh")

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def toy(x):
    x = x.relu()
    if x.sum() > 0:
        x = x * 2
    return x


@pytest.mark.parametrize("device", DEVICES)
def test_relu_plus_sigmoid_is_one_kernel(device):
    f = weft.compile(lambda x: x.relu() + x.sigmoid())
    x = torch.randn(1000, device=device)
    torch.testing.assert_close(f(x), x.relu() + x.sigmoid())
    stats = weft.stats()
    assert (stats["graphs"], stats["kernels"], stats["graph_breaks"]) == (1, 1, 0)
    assert stats["extern_calls"] == 0


def test_toy_is_right_on_both_branches_with_one_break():
    f = weft.compile(toy)
    positive, negative = torch.ones(3), -torch.ones(3)
    torch.testing.assert_close(f(positive), positive * 2)
    stats = weft.stats()
    assert stats["graph_breaks"] == 1
    assert stats["graphs"] == 2
    torch.testing.assert_close(f(negative), torch.zeros(3))
    torch.testing.assert_close(f(positive), positive * 2)


def test_toy_with_fullgraph_names_line_and_hint():
    f = weft.compile(toy, fullgraph=True)
    with pytest.raises(errors.GraphBreakError) as caught:
        f(torch.ones(3))
    error = caught.value
    assert error.stack[-1].file == __file__
    first = toy.__code__.co_firstlineno
    assert error.stack[-1].line == first + 2
    assert error.hint
    assert error.id
    assert str(first + 2) in str(error)


def test_changed_dtype_recompiles_once_and_says_why():
    seen = []

    def note(event):
        if event.kind == "recompile":
            seen.append(event.fields["reason"])

    from weft.diagnostics import events

    end = events.subscribe(note)
    try:
        f = weft.compile(lambda x: x * 2 + 1)
        for dtype in (torch.float32, torch.bfloat16, torch.float32, torch.bfloat16):
            x = torch.randn(8, dtype=dtype)
            torch.testing.assert_close(f(x), x * 2 + 1)
    finally:
        end()
    assert weft.stats()["recompiles"] == 1
    (reason,) = seen
    assert "x" in reason
    assert "float32" in reason
    assert "bfloat16" in reason


def test_bad_arguments_list_the_valid_ones():
    with pytest.raises(errors.UnknownBackend, match="did you mean 'inductor'") as caught:
        weft.compile(toy, backend="inducter")
    assert all(repr(name) in str(caught.value) for name in weft.list_backends())
    assert {"eager", "aot_eager", "inductor"} <= set(weft.list_backends())
    with pytest.raises(errors.UnknownMode, match="max-autotune"):
        weft.compile(toy, mode="fastest")
    with pytest.raises(errors.UnknownOption, match="cache_size_limit"):
        weft.compile(toy, options={"cache_size": 1})
    with pytest.raises(TypeError):
        weft.compile(3)
    with pytest.raises(TypeError):
        weft.compile()(3)


def test_recompile_limit_runs_eager_after_one_warning():
    f = weft.compile(lambda x, text: x * len(text), options={"cache_size_limit": 2})
    x = torch.ones(3)
    with pytest.warns(errors.RecompileLimitWarning) as seen:
        for n in range(2, 8):
            torch.testing.assert_close(f(x, "a" * n), x * n)
    assert len(seen) == 1


def test_changing_python_numbers_stay_right():
    f = weft.compile(lambda x, n: x * n)
    x = torch.ones(3)
    for n in (1.5, 3.0, 3, 7, True, 0.0, -0.0, float("inf")):
        torch.testing.assert_close(f(x, n), x * n)


def test_stats_and_reset():
    f = weft.compile(lambda x: x + 1)
    f(torch.ones(3))
    stats = weft.stats()
    assert stats["cache_entries"] == 1
    assert stats["compile_seconds"]["total"] > 0
    assert stats["compile_seconds"]["capture"] > 0
    weft.reset()
    stats = weft.stats()
    assert (stats["graphs"], stats["cache_entries"]) == (0, 0)


def test_explain_tells_of_graphs_breaks_guards_kernels_and_times():
    explanation = weft.explain(toy)(torch.ones(3))
    assert len(explanation.graphs) == 2
    (found,) = explanation.graph_breaks
    assert found.stack[-1].line == toy.__code__.co_firstlineno + 2
    assert explanation.guards
    assert explanation.kernels
    assert any(__file__ in line for k in explanation.kernels for line in k.lines)
    assert explanation.total_seconds > 0


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
def test_every_backend_is_right(backend):
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.LayerNorm(16), torch.nn.GELU(),
        torch.nn.Linear(16, 4), torch.nn.Softmax(-1)).eval()
    x = torch.randn(5, 8)
    with torch.no_grad():
        torch.testing.assert_close(weft.compile(model, backend=backend)(x), model(x))
    assert weft.stats()["graph_breaks"] == 0


def test_gradients_flow_through_a_compiled_module():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    x = torch.randn(5, 8, requires_grad=True)
    wanted = torch.autograd.grad(model(x).sum(), [x, *model.parameters()])
    found = torch.autograd.grad(weft.compile(model)(x).sum(), [x, *model.parameters()])
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b)


def test_custom_backend_gets_the_graph_and_example_inputs():
    calls = []

    def my_compiler(gm, example_inputs):
        calls.append((gm, example_inputs))
        return gm.forward

    x = torch.randn(4)
    f = weft.compile(lambda x: torch.relu(x) + 1, backend=my_compiler)
    torch.testing.assert_close(f(x), torch.relu(x) + 1)
    f(x)
    ((gm, inputs),) = calls
    assert torch.relu in [n.target for n in gm.graph.nodes]
    assert any(t is x or torch.equal(t, x) for t in inputs)


def test_compiled_in_place_keeps_the_module():
    model = torch.nn.Linear(4, 4).eval()
    x = torch.randn(2, 4)
    wanted = model(x)
    assert weft.compile_inplace(model) is model
    torch.testing.assert_close(model(x), wanted)
    assert weft.stats()["graphs"] == 1
    assert list(model.state_dict()) == ["weight", "bias"]


def test_no_compiler_warns_once_and_runs_eager(monkeypatch, tmp_path):
    x = torch.randn(16)
    with weft.config.patch(cpp_compiler="/nowhere/g++", cache_dir=str(tmp_path), strict=False):
        with pytest.warns(errors.CompilerMissingWarning, match="install g") as seen:
            f = weft.compile(lambda x: x.relu() * 3)
            torch.testing.assert_close(f(x), x.relu() * 3)
            g = weft.compile(lambda x: x.tanh() * 3)
            torch.testing.assert_close(g(x), x.tanh() * 3)
        assert len([w for w in seen if w.category is errors.CompilerMissingWarning]) == 1


@pytest.mark.parametrize("made", [None, 3])
def test_a_failing_backend_of_the_user_surfaces(made):
    def broken(gm, example_inputs):
        if made is None:
            raise ZeroDivisionError("my own mistake")
        return made

    message = "returned int" if made else "broken raised ZeroDivisionError: my own mistake"
    for strict in (True, False):
        f = weft.compile(lambda x: x + 1, backend=broken)
        with weft.config.patch(strict=strict), pytest.raises(errors.BackendError, match=message):
            f(torch.ones(2))


def test_a_failure_inside_weft_runs_eager_with_one_warning(tmp_path, monkeypatch):
    from weft.backends import inductor

    def fail(*args, **kwargs):
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(inductor, "compile_graph", fail)
    x = torch.randn(5)
    f = weft.compile(lambda x: x.relu() * 3)
    with weft.config.patch(strict=True), pytest.raises(ZeroDivisionError):
        f(x)
    weft.reset()
    with weft.config.patch(strict=False, report_dir=str(tmp_path)), \
            pytest.warns(errors.FallbackWarning, match=str(tmp_path)) as seen:
        g = weft.compile(lambda x: x.relu() * 3)
        for _ in range(3):
            torch.testing.assert_close(g(x), x.relu() * 3)
    assert len(seen) == 1
    assert "planted" in next(tmp_path.iterdir()).read_text()


def test_nothing_is_warned_of_in_ordinary_use():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        weft.compile(torch.nn.Linear(3, 3))(torch.ones(1, 3))
