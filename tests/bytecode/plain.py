"""Run these tests without pytest, on an interpreter that has nothing installed.

Usage::

    python3.13 tests/bytecode/plain.py
"""

from __future__ import annotations

import importlib
import sys
import time
from pathlib import Path
from typing import Any


def main() -> None:
    here = Path(__file__).parent
    sys.path.insert(0, str(here.parents[1]))
    for path in sorted(here.glob("test_*.py")):
        if path.stem == "test_interpreters":
            continue
        module: Any = importlib.import_module(f"tests.bytecode.{path.stem}")
        if path.stem == "test_roundtrip":
            module.EVERY = 3
        for name, test in sorted(vars(module).items()):
            if name.startswith("test_"):
                start = time.perf_counter()
                test()
                print(f"{path.stem}.{name}: ok, {time.perf_counter() - start:.1f} s", flush=True)


if __name__ == "__main__":
    main()
