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
    return [str(ROOT / name) for name in re.findall(r'"(csrc/\w+\.c)"', body)]


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
    build = ["gcc", "-std=c11", "-O2", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror",
             "-fvisibility=hidden", f"-I{include}", *sources(), "-ldl", "-o", str(library)]
    done = subprocess.run(build, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    environment = {**os.environ, "WEFT_FRAME_LIBRARY": str(library), "PYTHONPATH": str(ROOT)}
    done = subprocess.run([program, "-m", "tests.frame.plain"], capture_output=True, text=True,
                          check=False, env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
