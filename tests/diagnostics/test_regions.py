"""Profiles show compiled calls and kernels by name; without a profiler nothing is in the way."""

import gc
import inspect
import traceback

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

import weft
from weft._cpu import Kernel
from weft.diagnostics import regions
from weft.errors import SourceLine

pytestmark = pytest.mark.usefixtures("fresh")


def profiled(call):
    """The events of a call: name -> its events."""
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as p:
        call()
    events = {}
    for event in p.events():
        events.setdefault(event.name, []).append(event)
    return events


def named(events, part):
    return [name for name in events if part in name and "evaluate_function" not in name]


def chain(x):
    y = x.relu() + 1
    return y.sigmoid() * y


LINE = inspect.getsourcelines(chain)[1]
PLACE = f"test_regions.py:{LINE}"
LINES = f"test_regions.py:{LINE + 1},{LINE + 2}"


def test_a_call_has_a_region_with_its_kernels_inside():
    compiled, x = weft.compile(chain), torch.randn(8)
    compiled(x)
    events = profiled(lambda: compiled(x))
    (graph,) = events[f"weft: chain ({PLACE}) graph 0"]
    (name,) = named(events, LINES)
    assert name.startswith("k0_")
    (kernel,) = events[name]
    assert graph.time_range.start <= kernel.time_range.start
    assert kernel.time_range.end <= graph.time_range.end


def test_forward_and_backward_are_linked():
    compiled, x = weft.compile(chain), torch.randn(8, requires_grad=True)
    compiled(x)
    events = profiled(lambda: compiled(x).sum().backward())
    (forward,) = events[f"weft: chain ({PLACE}) graph 0 (autograd)"]
    (backward,) = events[f"weft: chain ({PLACE}) graph 0 backward"]
    assert forward.sequence_nr == backward.sequence_nr >= 0
    assert "CompiledFunctionBackward" in repr(compiled(x).grad_fn)


def broken(x):
    y = x.relu() + 1
    print("between")
    return y * 2


def test_graphs_between_breaks_are_numbered():
    compiled, x = weft.compile(broken), torch.randn(8)
    compiled(x)
    names = named(profiled(lambda: compiled(x)), "weft: broken")
    assert [name.partition(" graph ")[2] for name in names] == ["0", "1"]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("dynamic", [False, True])
def test_all_backends_and_sizes_have_regions(backend, dynamic):
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU())
    compiled = weft.compile(model, backend=backend, dynamic=dynamic)
    for n in (3, 5):
        expected = model(torch.ones(n, 4))
        compiled(torch.ones(n, 4))
        results = []
        events = profiled(lambda: results.append(compiled(torch.ones(n, 4))))
        assert named(events, "weft: forward")
        torch.testing.assert_close(results[0], expected)


def test_what_is_compiled_while_a_profiler_runs_has_regions_too():
    compiled, x = weft.compile(chain), torch.randn(8)
    events = profiled(lambda: (compiled(x), compiled(x)))
    assert len(events[f"weft: chain ({PLACE}) graph 0"]) == 2


def variables():
    """What the generated functions call, by name."""
    return {name: value for function, kind in list(regions._functions.items())
            for name, value in (function.__globals__ | inspect.getclosurevars(function).nonlocals
                                ).items() if name == "graph" or name.startswith("k0_")}


def test_without_a_profiler_there_are_the_plain_callables():
    compiled, x = weft.compile(chain), torch.randn(8)
    compiled(x)
    before = variables()
    assert set(map(type, before.values())) == {type(chain), Kernel}
    shown = []
    profiled(lambda: shown.append(variables()))
    assert set(map(type, shown[0].values())) == {regions.Region}
    assert variables() == before


def test_replacements_are_not_kept_alive():
    def replacements():
        gc.collect()
        return sum(function.__code__.co_name == "chain" for function in list(regions._functions))

    weft.reset()
    before = replacements()
    compiled = [weft.compile(chain), weft.compile(chain, dynamic=False)]
    for function in compiled:
        function(torch.randn(8))
    assert replacements() == before + 2
    del compiled, function
    weft.reset()  # until then the next function with this code would find them
    assert replacements() == before


def test_errors_of_compiled_code_pass_regions_without_a_trace():
    def pick(x, i):
        return x[i] * 2

    compiled = weft.compile(pick)
    x, good, bad = torch.randn(4), torch.tensor([1]), torch.tensor([9])
    compiled(x, good)
    errors = []

    def fails():
        with pytest.raises(IndexError) as caught:
            compiled(x, bad)
        errors.append(caught.value)

    profiled(fails)
    lines = traceback.extract_tb(errors[0].__traceback__)
    assert lines[-1].name == "pick", lines
    assert not [line for line in lines if line.filename.endswith("/regions.py")]


def test_autograd_s_own_profiler_shows_regions():
    compiled, x = weft.compile(chain), torch.randn(8)
    compiled(x)
    with torch.autograd.profiler.profile(acc_events=True) as p:
        compiled(x)
    assert f"weft: chain ({PLACE}) graph 0" in {event.name for event in p.function_events}


def test_names_of_kernels_have_each_line_once():
    lines = [SourceLine("/a/m.py", 3, "f"), SourceLine("/a/m.py", 3, "g"),
             SourceLine("/a/m.py", 7, "f"), SourceLine("/b/n.py", 1, "h")]
    assert regions.kernel_region("k0_add", lines) == "k0_add (m.py:3,7, n.py:1)"
    assert regions.kernel_region("k0_add", []) == "k0_add"
