"""Runs cases: for each, workers with caches of their own; a failing worker is a result too."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Plan:
    """What to run: `compilers` in order, without "eager" added."""

    device: str = "cpu"
    compilers: tuple[str, ...] = ("eager", "torch", "weft")
    mode: str | None = None
    rounds: int = 20
    budget: float = 15.0
    threads: int = 0
    timeout: float = 900.0
    warm: bool = True
    clock: str = "wall"
    first: bool = True


@dataclass
class Result:
    """One case: first calls by compiler ("cold", "warm"), steady state, and what failed."""

    name: str
    kind: str
    first: dict[str, dict[str, Any]] = field(default_factory=dict)
    warm: dict[str, dict[str, Any]] = field(default_factory=dict)
    steady: dict[str, Any] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


@contextmanager
def fresh_caches() -> Iterator[dict[str, str]]:
    """An environment whose compilers have empty caches on disk."""
    folder = tempfile.mkdtemp(prefix="weft-bench-")
    environ = {
        **os.environ,
        "WEFT_CACHE_DIR": f"{folder}/weft",
        "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
        "TRITON_CACHE_DIR": f"{folder}/triton",
        "TMPDIR": folder,
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
    }
    try:
        yield environ
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class WorkerFailed(RuntimeError):
    """A worker ended without a result; the message is the end of what it said."""


def run_worker(arguments: list[str], environ: dict[str, str], timeout: float) -> dict[str, Any]:
    """The JSON that a worker printed."""
    command = [sys.executable, "-m", "benchmarks.worker", *arguments]
    try:
        done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True,
                              timeout=timeout, check=False)
    except subprocess.TimeoutExpired as error:
        raise WorkerFailed(f"no result within {timeout:.0f} s") from error
    if done.returncode:
        raise WorkerFailed("\n".join(done.stderr.strip().splitlines()[-4:]))
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def run_case(name: str, kind: str, plan: Plan, tell: Callable[[str], None]) -> Result:
    """Cold and warm first calls of each compiler, then the steady state of all that worked."""
    result = Result(name, kind)
    common = [plan.device, "--threads", str(plan.threads),
              *(["--mode", plan.mode] if plan.mode else [])]
    with fresh_caches() as environ:
        for compiler in plan.compilers if plan.first else ():
            tell(f"{name}: first call, {compiler}")
            try:
                arguments = ["first", name, compiler, *common]
                result.first[compiler] = run_worker(arguments, environ, plan.timeout)
                if plan.warm and compiler != "eager":
                    result.warm[compiler] = run_worker(arguments, environ, plan.timeout)
            except WorkerFailed as error:
                result.failures[compiler] = str(error)
        worked = [c for c in plan.compilers if c not in result.failures]
        tell(f"{name}: steady state")
        try:
            result.steady = run_worker(
                ["steady", name, ",".join(worked), *common, "--rounds", str(plan.rounds),
                 "--budget", str(plan.budget), "--clock", plan.clock], environ, plan.timeout)
        except WorkerFailed as error:
            result.failures["steady"] = str(error)
    return result
