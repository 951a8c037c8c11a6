"""The torch-free tests on each other supported Python, with the extension built for it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FACTS = "import sys, sysconfig as c; print('%d.%d' % sys.version_info[:2]); " \
        "print(c.get_path('include')); print(c.get_config_var('EXT_SUFFIX'))"


def interpreter(version: str) -> tuple[str, str, str] | None:
    """(program, include folder, extension suffix) of a Python of that version that has headers."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    found = [shutil.which(f"python{version}"), *sorted(pyenv.glob(f"{version}.*/bin/python"))]
    for program in filter(None, found):
        facts = subprocess.run([program, "-c", FACTS], capture_output=True, text=True, check=False)
        lines = facts.stdout.split("\n")
        if lines[0] == version and Path(lines[1], "Python.h").exists():
            return str(program), lines[1], lines[2]
    return None


def sources() -> list[str]:
    """The C files of weft._frame, as setup.py lists them."""
    text = (ROOT / "setup.py").read_text()
    body = text.split('"weft._frame"')[1].split("extension(")[0]
    return [str(ROOT / name) for name in re.findall(r'"(csrc/[\w/]+\.c)"', body)]


def build(library: Path, include: str, *flags: str) -> None:
    command = ["gcc", "-std=c11", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror",
               "-fvisibility=hidden", f"-I{include}", f"-I{ROOT / 'csrc'}", *flags, *sources(),
               "-ldl", "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def run(program: str, library: Path, *arguments: str, **environment: str) -> None:
    variables = {**os.environ, "WEFT_FRAME_LIBRARY": str(library), "PYTHONPATH": str(ROOT)}
    command = [program, "-m", "tests.frame.plain", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False,
                          env=variables | environment, cwd=library.parent)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_on(version: str, tmp_path: Path) -> None:
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        pytest.skip("this is the Python that runs the other tests")
    found = interpreter(version)
    if found is None:
        pytest.skip(f"no Python {version} with headers here")
    program, include, suffix = found
    library = tmp_path / f"_frame{suffix}"
    build(library, include, "-O1")
    run(program, library)


def sanitizers() -> str | None:
    """The libraries to preload for -fsanitize=address,undefined."""
    paths = []
    for name in ("libasan.so", "libubsan.so"):
        found = subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True,
                               check=False).stdout.strip()
        if not Path(found).is_absolute():
            return None
        paths.append(found)
    return " ".join(paths)


@pytest.mark.slow
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_memory_errors(version: str, tmp_path: Path) -> None:
    """No read or write outside of an object or after its end, as the address sanitizer sees it."""
    found, preload = interpreter(version), sanitizers()
    if found is None or preload is None:
        pytest.skip(f"no Python {version} with headers, or no sanitizers")
    program, include, suffix = found
    library = tmp_path / f"_frame{suffix}"
    build(library, include, "-O0", "-g", "-fsanitize=address,undefined", "-fno-sanitize=alignment")
    run(program, library, "--calls=500", PYTHONMALLOC="malloc", LD_PRELOAD=preload,
        ASAN_OPTIONS="detect_leaks=0")
