import logging
import os
import subprocess
import sys

import pytest
import torch

import weft
from weft import errors
from weft.diagnostics import events, logs
from weft.errors import SourceLine


@pytest.fixture(autouse=True)
def _off():
    yield
    logs.set_logs()


def test_only_the_chosen_artifacts_are_written(capsys):
    logs.set_logs("guards", recompiles=True, graph=False)
    events.record("guards", code="f", guards=["x.dtype is float32"])
    events.record("graph", code="f", gm="nothing")
    events.record("recompile", code="f", reason="x.dtype: float32 -> bfloat16")
    err = capsys.readouterr().err
    assert "[guards] guards of f" in err
    assert "x.dtype is float32" in err
    assert "[recompiles] recompiling f: x.dtype" in err
    assert "nothing" not in err
    assert "\x1b" not in err


def test_no_arguments_turn_logs_off(capsys):
    logs.set_logs("guards")
    logs.set_logs()
    events.record("guards", code="f", guards=[])
    assert capsys.readouterr().err == ""


def test_breaks_show_the_line_and_the_hint(capsys):
    logs.set_logs("graph_breaks")
    events.record("graph_break", id="WB1", reason="print", hint="log",
                  stack=(SourceLine("a.py", 1, "f"), SourceLine("b.py", 2, "g")))
    err = capsys.readouterr().err
    assert err.index("b.py:2") < err.index("a.py:1")
    assert "hint: log" in err


def test_unknown_artifact_lists_the_valid_ones():
    with pytest.raises(errors.UnknownArtifact, match="did you mean 'guards'"):
        logs.set_logs("guard")
    with pytest.raises(errors.UnknownArtifact):
        logs.set_logs(nonsense=True)


def test_every_artifact_formats_an_event_with_no_fields_but_its_own(capsys):
    logs.set_logs(*logs.ARTIFACTS)
    for kinds in logs.ARTIFACTS.values():
        for kind in kinds:
            if kind != "stage_end":
                events.record(kind)
    with events.stage("capture"):
        pass
    err = capsys.readouterr().err
    assert all(f"[{artifact}]" in err for artifact in logs.ARTIFACTS)


def test_python_logging_can_take_over():
    taken = []

    class Take(logging.Handler):
        def emit(self, record):
            taken.append(record.getMessage())

    logger = logging.getLogger("weft.recompiles")
    handler = Take()
    logger.addHandler(handler)
    try:
        logs.set_logs("recompiles")
        events.record("recompile", code="f", reason="r")
    finally:
        logger.removeHandler(handler)
    assert taken == ["recompiling f: r"]


def test_environment_variable_turns_logs_on():
    code = "import weft; from weft.diagnostics import events; events.record('perf', text='fast')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          env={**os.environ, "WEFT_LOGS": "perf"}, check=True)
    assert "[perf] fast" in done.stderr


def test_a_level_chooses_between_first_lines_and_everything(capsys):
    logs.set_logs(guards="info", recompiles="DEBUG", graph=logging.INFO, perf=logging.WARNING)
    events.record("guards", code="f", guards=["x.dtype is float32"])
    events.record("graph", code="f", gm="nothing")
    events.record("recompile", code="f", reason="first\n  second")
    events.record("perf", text="fast")
    err = capsys.readouterr().err
    assert "[guards] guards of f" in err
    assert "x.dtype" not in err
    assert "captured graph of f" in err
    assert "nothing" not in err
    assert "second" in err
    assert "fast" not in err


def test_levels_in_the_environment_variables_text(capsys):
    logs.set_logs_from_text("guards:info, perf")
    events.record("guards", code="f", guards=["x.dtype is float32"])
    events.record("perf", text="fast")
    err = capsys.readouterr().err
    assert "x.dtype" not in err
    assert "[perf] fast" in err


def test_unknown_levels_are_refused():
    with pytest.raises(errors.BadValue, match="debug or info"):
        logs.set_logs(guards="loud")


@pytest.mark.usefixtures("fresh")
def test_compiling_tells_something_about_every_artifact(capsys):
    def program(x, n):
        y = (x @ (x.sin() * 1)).relu().sum(-1) * n
        print(end="")
        return y + 1

    logs.set_logs(*logs.ARTIFACTS)
    compiled = weft.compile(program)
    x = torch.ones(4, 4)
    compiled(x, 2)
    compiled(x.double(), 2)
    logs.set_logs()
    err = capsys.readouterr().err
    missing = [artifact for artifact in logs.ARTIFACTS if f"[{artifact}]" not in err]
    assert not missing


def test_output_code_shows_the_machine_near_text_of_cpu_kernels(capsys):
    logs.set_logs("output_code")
    weft.compile(lambda x: x.relu() + x.sigmoid())(torch.randn(33))
    err = capsys.readouterr().err
    assert "a.buffers[0]" in err  # the C++ kernel
    assert "def call(args)" in err


def test_passes_show_the_graph_before_and_after(capsys):
    logs.set_logs("passes")
    weft.compile(lambda x: (x.sin() * 1).cos(), backend="aot_eager")(torch.randn(33))
    err = capsys.readouterr().err
    assert err.index("[passes] pass ") < err.index("before:") < err.index("after:")


def test_trace_writes_each_form_of_forward_and_backward_to_files(tmp_path):
    with weft.config.patch(cache_dir=str(tmp_path)):
        compiled = weft.compile(lambda x: x.sin().sum(), options={"trace": True})
        compiled(torch.randn(33, requires_grad=True)).backward()
        weft.compile(lambda x: x.cos())(torch.randn(33))  # not traced
    [folder] = (tmp_path / "trace").iterdir()
    texts = {path.name: path.read_text() for path in folder.glob("*.txt")}
    assert sorted(int(name[:3]) for name in texts) == list(range(1, len(texts) + 1))
    kinds = [name[4:-4] for name in sorted(texts)]
    assert {"graph", "guards", "aot", "schedule", "kernel", "output_code", "bytecode"} <= {*kinds}
    assert kinds.count("aot") == 2
    assert not any("cos(" in text and "def forward(self, x" in text for text in texts.values())
