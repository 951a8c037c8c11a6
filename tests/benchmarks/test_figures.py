"""Recorded runs, and what is made of them."""

import pytest

from benchmarks import figures, record
from benchmarks.record import Recording

SWEEP = """\
| case | eager ms | torch ms | weft ms | weft / eager | weft / torch | first torch s \
| first weft s |
|---|---|---|---|---|---|---|---|
| hf:bert | 4.0 | 2.0 | 1.0 | 0.25 | 0.5 | 10.0 | 1.0 |
| hf:t5 | 4.0 |  | 1.0 | 0.25 |  |  | 2.0 |

weft / eager: geometric mean 0.25 of 2, largest 0.25
hf:none: ValueError: no such model"""


def run(output: str) -> Recording:
    return Recording("python -m benchmarks.x", "abc1234", "2026-11-27", "2 cores", output)


def test_a_run_is_kept_with_its_command(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("WEFT_COMMIT", "abc1234")
    assert record.main(["costs", "--folder", str(tmp_path), "--", "growth", "--help"]) == 0
    kept = Recording.load(tmp_path / "costs.json")
    assert kept.command == "python -m benchmarks.growth --help" and kept.commit == "abc1234"
    assert kept.output == capsys.readouterr().out.strip() and "usage" in kept.output


def test_a_failed_run_is_not_kept(tmp_path):
    assert record.main(["x", "--folder", str(tmp_path), "--", "growth", "--no-such-option"]) != 0
    assert not list(tmp_path.iterdir())


def test_rows_summary_and_page():
    runs = {"gpu-inference": run(SWEEP), "call-cost": run("x + 1   2.45")}
    assert [row["case"] for row in figures.rows_of(SWEEP)] == ["hf:bert", "hf:t5"]
    assert "| GPU, inference | 2 | 0.25 | 0.50 | 0.10 |" in figures.summary(runs)
    text = figures.page(runs)
    assert text.index("Inference on a GPU") < text.index("What a call costs")
    assert "```\nx + 1   2.45\n```" in text and "Training" not in text


def test_the_summary_replaces_what_is_between_the_marks():
    readme = f"a\n{figures.START}\nold\n{figures.END}\nb"
    assert figures.with_summary(readme, "new") == f"a\n{figures.START}\nnew\n{figures.END}\nb"


def test_pictures_are_drawn(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(figures, "PICTURES", tmp_path)
    files = figures.draw({"gpu-inference": run(SWEEP)})
    assert [file.name for file in files] == ["first-call.svg", "steady-state.svg"]
    assert all("bert" in file.read_text() and "t5" not in file.read_text() for file in files)


def test_the_page_is_made_from_the_recorded_runs():
    runs = figures.recordings()
    if runs:
        assert figures.PAGE.read_text() == figures.page(runs)
