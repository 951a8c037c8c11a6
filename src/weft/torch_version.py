"""Which PyTorch weft runs with: the versions it is tested with, older ones, newer ones.

Place in the pipeline: the bottom; `weft` asks when it is imported, without importing torch::

    PyTorch 2.10    UnsupportedTorch: what weft stands on is not there
    PyTorch 2.11    tested: weft's own rules for fake tensors
    PyTorch 3.0     one UntestedTorchWarning; PyTorch's rules; what fails runs eagerly

A new PyTorch is one line here once the tests pass with it, and the work of `weft._torch` where
names moved.
"""

from __future__ import annotations

import re
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from weft.config import config
from weft.errors import UnsupportedTorch, UntestedTorchWarning

OLDEST: Final = (2, 11)
NEWEST: Final = (2, 14)
TESTED: Final = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
"""The versions that the tests have passed with, for people."""

_warned = False


def installed() -> str | None:
    """The version of the PyTorch that `import torch` gives, which is not imported here; None if
    there is none, or it does not say."""
    torch = sys.modules.get("torch")
    if torch is not None:
        return str(torch.__version__)
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).with_name("version.py")
    text = path.read_text() if path.is_file() else ""
    match = re.search(r"^__version__\s*=\s*['\"]([^'\"]+)", text, re.MULTILINE)
    return match[1] if match else None


def release(version: str) -> tuple[int, int]:
    """The release that a version belongs to: (2, 14) of "2.14.1+cu130"."""
    major, minor = re.findall(r"\d+", version)[:2]
    return int(major), int(minor)


VERSION: Final = installed()
RELEASE: Final = OLDEST if VERSION is None else release(VERSION)
IS_TESTED: Final = OLDEST <= RELEASE <= NEWEST


def refuse_older() -> None:
    """Raise `UnsupportedTorch` if PyTorch is older than weft can use."""
    if RELEASE < OLDEST:
        raise UnsupportedTorch(
            f"weft needs PyTorch {OLDEST[0]}.{OLDEST[1]} or newer; PyTorch {VERSION} is installed",
            do=f"pip install 'torch>={OLDEST[0]}.{OLDEST[1]}'")


def warn_of_newer(stacklevel: int) -> None:
    """Warn, once per process, if PyTorch is newer than the versions weft is tested with."""
    global _warned
    if RELEASE <= NEWEST or _warned or not config.warn_untested_torch:
        return
    _warned = True
    warnings.warn(
        f"PyTorch {VERSION} is newer than the versions weft is tested with ({TESTED}): what fails "
        "runs eagerly. `weft doctor` tries it; WEFT_WARN_UNTESTED_TORCH=0 silences this.",
        UntestedTorchWarning, stacklevel=stacklevel + 1)
