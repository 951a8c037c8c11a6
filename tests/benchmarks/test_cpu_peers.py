"""benchmarks.cpu_peers: who competes, and what the table says of those who do not."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmarks.cpu_peers import ROOT, Contender, Row, table
from benchmarks.image_networks import mobilenet_v2
from benchmarks.peer_models import build

PROGRAM = """
import json, sys
print(json.dumps({about}), flush=True)
for line in sys.stdin:
    print(json.dumps([{seconds}] * int(line)), flush=True)
"""


def _contender(about: dict[str, object], seconds: float = 0.05) -> Contender:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(about=about, seconds=seconds)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with process:
        contender = Contender("one", process)
        contender.begin()
        contender.times += contender.measure() if contender.failure is None else []
        process.kill()
    return contender


def test_blocks_are_as_long_as_calls_are_short() -> None:
    contender = _contender({"first": 1.0, "error": 1e-6}, seconds=0.05)
    assert contender.calls == 3
    assert contender.milliseconds == pytest.approx(50)


def test_a_runtime_with_another_result_does_not_compete() -> None:
    assert "another result" in str(_contender({"first": 1.0, "error": 0.5}).failure)
    assert "another result" in str(_contender({"first": 1.0, "error": 1e9}).failure)


def test_a_runtime_that_ends_does_not_compete() -> None:
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"], text=True,
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        contender = Contender("one", process)
        contender.begin()
    assert contender.failure == "ended with 3"


def test_the_best_of_the_others_is_the_measure() -> None:
    rows = [Row("a, 1", {"eager": 4.0, "onnx": 2.0, "weft": 1.0}, {"weft": 0.5}, {}),
            Row("b, 1", {"eager": 4.0, "weft": 4.0}, {"weft": 0.5}, {"onnx": "not installed"})]
    text = table(rows, ["eager", "onnx", "weft"])
    assert "| a, 1 | 4.00 | 2.00 | 1.00 | onnx | 0.50 |" in text
    assert "| b, 1 | 4.00 | - | 4.00 | eager | 1.00 |" in text
    assert "geometric mean 0.71 of 2, largest 1.00" in text
    assert "b, 1: onnx: not installed" in text


def test_a_worker_measures_what_it_is_told() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.peer_worker", "recommender", "1", "eager", "1", "cpu"],
        cwd=ROOT, input="2\n", capture_output=True, text=True, check=True)
    about, times = map(json.loads, done.stdout.splitlines())
    assert about["error"] == 0
    assert len(times) == 2


def test_statistics_are_not_those_of_new_batch_norms() -> None:
    model, _ = build("mlp-norms", 1)
    assert float(model[4].running_var.std()) > 0.1
    assert sum(p.numel() for p in mobilenet_v2().parameters()) == 3_504_872  # as torchvision's
