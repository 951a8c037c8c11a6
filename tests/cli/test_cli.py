import io
import subprocess
import sys

import pytest
from rich.console import Console
from typer.testing import CliRunner

from weft import cli
from weft.cli import demo, doctor
from weft.config import config
from weft.diagnostics import failures
from weft.errors import FallbackWarning, WeftError


@pytest.fixture
def run():
    runner = CliRunner()
    return lambda *arguments: runner.invoke(cli.app, list(arguments))


def test_help_lists_the_commands(run):
    text = run("--help").output
    assert all(name in text for name in ("doctor", "demo", "explain", "cache", "bench",
                                         "report"))


def test_doctor_finds_this_machine_fit(run):
    result = run("doctor")
    assert result.exit_code == 0, result.output
    assert "everything needed works" in result.output
    assert all(name in result.output for name in doctor.CHECKS)


def test_doctor_without_a_compiler_says_what_to_install(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    monkeypatch.delenv("CXX", raising=False)
    out = io.StringIO()
    assert not doctor.examine(Console(file=out, width=200))
    assert "apt-get install g++" in out.getvalue()


def test_doctor_without_a_writable_cache(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    out = io.StringIO()
    with config.patch(cache_dir=str(blocked)):
        assert not doctor.examine(Console(file=out, width=200))
    assert "WEFT_CACHE_DIR" in out.getvalue()


def test_cache_is_counted_and_cleared_but_foreign_files_stay(run, tmp_path):
    from weft.runtime.disk_cache import DiskCache

    with config.patch(cache_dir=str(tmp_path)):
        DiskCache("cpp").put("0" * 64, b"x" * 100)
        foreign = tmp_path / "thesis.tex"
        foreign.write_text("do not lose")
        assert "1 files" in run("cache", "info").output
        assert "removed 1 files" in run("cache", "clear").output
        assert foreign.read_text() == "do not lose"
        assert DiskCache("cpp").get("0" * 64) is None
        assert "0 files" in run("cache", "info").output


def test_a_cache_is_saved_loaded_and_verified(run, tmp_path, monkeypatch):
    from weft.runtime.disk_cache import DiskCache

    monkeypatch.delenv("WEFT_CACHE_KEY", raising=False)
    archive = str(tmp_path / "warm.zip")
    with config.patch(cache_dir=str(tmp_path / "first")):
        assert run("cache", "save", archive).exit_code == 1  # there is nothing
        DiskCache("cpp").put("0" * 64, b"x" * 100)
        assert "1 files" in run("cache", "save", archive).output
    with config.patch(cache_dir=str(tmp_path / "second")):
        assert "1 files loaded" in run("cache", "load", archive).output
        assert "1 files are as they were written, 0 were not" in run("cache", "verify").output
        file = DiskCache("cpp").path("0" * 64)
        file.write_bytes(file.read_bytes()[:-1])
        DiskCache("entries").put("1" * 64, b"no entry")
        verified = run("cache", "verify")
        assert verified.exit_code == 1 and "0 files are as they were written" in verified.output
        assert not file.exists() and DiskCache("entries").get("1" * 64) is None
        (tmp_path / "spoiled.zip").write_bytes(b"PK")
        assert isinstance(run("cache", "load", str(tmp_path / "spoiled.zip")).exception, WeftError)


PROGRAM = """
import sys, torch, weft
f = weft.compile(lambda x: x.relu() + x.sigmoid())
f(torch.randn(8))
print("argument", sys.argv[1:])
raise SystemExit({status})
"""


@pytest.mark.usefixtures("fresh")
def test_explain_runs_a_program_and_tells_what_was_compiled(run, tmp_path):
    file = tmp_path / "train.py"
    file.write_text(PROGRAM.format(status=3))
    result = run("explain", str(file), "--lr", "1")
    assert result.exit_code == 3, result.output
    assert "argument ['--lr', '1']" in result.output
    assert "Captured 1 graph" in result.output
    assert "Generated 1 kernel" in result.output
    assert sys.argv[0] != str(file)


@pytest.mark.usefixtures("fresh")
def test_explain_of_a_program_that_fails_tells_what_came_before(run, tmp_path):
    file = tmp_path / "train.py"
    file.write_text(PROGRAM.format(status="1 / 0"))
    result = run("explain", str(file))
    assert result.exit_code == 1, result.output
    assert "Captured 1 graph" in result.output
    shown = result.stderr
    assert shown.startswith("Traceback")
    assert shown.endswith("ZeroDivisionError: division by zero\n")
    assert str(file) in shown and "typer" not in shown


def test_explain_of_a_program_without_weft_says_so(run, tmp_path):
    file = tmp_path / "plain.py"
    file.write_text("x = 1")
    assert "without compiling anything" in run("explain", str(file)).output
    assert run("explain", str(tmp_path / "absent.py")).exit_code == 2


@pytest.mark.usefixtures("fresh")
def test_demo_of_the_transformer_is_right():
    out = io.StringIO()
    good = demo.run(Console(file=out, width=200), ["transformer"], quick=True)
    text = out.getvalue()
    assert good, text
    for part in ("Captured 1 graph", "Kernels", "Time", "speed-up", "error"):
        assert part in text


def test_demo_of_an_unknown_model_lists_the_models():
    out = io.StringIO()
    assert not demo.run(Console(file=out, width=200), ["bart"], quick=True)
    assert "transformer, bert-base, resnet-50" in out.getvalue()


@pytest.mark.usefixtures("fresh")
def test_reports_of_failures_are_listed_printed_and_cleared(run, tmp_path):
    def broken(gm, inputs):
        raise ValueError("a kernel went wrong")

    with config.patch(report_dir=str(tmp_path), strict=False):
        assert "nothing has failed" in run("report").output
        for during in ("capture", "lowering"):
            try:
                broken(None, None)
            except ValueError as error:
                with pytest.warns(FallbackWarning):
                    failures.handle(error, during=during, what="forward")
        (tmp_path / "thesis.txt").write_text("do not lose")
        listed = run("report").output
        assert "ValueError during capture of forward" in listed
        assert "ValueError during lowering of forward" in listed
        last = run("report", "last")
        assert last.exit_code == 0
        assert "a kernel went wrong" in last.output
        assert run("report", failures.reports()[0].stem).exit_code == 0
        assert run("report", "nonsense").exit_code == 1
        assert "removed 2 reports" in run("report", "--clear").output
        assert (tmp_path / "thesis.txt").exists()


def test_bench_runs_the_repositorys_benchmarks(run, monkeypatch):
    seen = []

    def fake_run(command, cwd, check):
        seen.append((command, cwd))
        return subprocess.CompletedProcess(command, 7)

    monkeypatch.setattr(subprocess, "run", fake_run)
    assert run("bench", "add-one", "--rounds", "2").exit_code == 7
    ((command, folder),) = seen
    assert command[1:] == ["-m", "benchmarks", "add-one", "--rounds", "2"]
    assert (folder / "benchmarks" / "__main__.py").exists()


def test_bench_without_the_repository_says_so(run, monkeypatch, tmp_path):
    monkeypatch.setattr(cli, "__file__", str(tmp_path / "a" / "b" / "c" / "cli.py"))
    result = run("bench")
    assert result.exit_code == 2


def test_bench_measures(tmp_path):
    """One small case, for real."""
    done = subprocess.run(
        [sys.executable, "-m", "weft.cli", "bench", "add-one", "--compilers", "eager,weft",
         "--rounds", "2", "--budget", "0.2", "--no-warm", "--out", str(tmp_path)],
        capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "add-one" in done.stdout
    assert any(tmp_path.iterdir())


def test_doctor_whose_compiler_refuses_everything_said_that_all_works(monkeypatch):
    monkeypatch.setenv("WEFT_CPP_COMPILER", "/bin/false")
    finding = doctor.CHECKS["CPU target"]()
    assert finding.state == "broken"
    assert "the forward fails: CompilationFailed" in finding.detail
    assert "weft.cli.trial cpu" in finding.do


@pytest.mark.parametrize(("script", "expected"), [
    ("exit 1", "ends with status 1"),
    ('[ "$1" = --version ] && echo "g++ 13" || { echo "no cc1plus" >&2; exit 1; }', "no cc1plus"),
    ("exit 0", "writes no program"),
    (None, "Exec format error"),
])
def test_doctor_ended_at_compilers_that_are_broken(monkeypatch, tmp_path, script, expected):
    compiler = tmp_path / "c++"
    compiler.write_text("no program" if script is None else f"#!/bin/sh\n{script}\n")
    compiler.chmod(0o700)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setattr(doctor, "CHECKS", {
        name: doctor.CHECKS[name] for name in ("C++ compiler", "OpenMP")})
    out = io.StringIO()
    assert not doctor.examine(Console(file=out, width=400))
    assert f"{compiler} does not work: {expected}" in out.getvalue()


def test_doctor_tries_the_compiler_that_is_named(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler -O1")
    assert doctor.CHECKS["C++ compiler"]().detail.startswith("no-such-compiler -O1: no such")
    monkeypatch.setenv("CXX", "g++ -O1")  # found by the name's first word, as when it compiles
    assert "g++ -O1: g++" in doctor.CHECKS["C++ compiler"]().detail


def test_a_check_of_doctor_that_fails_is_a_finding(monkeypatch):
    checks = {"odd": lambda: 1 // 0, "Python": doctor.CHECKS["Python"]}
    monkeypatch.setattr(doctor, "CHECKS", checks)
    out = io.StringIO()
    assert not doctor.examine(Console(file=out, width=200))
    assert "the check fails: ZeroDivisionError" in out.getvalue() and "Python" in out.getvalue()


def test_doctor_survives_a_trial_that_crashes(monkeypatch, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import os; os.kill(os.getpid(), 11)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    finding = doctor.CHECKS["CPU target"]()
    assert finding.state == "broken" and "crashed (Segmentation fault)" in finding.detail


MEASURED = """
import torch, weft
layer = weft.compile(torch.nn.Linear(4, 4))

@weft.compile(fullgraph=True)
def double(x):
    return x * 2

never_called = weft.compile(lambda x: x)
layer(torch.ones(2, 4))
with torch.no_grad():
    double(torch.ones(8)), double(torch.ones(9))
"""


@pytest.mark.usefixtures("fresh")
def test_bench_measures_what_a_program_compiled(run, tmp_path):
    import weft

    compile = weft.compile
    file = tmp_path / "train.py"
    file.write_text(MEASURED)
    result = run("bench", str(file), "--rounds", "2")
    assert result.exit_code == 0, result.output
    assert "Linear: forward and backward" in result.output
    assert "double: calls" in result.output
    assert result.output.count("speed-up") == 2
    assert weft.compile is compile
    file.write_text("x = 1")
    assert "nothing to measure" in run("bench", str(file)).output.replace("\n", " ")


def test_version_names_weft_pytorch_and_python(run):
    from weft.version import __version__

    result = run("--version")
    assert result.exit_code == 0
    assert result.output.startswith(f"weft {__version__} (PyTorch ")


def test_the_last_report_without_reports(run, tmp_path):
    with config.patch(report_dir=str(tmp_path)):
        result = run("report", "last")
    assert result.exit_code == 1
    assert "nothing has failed" in result.output.replace("\n", " ")
