"""The examples in docstrings run as they are printed."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import weft

ROOT = Path(weft.__file__).parent
WITH_EXAMPLES = [path for path in sorted(ROOT.rglob("*.py")) if ">>> " in path.read_text()]


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=lambda path: path.stem)
def test_examples_run_as_printed(path: Path) -> None:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    module = importlib.import_module(".".join(parts).removesuffix(".__init__"))
    result = doctest.testmod(module)
    assert result.failed == 0
