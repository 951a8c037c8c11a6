"""Import the byte code modules alone: they must work on interpreters that have no torch."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

_SOURCE = Path(__file__).parents[2] / "src" / "weft" / "capture"
_NAME = "weft_capture_alone"


def load(name: str) -> ModuleType:
    """The module `weft.capture.<name>`, without running `weft` or `weft.capture`."""
    if _NAME not in sys.modules:
        package = ModuleType(_NAME)
        package.__path__ = [str(_SOURCE)]
        sys.modules[_NAME] = package
    return importlib.import_module(f"{_NAME}.{name}")
