"""A short run of `tools/fuzz_shapes.py`: random models of layers at random sizes against eager."""

from __future__ import annotations

from collections import Counter

import pytest

from tools.fuzz_shapes import examine

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("seed", range(24))
def test_captured_models(seed: int) -> None:
    assert examine(seed, backend="eager", sizes=4, tally=Counter()) == []


@pytest.mark.parametrize("seed", range(100, 106))
def test_generated_models(seed: int) -> None:
    assert examine(seed, backend="inductor", sizes=3, tally=Counter()) == []
