"""A short run of `tools/fuzz_life.py`: calls, hooks, swaps, copies and errors in random order."""

from __future__ import annotations

from collections import Counter

import pytest

from tools.fuzz_life import live

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.parametrize("seed", range(8))
def test_captured_models(seed: int) -> None:
    assert live(seed, events=25, backend="eager", tally=Counter()) == ""


@pytest.mark.parametrize("seed", range(100, 103))
def test_differentiated_models(seed: int) -> None:
    assert live(seed, events=25, backend="aot_eager", tally=Counter()) == ""
