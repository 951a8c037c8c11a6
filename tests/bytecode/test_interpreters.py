"""The same tests on each other supported Python of this machine; they need no torch there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_VERSIONS = ("3.11", "3.12", "3.13")


def interpreter(version: str) -> str | None:
    """A Python of that version: on the path, or one of pyenv's."""
    on_path = shutil.which(f"python{version}")
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    candidates = [on_path] if on_path else []
    candidates += [str(p) for p in sorted(pyenv.glob(f"{version}.*/bin/python"))]
    return next((c for c in candidates if _works(c, version)), None)


def _works(python: str, version: str) -> bool:
    show = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", show], capture_output=True, text=True, check=False)
    return done.stdout.strip() == version


@pytest.mark.slow
@pytest.mark.parametrize("version", _VERSIONS)
def test_on(version: str) -> None:
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        pytest.skip("this is the Python that runs the other tests")
    python = interpreter(version)
    if python is None:
        pytest.skip(f"no Python {version} here")
    script = str(Path(__file__).with_name("plain.py"))
    done = subprocess.run([python, script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
