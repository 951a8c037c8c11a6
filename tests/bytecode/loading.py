"""Import the byte code modules alone: they must work on interpreters that have no torch."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

_SOURCE = Path(__file__).parents[2] / "src"


def load(name: str) -> ModuleType:
    """The module `weft.capture.<name>`, without running `weft` or `weft.capture` if nobody has:
    both are empty packages then."""
    for package in ("weft", "weft.capture"):
        if package not in sys.modules:
            empty = ModuleType(package)
            empty.__path__ = [str(_SOURCE.joinpath(*package.split(".")))]
            sys.modules[package] = empty
    return importlib.import_module(f"weft.capture.{name}")
