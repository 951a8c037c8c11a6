"""`python -m tools.replay record | compare | against`: see the package's docstring."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tools.replay.comparison import compare

ROOT: Final = Path(__file__).parents[2]
EXTENSIONS: Final = ("csrc", "setup.py")
"""What C extensions are made of."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.replay", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    record = commands.add_parser("record", help="write the texts of all programs to a folder")
    record.add_argument("folder", type=Path)
    against = commands.add_parser("against", help="compare a commit with the working tree")
    against.add_argument("commit")
    for command in (record, against):
        command.add_argument("--short", action="store_true", help="every fifth program")
        command.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
        command.add_argument("--only", default="", help="programs whose names contain this")
    comparing = commands.add_parser("compare", help="show what differs between two recordings")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    for command in (comparing, against):
        command.add_argument("--lines", type=int, default=40, help="lines of each diff")
    options = parser.parse_args()
    if options.command == "record":
        return _record(options)
    if options.command == "compare":
        return _compare(options.before, options.after, options.lines)
    return _against(options)


def _record(options: argparse.Namespace) -> int:
    from tools.replay.programs import all_programs  # importing torch takes a while
    from tools.replay.recording import record

    began = time.monotonic()
    programs = {name: program for name, program in all_programs(short=options.short).items()
                if options.only in name}
    failed = record(options.folder, programs, options.jobs)
    print(f"{len(programs)} programs recorded in {options.folder}, {len(failed)} failed "
          f"({time.monotonic() - began:.0f} s)", *failed, sep="\n  ")
    return bool(failed)


def _compare(before: Path, after: Path, lines: int) -> int:
    comparison = compare(before, after)
    print(comparison.text(lines))
    return not comparison.is_neutral


def _against(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="weft-replay-") as folder:
        before, after, tree = Path(folder, "before"), Path(folder, "after"), Path(folder, "tree")
        _check_out(options.commit, tree)
        for place, target in ((tree, before), (ROOT, after)):
            if _record_in(place, target, options):
                return 1
        return _compare(before, after, options.lines)


def _check_out(commit: str, tree: Path) -> None:
    """The files of a commit, with C extensions: ours, if they are made of the same."""
    tree.mkdir()
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True)
    subprocess.run(["tar", "-x", "-C", str(tree)], input=archive.stdout, check=True)
    changes = ["git", "diff", "--quiet", commit, "--", *EXTENSIONS]
    if subprocess.run(changes, cwd=ROOT, check=False).returncode:
        subprocess.run([sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"], cwd=tree,
                       check=True, env={**os.environ, "PYTHONPATH": "src"})
        return
    for extension in (ROOT / "src" / "weft").glob("*.so"):
        shutil.copy(extension, tree / "src" / "weft")


def _record_in(tree: Path, folder: Path, options: argparse.Namespace) -> int:
    """Record with the sources of a tree; with our programs, if it has none yet."""
    place = tree if (tree / "tools" / "replay").is_dir() else ROOT
    command = [sys.executable, "-m", "tools.replay", "record", str(folder), "--jobs",
               str(options.jobs), "--only", options.only, *(["--short"] * options.short)]
    return subprocess.run(command, cwd=place, check=False, env={
        **os.environ, "PYTHONPATH": os.pathsep.join([str(tree / "src"), str(place)])}).returncode


if __name__ == "__main__":
    sys.exit(main())
