"""``weft doctor``: tries what weft needs, one check at a time.

Place in the pipeline: command line. A check is a function that returns a `Finding`; `CHECKS` lists
them in the order shown.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from typing import Final, final

import torch
from rich.console import Console
from rich.text import Text

from weft import folders
from weft.config import config
from weft.runtime.cpp_build import find_compiler, named_compiler
from weft.torch_version import IS_TESTED, TESTED
from weft.version import __version__


@final
@dataclass(frozen=True, slots=True)
class Finding:
    """What a check found: `state` is "ok", "missing" (optional) or "broken" (needed)."""

    state: str
    detail: str
    do: str = ""


_MARKS: Final = {"ok": ("ok", "green"), "missing": ("--", "yellow"), "broken": ("!!", "red")}

_PATIENCE: Final = 300
"""Seconds that a trial may take, its compilers included."""

_COMPILER_PATIENCE: Final = 60
"""Seconds that a compiler may take for a few lines."""

_OPENMP_PROGRAM: Final = """
#include <omp.h>
#include <cstdio>
int main() { int n = 0;
#pragma omp parallel reduction(+:n)
n += 1;
std::printf("%d", n); return 0; }
"""


def _python() -> Finding:
    version = sys.version.split()[0]
    if (3, 11) <= sys.version_info[:2] <= (3, 13) and sys.implementation.name == "cpython":
        return Finding("ok", f"CPython {version}, {platform.machine()}")
    return Finding("broken", f"{sys.implementation.name} {version}",
                   "use CPython 3.11, 3.12 or 3.13")


def _torch() -> Finding:
    detail = (f"torch {torch.__version__}, {torch.get_num_threads()} threads, "
              f"{torch.backends.cpu.get_cpu_capability()}")
    if IS_TESTED:
        return Finding("ok", detail)
    return Finding("missing", f"{detail}; newer than the tested versions, {TESTED}",
                   "if a trial below fails, use a tested version, or a newer weft")


def _extension() -> Finding:
    try:
        importlib.import_module("weft._frame")
    except ImportError as error:
        return Finding("broken", f"the frame hook does not load: {error}",
                       "in the repository: `make build`; else reinstall weft with a C compiler")
    return Finding("ok", f"weft {__version__}, frame hook loads")


def compiler_command() -> list[str] | None:
    """The C++ compiler that weft would use, with the arguments that its name brings along."""
    name = find_compiler(named_compiler())
    if name is None:
        return None
    program, *arguments = shlex.split(name)
    return [which(program) or program, *arguments]


def _ask(command: list[str]) -> tuple[bool, str]:
    """Whether a program ends well, and what it says or what is wrong with it."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace",
                              stdin=subprocess.DEVNULL, check=False, timeout=_COMPILER_PATIENCE)
    except subprocess.TimeoutExpired:
        return False, f"does not end within {_COMPILER_PATIENCE} s"
    except OSError as error:
        return False, error.strerror or str(error)
    if done.returncode == 0:
        return True, done.stdout.strip()
    return False, done.stderr.strip() or f"ends with status {done.returncode}"


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def _built_and_run(command: list[str], program: str, *flags: str) -> tuple[bool, str]:
    """Whether a C++ program can be compiled and run, and its output or what is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        source, binary = Path(folder, "try.cpp"), Path(folder, "try")
        source.write_text(program)
        built, said = _ask([*command, *flags, str(source), "-o", str(binary)])
        if not built:
            return False, said
        if not binary.is_file():
            return False, "writes no program"
        return _ask([str(binary)])


def _compiler() -> Finding:
    command = compiler_command()
    if command is None and (named := named_compiler()):
        return Finding("broken", f"{named}: no such program; CPU code runs eagerly",
                       "correct WEFT_CPP_COMPILER or CXX, or unset it")
    if command is None:
        return Finding("broken", "no C++ compiler: CPU code runs eagerly",
                       "apt-get install g++ (or name one with WEFT_CPP_COMPILER)")
    _, version = _ask([*command, "--version"])
    works, said = _built_and_run(command, "int main() { return 0; }")
    if not works:
        return Finding("broken", f"{shlex.join(command)} does not work: {_first_line(said)}",
                       "apt-get install g++, or name a compiler that works: WEFT_CPP_COMPILER")
    return Finding("ok", f"{shlex.join(command)}: {_first_line(version)}")


def _openmp() -> Finding:
    command = compiler_command()
    if command is None:
        return Finding("missing", "not tried without a C++ compiler")
    works, said = _built_and_run(command, _OPENMP_PROGRAM, "-fopenmp")
    if not works:
        return Finding("missing", f"OpenMP does not work: {_first_line(said)}",
                       "apt-get install libgomp1 (g++) or libomp-dev (clang)")
    return Finding("ok", f"OpenMP, {said} threads")


def _cuda() -> Finding:
    if torch.cuda.is_available():
        names = ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
        return Finding("ok", f"CUDA {torch.version.cuda}: {names}")
    if torch.version.cuda is None:
        return Finding("missing", "this torch is built without CUDA: CPU only",
                       "for a GPU install a CUDA build of torch")
    return Finding("missing", "no CUDA device is visible", "check nvidia-smi and the driver")


def _triton() -> Finding:
    if importlib.util.find_spec("triton") is None:
        return Finding("missing", "Triton is not installed: no GPU kernels",
                       "pip install triton (only needed with a GPU)")
    return Finding("ok", f"Triton {importlib.import_module('triton').__version__}")


def _cache() -> Finding:
    try:
        path = folders.private_folder(config.cache_path())
        with tempfile.NamedTemporaryFile(dir=path):
            pass
    except (OSError, ValueError) as error:
        return Finding("broken", f"the disk cache cannot be written: {error}",
                       "name a directory that only you can write with WEFT_CACHE_DIR")
    return Finding("ok", f"disk cache {path}")


def _trial(device: str) -> Finding:
    """Whether a function compiled for the device runs forward and backward (`trial.py`)."""
    paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "weft.cli.trial", device], capture_output=True, text=True,
            check=False, timeout=_PATIENCE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)})
    except subprocess.TimeoutExpired:
        return Finding("broken", f"a compiled function did not end within {_PATIENCE} s",
                       "look for a compiler that hangs (top), or another process's lock")
    if done.returncode < 0:
        reason = signal.strsignal(-done.returncode)
        return Finding("broken", f"a compiled function crashed ({reason})",
                       "report it with the output of `weft doctor`; WEFT_DISABLE=1 runs eagerly")
    detail, _, do = (done.stdout.strip() or done.stderr.strip()[-200:]).partition("\n")
    if done.returncode == 0:
        return Finding("ok", detail)
    return Finding("broken", detail, do or f"`python -m weft.cli.trial {device}` shows all of it; "
                   "report it with that; until then WEFT_DISABLE=1 runs eagerly")


def _cpu_trial() -> Finding:
    if compiler_command() is None:
        return Finding("missing", "not tried without a C++ compiler")
    return _trial("cpu")


def _gpu_trial() -> Finding:
    if not torch.cuda.is_available() or importlib.util.find_spec("triton") is None:
        return Finding("missing", "not tried without a GPU and Triton")
    return _trial("cuda")


def _transformers() -> Finding:
    if importlib.util.find_spec("transformers") is None:
        return Finding("missing", "transformers is not installed: `weft demo` shows fewer models",
                       "pip install transformers")
    return Finding("ok", f"transformers {importlib.import_module('transformers').__version__}")


CHECKS: Final[dict[str, Callable[[], Finding]]] = {
    "Python": _python,
    "PyTorch": _torch,
    "weft": _extension,
    "C++ compiler": _compiler,
    "OpenMP": _openmp,
    "CUDA": _cuda,
    "Triton": _triton,
    "cache": _cache,
    "CPU target": _cpu_trial,
    "GPU target": _gpu_trial,
    "transformers": _transformers,
}


def examine(console: Console) -> bool:
    """Print every finding; whether nothing that weft needs is broken."""
    healthy = True
    for name, check in CHECKS.items():
        try:
            finding = check()
        except Exception as error:  # noqa: BLE001  a check that fails is what doctor reports
            finding = Finding("broken", f"the check fails: {type(error).__name__}: {error}",
                              "report it with this output")
        healthy &= finding.state != "broken"
        mark, style = _MARKS[finding.state]
        console.print(Text.assemble((f"{mark} ", style), (f"{name:13} ", "bold"), finding.detail))
        if finding.do:
            console.print(Text(f"                 do: {finding.do}"))
    console.print("everything needed works" if healthy else "something needed is broken: see !!")
    return healthy
