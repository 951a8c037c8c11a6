import json

from benchmarks import slower_than_eager
from benchmarks.eager_cases import build, names


def row(name, ratio, weft=1000, eager=1000, us=20.0):
    return {"name": name, "ratio": ratio, "us": {"weft": us * ratio, "eager": us},
            "bytes": {"weft": weft, "eager": eager}}


def test_cases_of_all_kinds_sizes_types_and_modes_are_built_from_their_names():
    everything = list(names())
    assert len(everything) == len(set(everything)) > 5000
    for name in ("operator:cat:medium:bfloat16:training", "block:rms_norm:medium:float32:inference",
                 "call:two views:small:float32:training"):
        assert name in everything
        case = build(name)
        results = slower_than_eager.differentiable(case.function(*case.args, **case.kwargs))
        assert bool(case.gradient_inputs()) == name.endswith("training")
        assert name.endswith("inference") or results[0].requires_grad


def test_sizes_of_samples_differ():
    small, large = (build(f"operator:sub:{size}:float32:inference") for size in ("small", "large"))
    assert small.args[0].numel() * 64 < large.args[0].numel()


def test_a_case_that_ends_its_process_is_a_row_and_the_others_are_measured(monkeypatch):
    runs = []

    def process(cases, folder):
        runs.append(list(cases))
        rows = []
        for name in cases:
            rows.append({"name": name, "began": True})
            if name == "crashes":
                return rows, "the process ended with -11"
            rows.append(row(name, 1.0))
        return rows, ""

    monkeypatch.setattr(slower_than_eager, "_in_a_process", process)
    rows = list(slower_than_eager.run_share(["a", "crashes", "b"], ""))
    assert [r["name"] for r in rows] == ["a", "crashes", "b"]
    assert rows[1]["error"] == "the process ended with -11"
    assert runs == [["a", "crashes", "b"], ["b"]]


def test_the_report_counts_and_lists_what_is_slower_or_larger():
    rows = [row("call:fine:small:float32:inference", 0.5),
            row("call:slow:small:float32:training", 1.6),
            row("call:large:small:float32:inference", 1.1, weft=100_000),
            {"name": "call:refused", "refused": True}, {"name": "call:fails", "error": "why"}]
    text = slower_than_eager.report(rows)
    assert "| all | 3 | 0.958 | 2 | 1 | 1 |" in text
    assert "| training, eager < 50 µs | 1 | 1.600 | 1 | 1 | 1 |" in text
    assert "| call:slow:small:float32:training | 1.60 | 32.0 | 20.0 |" in text
    assert "call:large:small:float32:inference: 100.00 of 1000 bytes" in text
    assert "call:fails: why" in text


def test_a_worker_tells_of_each_case_before_and_after_it(capsys, monkeypatch):
    monkeypatch.setattr(slower_than_eager, "measure", lambda name: row(name, 1.0))
    slower_than_eager.worker(["a"])
    printed = [json.loads(line.removeprefix(slower_than_eager.RESULT))
               for line in capsys.readouterr().out.splitlines()]
    assert [r.get("began", False) for r in printed] == [True, False]
