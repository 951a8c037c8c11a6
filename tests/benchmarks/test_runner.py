import json

import pytest
import torch

from benchmarks import report, runner, worker
from benchmarks.__main__ import QUICK, chosen
from benchmarks.cases import Workload, all_cases
from benchmarks.runner import Plan, Result


def test_the_issues_cases_are_there():
    names = set(all_cases())
    assert {"bert", "gpt2", "llama", "t5-encoder", "vit", "resnet50", "convnext", "mlp-norms",
            "pointwise", "norm-gelu", "softmax", "rms-rotary", "cross-entropy", "add-one",
            "add-one-grad", "linear-relu-200"} <= names
    assert set(QUICK) <= names


def test_cases_are_chosen_by_name_or_kind():
    assert [c.name for c in chosen(["softmax"], False)] == ["softmax"]
    assert {c.kind for c in chosen(["overhead"], False)} == {"overhead"}
    with pytest.raises(SystemExit, match="no case named bart"):
        chosen(["bart"], False)


def test_error_is_measured_against_float64():
    work = Workload(lambda x: x * (1 / 3), (torch.linspace(0, 1, 50),))
    calls = {"eager": work.bind(work.fn), "wrong": lambda: work.args[0] * 0.4}
    errors = worker.errors_of(work, calls)
    assert errors["eager"] < 1e-7
    assert errors["wrong"] == pytest.approx(0.2, rel=1e-3)


def test_peak_memory_sees_what_a_call_needs(monkeypatch):
    small = worker.peak_memory(lambda: torch.zeros(1), "cpu")
    large = worker.peak_memory(lambda: torch.ones(2**24).sum(), "cpu")
    if small is None or large is None:
        pytest.skip("this system does not tell peak memory")
    assert large > 2**25
    assert small < large


def test_a_failing_worker_becomes_a_result(monkeypatch):
    def run_worker(arguments, environ, timeout):
        if arguments[2] == "torch":
            raise runner.WorkerFailed("no compiler\nsorry")
        if arguments[0] == "first":
            return {"first_call": 1.5, "peak_memory": 2**20}
        assert arguments[2] == "eager,weft"
        return {"median": {"eager": 2e-3, "weft": 1e-3}, "ratio_to_eager": {"weft": 0.5},
                "error": {"weft": 1e-7}, "min_bytes": 0}

    monkeypatch.setattr(runner, "run_worker", run_worker)
    plan = Plan(warm=False)
    result = runner.run_case("softmax", "micro", plan, lambda text: None)
    assert set(result.failures) == {"torch"}
    text = report.markdown([result], plan, "command", {})
    assert "| softmax | 2 | - | 1 | - | 0.50 | - | - |" in text
    assert "- softmax, torch: sorry" in text


def test_report_is_written_as_markdown_and_json(tmp_path):
    result = Result("bert", "model", first={"torch": {"first_call": 20.0, "peak_memory": None},
                                            "weft": {"first_call": 1.0, "peak_memory": None}})
    text, data = report.write(tmp_path, [result], Plan(), "command", {"copy TB/s": 4.2})
    assert "| bert | 20.00 | 1.00 | 0.05 |" in text.read_text()
    assert "| geometric mean |" in text.read_text()
    assert json.loads(data.read_text())["results"][0]["name"] == "bert"


def test_a_worker_runs_in_a_process_of_its_own():
    with runner.fresh_caches() as environ:
        result = runner.run_worker(["first", "add-one", "weft", "cpu"], environ, 120)
    assert result["first_call"] > 0
    assert result["stats"]["graphs"] == 1
