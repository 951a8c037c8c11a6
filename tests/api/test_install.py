"""weft.install(): torch.compile is weft's; its arguments, generated from its signature, keep their
meaning or say what happens instead."""

import copy
import inspect
import itertools
import os
import pickle
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import weft
from weft import errors, torch_settings
from weft.backends.torch_adapter import compiled_by_torch
from weft.config import MODES
from weft.installation import compile_arguments, is_installed

pytestmark = pytest.mark.usefixtures("fresh")
X = torch.arange(6.0).reshape(2, 3)
THEIRS = torch.compile


def double(x):
    """Doubles."""
    return x * 2


@pytest.fixture
def installed():
    torch_settings._noted.clear()
    with weft.install():
        yield
    assert torch.compile is THEIRS


def test_it_is_installed_for_the_block_or_until_it_is_uninstalled():
    with weft.install() as installation:
        assert is_installed() and "not" not in repr(installation)
        with weft.install():
            pass
        assert is_installed(), "the outer installation goes on"
        compiled = torch.compile(double)
    assert not is_installed() and torch.compile is THEIRS
    weft.install()
    weft.uninstall()
    assert torch.compile is THEIRS
    weft.uninstall()
    assert torch.equal(compiled(X), X * 2)
    assert weft.stats()["graphs"] == 1, "what was compiled stays weft's"


def test_it_looks_like_the_function_that_it_stands_for(installed):
    assert torch.compile is not THEIRS
    assert inspect.signature(torch.compile) == inspect.signature(THEIRS)
    assert torch.compile.__doc__ == THEIRS.__doc__


def test_a_wrapper_of_a_library_around_it_passes_on_after_uninstalling(monkeypatch):
    calls = []
    monkeypatch.setattr(torch, "compile", lambda *args, **kwargs: calls.append(args))
    with weft.install():
        ours = torch.compile
        torch.compile = wrapper = lambda *args, **kwargs: ours(*args, **kwargs)  # as Lightning does
        assert torch.equal(torch.compile(double)(X), X * 2)
    assert torch.compile is wrapper
    torch.compile(double)
    assert calls == [(double,)]


VALUES = {
    "fullgraph": (True, None), "dynamic": (True, False), "backend": ("inductor", "weft", "eager"),
    "mode": ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs", "lite"),
    "options": ({}, {"max_autotune": True}, {"triton.cudagraphs": True, "epilogue-fusion": True}),
    "name": ("region",), "disable": (True,), "recompile_limit": (3,),
    "isolate_recompiles": (True,), "shapes_spec": (object(),), "dynamic_shapes": (object(),),
}


def _pairs():
    named = [n for n in inspect.signature(THEIRS).parameters if n != "model"]
    assert set(named) <= set(VALUES), "an argument of torch.compile that weft does not know"
    single = [{n: v} for n in named for v in VALUES[n]]
    return single + [a | b for a, b in itertools.combinations(single, 2) if not a.keys() & b.keys()]


def test_every_argument_and_pair_of_arguments_is_understood(installed):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.TorchOptionWarning)
        for arguments in _pairs():
            compiled = torch.compile(double, **arguments)
            assert torch.compile(**arguments)(double) is not None
            assert (compiled is double) == bool(arguments.get("disable"))


def test_modes_mean_the_same():
    for mode, settings in MODES.items():
        assert compile_arguments(mode=mode)["options"] == dict(settings)


SPECIAL = {"cpp.cxx": "g++", "cpp.simdlen": 512, "compile_threads": 2, "max_fusion_size": 8}


def test_every_option_of_inductor_has_a_setting_or_a_note():
    names = sorted(torch_settings._inductors_options())
    assert len(names) > 300
    assert "triton.cudagraphs" in names
    for name in names:
        torch_settings._noted.clear()
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            settings = torch_settings.settings_of(None, {name: SPECIAL.get(name, True)})
        assert len(settings) + len(seen) == 1, name


def test_options_with_a_counterpart_set_it():
    settings = torch_settings.settings_of
    assert settings("reduce-overhead", {"max-autotune": True}) == {
        "cudagraphs": True, "max_autotune": True}
    assert settings(None, {"cpp.simdlen": 256, "cpp.cxx": (None, "clang++"), "compile_threads": 3,
                           "fx_graph_cache": False, "trace.enabled": True}) == {
        "simd": "avx2", "cpp_compiler": "clang++", "compile_jobs": 3, "disk_cache": False,
        "trace": True}
    assert compile_arguments(recompile_limit=5)["options"] == {"cache_size_limit": 5}


def test_what_has_no_counterpart_is_noted_once(installed):
    with pytest.warns(errors.TorchOptionWarning, match="shape_padding.*pads no matrices"):
        torch.compile(double, options={"shape_padding": True})
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.compile(double, options={"shape_padding": True})
    assert not seen


@pytest.mark.parametrize(("arguments", "hint"), [
    ({"options": {"epilog_fusion": True}}, "did you mean 'epilogue_fusion'"),
    ({"options": {"triton.cudagraph": True}}, "did you mean 'triton.cudagraphs'"),
    ({"options": {"max_autotune": "yes"}}, "takes bool"),
    ({"mode": "reduce-overheads"}, "did you mean 'reduce-overhead'"),
    ({"backend": "inducter"}, "did you mean 'inductor'"),
    ({"options": 3}, "must be a dict"),
])
def test_misspelt_names_and_wrong_values_are_errors(installed, arguments, hint):
    with pytest.raises(errors.UserError, match=hint):
        torch.compile(double, **arguments)


def test_a_backend_of_the_user_gets_the_arguments_that_torch_compile_passes(installed):
    seen = {}

    def backend(gm, inputs, **arguments):
        seen.update(arguments)
        return gm.forward

    compiled = torch.compile(double, backend=backend, mode="fast", options={"level": 3})
    assert torch.equal(compiled(X), X * 2)
    assert seen == {"mode": "fast", "options": {"level": 3}}


@pytest.mark.parametrize("variable", ["TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE"])
def test_the_environment_turns_it_off_as_torch_compile(installed, variable, monkeypatch):
    monkeypatch.setenv(variable, "1")
    assert torch.compile(double) is double


SKIPS = [name for name in dir(torch.compiler) if name.endswith("_unsafe")]


@pytest.mark.parametrize("name", SKIPS)
def test_filters_of_guards_are_accepted_and_explained(name):
    assert len(SKIPS) >= 4
    skip = getattr(torch.compiler, name)
    torch_settings._noted.clear()
    with pytest.warns(errors.TorchOptionWarning, match=name):
        compiled = weft.compile(double, options={"guard_filter_fn": skip})
    assert torch.equal(compiled(X), X * 2)
    assert torch.equal(compiled(X.double()), X.double() * 2)
    shown = str(weft.explain(double, options={"guard_filter_fn": skip})(X))
    assert "no guard is given up" in shown and name in shown


def test_a_module_compiles_itself_and_its_copies(installed):
    model = nn.Linear(3, 2)
    model.compile(backend="eager", fullgraph=True)
    before = weft.stats()["graphs"]
    for twin in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        torch.testing.assert_close(twin(X), nn.functional.linear(X, model.weight, model.bias))
        assert len(twin._compiled_call_impl.__func__.used_entries) == 1
        assert list(twin.state_dict()) == ["weight", "bias"]
    assert weft.stats()["graphs"] == before + 2  # copies have their attributes in another order
    weft.uncompile_inplace(model)
    weft.reset()
    model(X)
    assert weft.stats()["graphs"] == 0
    assert "_compiled_call_impl" not in vars(model)


RUN = """
import sys
{first}
import torch
compiled = torch.compile(lambda x: x + 1, backend="eager")
print(compiled(torch.ones(1)).item(), type(compiled).__module__, "torch._dynamo" in sys.modules)
"""


@pytest.mark.parametrize("first", ["", "import weft"], ids=["torch first", "weft first"])
def test_the_environment_installs_it_without_a_change_of_the_program(first, tmp_path):
    project = tomllib.loads(
        (Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    metadata = tmp_path / "weft-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: weft\nVersion: 0\n")
    (metadata / "entry_points.txt").write_text(
        f"[torch.backends]\nweft = {project['entry-points']['torch.backends']['weft']}\n")
    sources = str(Path(weft.__file__).parents[1])
    environment = {**os.environ, "WEFT_INSTALL": "1",
                   "PYTHONPATH": os.pathsep.join((str(tmp_path), sources))}
    done = subprocess.run([sys.executable, "-c", RUN.format(first=first)], env=environment,
                          capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2.0", "weft._frame", "False"]


def test_measuring_against_torch_compile_measures_torch_compile():
    own = torch.compile
    with weft.install():
        assert inspect.unwrap(torch.compile) is own
        compiled_by_torch(double)(X)
        assert weft.stats()["graphs"] == 0
        torch.compile(double)(X)
        assert weft.stats()["graphs"] == 1
