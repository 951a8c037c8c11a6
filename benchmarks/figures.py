"""Makes docs/benchmarks.md and the README's pictures from the runs in docs/results.

    python -m benchmarks.figures           # after benchmarks.record; `make figures`

One section for each question, with the newest run's command, commit and machine. A picture shows
the models of the sweeps beside torch.compile: seconds of the first call, and time of a call as a
share of eager's.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import TYPE_CHECKING

from benchmarks.record import FOLDER, Recording

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DOCS = FOLDER.parent
PAGE = DOCS / "benchmarks.md"
PICTURES = DOCS / "figures"
MOST_BARS = 12
COLOURS = {"torch": "#c0c4cc", "weft": "#2f6fdf"}
LABELS = {"torch": "torch.compile", "weft": "weft"}
INTRODUCTION = """\
# Benchmarks

<!-- made by `python -m benchmarks.figures` from docs/results -->

One section for each question, from one run of one command at one commit. `first` is the first call
of a process with empty caches; milliseconds are medians of interleaved calls; MiB is the peak of a
call above what was there before it. Models have random weights; nothing was tuned for them.
"""


@dataclass(frozen=True)
class Question:
    """A section of the page, and the name of its run."""

    name: str
    title: str


QUESTIONS = (
    Question("gpu-inference", "Inference on a GPU"),
    Question("gpu-training", "Training on a GPU"),
    Question("cpu-inference", "Inference on a CPU"),
    Question("cpu-peers", "Inference on a CPU beside other runtimes"),
    Question("cpu-training", "Training on a CPU"),
    Question("call-cost", "What a call costs beside its kernels"),
    Question("slower-than-eager", "What is slower than eager on a CPU thread"),
    Question("capture-time", "What capture costs"),
    Question("warm-start", "What the second process pays"),
    Question("cpu-sizes", "What sizes that change cost on a CPU"),
    Question("gpu-sizes", "What sizes that change cost on a GPU"),
    Question("two-gpus", "Training on two GPUs"),
)
SWEEPS = {"gpu-inference": "GPU, inference", "gpu-training": "GPU, training",
          "cpu-inference": "CPU, inference"}


def page(recordings: dict[str, Recording]) -> str:
    """The text of docs/benchmarks.md."""
    parts = [INTRODUCTION]
    for question in QUESTIONS:
        run = recordings.get(question.name)
        if run is not None:
            about = f"Commit {run.commit}, {run.date}; {run.machine}."
            parts.append(f"## {question.title}\n\n```\n{run.command}\n```\n\n{about}\n\n"
                         f"{_shown(run.output)}\n")
    return "\n".join(parts)


def _shown(output: str) -> str:
    """Markdown as it is, other tables as they were printed."""
    if any(line.startswith("|") for line in output.splitlines()):
        return output
    return f"```\n{output}\n```"


Row = dict[str, str]


def rows_of(output: str) -> list[Row]:
    """The rows of the Markdown table in a sweep's output, by column."""
    lines = [line for line in output.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:]]


def summary(recordings: dict[str, Recording]) -> str:
    """The README's table: geometric means of the sweeps."""
    lines = ["| | models | a call: of eager | of torch.compile | first call: of torch.compile |",
             "|---|---|---|---|---|"]
    for name, label in SWEEPS.items():
        if name in recordings:
            rows = rows_of(recordings[name].output)
            eager = geometric_mean([float(r["weft / eager"]) for r in rows])
            torch = [float(r["weft / torch"]) for r in rows if r["weft / torch"]]
            first = [float(r["first weft s"]) / float(r["first torch s"]) for r in rows
                     if r["first torch s"]]
            peers = f"{geometric_mean(torch):.2f} | {geometric_mean(first):.2f}" if torch else "| "
            lines.append(f"| {label} | {len(rows)} | {eager:.2f} | {peers} |")
    return "\n".join(lines)


def _bars(axes: Axes, rows: list[Row], columns: dict[str, str], scale: dict[str, float]) -> None:
    """Horizontal bars of both compilers for each model."""
    for place, (compiler, column) in enumerate(columns.items()):
        values = [float(row[column]) / scale.get(row["case"], 1.0) for row in rows]
        heights = [index + 0.38 * place for index in range(len(rows))]
        axes.barh(heights, values, 0.36, color=COLOURS[compiler], label=LABELS[compiler])
    axes.set_yticks([index + 0.19 for index in range(len(rows))],
                    [row["case"].partition(":")[2] for row in rows])
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)


def draw(recordings: dict[str, Recording]) -> list[Path]:
    """Write the pictures: first calls and steady state, a panel for each sweep."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "weft", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot

    sweeps = {SWEEPS[name]: [row for row in rows_of(recordings[name].output)
                             if row["first torch s"]][:MOST_BARS]
              for name in SWEEPS if name in recordings}
    files = []
    for file, title, columns, relative in (
            ("first-call", "seconds of the first call",
             {"torch": "first torch s", "weft": "first weft s"}, False),
            ("steady-state", "time of a call, eager = 1",
             {"torch": "torch ms", "weft": "weft ms"}, True)):
        figure, panels = pyplot.subplots(
            1, len(sweeps), figsize=(4.2 * len(sweeps), 3.6), squeeze=False,
            layout="constrained")
        for axes, (label, rows) in zip(panels[0], sweeps.items(), strict=True):
            eager = {row["case"]: float(row["eager ms"]) for row in rows} if relative else {}
            _bars(axes, rows, columns, eager)
            axes.set_title(label)
            axes.set_xlabel(title)
            if relative:
                axes.axvline(1.0, color="#888", linewidth=0.8)
        figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside upper center",
                      ncols=2, frameon=False)
        files.append(PICTURES / f"{file}.svg")
        PICTURES.mkdir(exist_ok=True)
        figure.savefig(files[-1], metadata={"Date": None})
        pyplot.close(figure)
    return files


def recordings() -> dict[str, Recording]:
    """All runs in docs/results, by name."""
    return {file.stem: Recording.load(file) for file in sorted(FOLDER.glob("*.json"))}


START, END = "<!-- figures -->", "<!-- end of figures -->"


def with_summary(readme: str, table: str) -> str:
    """The README with this table between its marks."""
    before, _, rest = readme.partition(START)
    return f"{before}{START}\n{table}\n{END}{rest.partition(END)[2]}"


def main() -> int:
    runs = recordings()
    PAGE.write_text(page(runs))
    readme = DOCS.parent / "README.md"
    readme.write_text(with_summary(readme.read_text(), summary(runs)))
    print(*[PAGE, readme, *draw(runs)], sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
