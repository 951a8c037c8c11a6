"""Process replay: changes of passes, guards and kernels are seen, other names are not, and the
texts depend on nothing but the sources."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.replay.comparison import DIFFERENT, MISSING, RENAMED, SAME, compare, differ_in_names

ROOT = Path(__file__).parents[2]

# -- comparison -----------------------------------------------------------------------------------

GRAPH = """
# x: float32[4]
def forward(self, x):
    total = torch.ops.aten.add.Tensor(x, 1)  # float32[4]
    kept = weft_aot_hold_expected(total)
    return (kept, total)
"""
KERNEL = """
static void body(Arguments& a) {
  const float* const b0 = (const float*)a.buffers[0];
  const auto v0 = load<8>(b0 + (10*i0), n);
  store(b1 + (i0), add(v0, v0), n);
}
"""
CALLS = """
def call(args):
    in0, = args
    buf0 = empty2()  # (4, 4) float32
    buf1 = mm4(in0, buf0)
    return [buf1]
"""
NAMES_ALONE = [
    (GRAPH, "total", "sum_1"), (GRAPH, "weft_aot_hold_expected", "weft_aot_check"),
    (GRAPH, "forward", "run"), (GRAPH, "x", "y"), (KERNEL, "v0", "loaded"), (KERNEL, "b0", "p0"),
    (CALLS, "buf0", "buf7"), (CALLS, "empty2", "empty1"),
]


def _replaced(text: str, name: str, other: str) -> str:
    return re.sub(rf"\b{re.escape(name)}\b", other, text)


@pytest.mark.parametrize(("text", "name", "other"), NAMES_ALONE)
def test_other_names_do_not_count(text, name, other):
    assert differ_in_names(text, _replaced(text, name, other))


@pytest.mark.parametrize(("text", "name", "other"), [
    (GRAPH, "add", "sub"), (GRAPH, "Tensor", "Scalar"), (GRAPH, "1", "2"), (GRAPH, "float32",
    "float64"), (GRAPH, "kept, total", "total, kept"), (GRAPH, "total)\n", "x)\n"),
    (KERNEL, "load", "loads"), (KERNEL, "10", "20"), (KERNEL, "v0, v0", "v0, n"),
    (KERNEL, "float", "double"), (CALLS, "mm4", "bmm4"),
    (CALLS, "mm4", "mm5"), (CALLS, "in0, buf0", "buf0, in0"),
    (CALLS, "    return", "  return"),
])
def test_what_is_computed_counts(text, name, other):
    assert name in text
    assert not differ_in_names(text, text.replace(name, other))


def test_a_comparison_counts_texts_and_shows_what_differs(tmp_path):
    before, after = tmp_path / "before", tmp_path / "after"
    for folder, texts in ((before, (GRAPH, KERNEL, CALLS, "old")), (after, (
            GRAPH, _replaced(KERNEL, "v0", "v9"), CALLS.replace("(4, 4)", "(4, 5)"), None))):
        for number, text in enumerate(texts):
            (folder / f"kind/p{number}").mkdir(parents=True)
            if text is not None:
                (folder / f"kind/p{number}" / "aot.txt").write_text(text)
    found = compare(before, after)
    assert [found.verdicts[f"kind/p{n}", "aot"] for n in range(4)] == [
        SAME, RENAMED, DIFFERENT, MISSING]
    assert not found.is_neutral
    text = found.text(lines=40)
    assert "-    buf0 = empty2()  # (4, 4) float32" in text
    assert "4 programs, 2 of them differ" in text
    assert compare(before, before).is_neutral
    assert not compare(tmp_path / "none", tmp_path / "none").is_neutral  # nothing was compared


# -- recording ------------------------------------------------------------------------------------

RECORD = """
import contextlib
import sys
from pathlib import Path
from unittest import mock
from tools.replay.programs import all_programs
from tools.replay.recording import record
from weft.capture.guards.guard_set import GuardSet
from weft.codegen.cpp import target
from weft.aot import standard_passes
from weft.passes import framework

programs = all_programs()
assert len(programs) >= 110 and 20 <= len(all_programs(short=True)) <= 40
chosen = {name: programs[name] for name in sys.argv[3].split(",")}
folder, changes = Path(sys.argv[1]), sys.argv[2].split(",")
add, emit = GuardSet.add, target.emit

def without_types(guards, source, kind, *args):
    if kind != "type_is":
        add(guards, source, kind, *args)

CHANGES = {
    "again": contextlib.nullcontext,
    "guard": lambda: mock.patch.object(GuardSet, "add", without_types),
    "kernel": lambda: mock.patch.object(
        target, "emit", lambda *a: emit(*a).replace("point < end", "point <= end")),
    "pass": lambda: mock.patch.dict(framework._registered, {
        n: p for n, p in framework._registered.items() if n != "merge_equal_nodes"}, clear=True),
}
for change in changes:
    with CHANGES[change]():
        assert record(folder / change, chosen, jobs=int(sys.argv[4])) == []
"""
PROGRAMS = ("operators/softmax_last", "operators-training/cross_entropy_segmentation",
            "language/closures-6", "gradients/accumulate")


def _record(folder: Path, changes: str, seed: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RECORD, str(folder), changes, ",".join(PROGRAMS), seed], cwd=ROOT,
        capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(["src", "."])})
    assert done.returncode == 0, done.stdout + done.stderr


def _differing(before: Path, after: Path) -> set[str]:
    """The names of the texts that differ, but for names."""
    return {text for (_, text), verdict in compare(before, after).verdicts.items()
            if verdict not in (SAME, RENAMED)}


def test_changes_are_seen_and_nothing_else(tmp_path):
    """The same sources in another process, with other hashes, two programs at a time or one: the
    same texts. Where a pass is left out, guards are dropped, kernels are spelled differently: the
    texts of that stage and those behind it differ."""
    _record(tmp_path / "1", "again,pass,guard,kernel", "1")
    _record(tmp_path / "2", "again", "2")
    base = tmp_path / "1" / "again"
    again = compare(base, tmp_path / "2" / "again")
    assert {*again.verdicts.values()} == {SAME}, again.text(lines=40)
    assert {program for program, _ in again.verdicts} == {*PROGRAMS}
    assert {"graphs", "guards", "aot", "schedule", "kernels", "cpp", "calls", "triton"} <= {
        text for _, text in again.verdicts}
    assert "aot" in (seen := _differing(base, tmp_path / "1" / "pass")) and "graphs" not in seen
    assert _differing(base, tmp_path / "1" / "guard") == {"guards"}
    assert _differing(base, tmp_path / "1" / "kernel") == {"cpp"}


# -- continuous integration -----------------------------------------------------------------------

MAKE = """#!/bin/sh
echo "$@" >> "$(dirname "$0")/calls"
"""


@pytest.mark.parametrize(("message", "parents", "replays"), [
    ("Move a file", 1, False),
    ("Move a file\n\nIt lay in the wrong folder.\n\nNeutral: yes", 1, True),
    ("Move a file\n\nneutral: Yes\nReviewed-by: me", 1, True),
    ("Say what Neutral: yes means\n\nA trailer, Neutral: yes, is read by CI.", 1, False),
    ("Move a file\n\nNeutral: no", 1, False),
    ("Begin\n\nNeutral: yes", 0, False),
])
def test_commits_marked_neutral_are_replayed_by_continuous_integration(
        message, parents, replays, tmp_path):
    repository, programs = tmp_path / "repository", tmp_path / "bin"
    (repository / ".ci").mkdir(parents=True)
    programs.mkdir()
    shutil.copy(ROOT / ".ci" / "run", repository / ".ci")
    (programs / "make").write_text(MAKE)
    (programs / "make").chmod(0o755)
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(tmp_path)}

    def run(*command: str) -> None:
        subprocess.run(command, cwd=repository, check=True, env=environment, capture_output=True)

    run("git", "init", "-q")
    for text in ["Before"] * parents + [message]:
        run("git", "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty",
            "-m", text)
    run("bash", ".ci/run")
    calls = (programs / "calls").read_text().splitlines()
    assert ("replay AGAINST=HEAD~1 REPLAY=--short" in calls) == replays
    assert "lint" in calls and "test" in calls
