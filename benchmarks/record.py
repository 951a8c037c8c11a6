"""Keeps what a benchmark printed, with the commit and machine that it ran on.

    python -m benchmarks.record gpu-inference -- speed_sweep --device cuda --jobs 14

runs `python -m benchmarks.speed_sweep --device cuda --jobs 14`, shows its output, and writes
`docs/results/gpu-inference.json`, from which `python -m benchmarks.figures` makes the page and the
pictures. A machine without git names the commit in WEFT_COMMIT.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

FOLDER = Path(__file__).parent.parent / "docs" / "results"


@dataclass(frozen=True)
class Recording:
    """The output of one run of one command."""

    command: str
    commit: str
    date: str
    machine: str
    output: str

    @staticmethod
    def load(file: Path) -> Recording:
        """What `save` has written."""
        return Recording(**json.loads(file.read_text()))

    def save(self, file: Path) -> None:
        """Write it as JSON."""
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n")


def commit() -> str:
    """The commit of the sources, marked if they have changes that are not in it."""
    if "WEFT_COMMIT" in os.environ:
        return os.environ["WEFT_COMMIT"]
    git = ["git", "-C", str(Path(__file__).parent)]
    name = subprocess.check_output([*git, "rev-parse", "--short", "HEAD"], text=True).strip()
    changes = subprocess.check_output([*git, "status", "--porcelain", "--untracked-files=no"])
    return f"{name} with changes" if changes else name


def machine(*, gpu: bool) -> str:
    """Processor, cores, GPU and versions in one line."""
    cores = len(os.sched_getaffinity(0))
    parts = [f"{cores} cores ({torch.backends.cpu.get_cpu_capability()})",
             f"PyTorch {torch.__version__}", f"Python {platform.python_version()}"]
    return ", ".join([torch.cuda.get_device_name(), *parts] if gpu else parts)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="of the file")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    mark = arguments.index("--") if "--" in arguments else len(arguments)
    options, words = parser.parse_args(arguments[:mark]), arguments[mark + 1:]
    if not words:
        parser.error("name a module of this folder, and its arguments, after --")
    command = ["-m", f"benchmarks.{words[0]}", *words[1:]]
    done = subprocess.run(
        [sys.executable, *command], stdout=subprocess.PIPE, text=True, check=False)
    print(done.stdout)
    if done.returncode != 0:
        return done.returncode
    Recording(
        command=f"python {' '.join(command)}", commit=commit(),
        date=datetime.date.today().isoformat(),
        machine=machine(gpu="cuda" in words), output=done.stdout.strip(),
    ).save(options.folder / f"{options.name}.json")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
