"""A few seeds of the random programs (many: `python -m tests.capture.random_programs`)."""

from __future__ import annotations

import pytest

from tests.capture.random_programs import Trial


@pytest.mark.parametrize("breaking", [False, True], ids=["inlined", "broken"])
@pytest.mark.parametrize("seed", range(1000, 1030))
@pytest.mark.filterwarnings("ignore")
def test_seed(seed: int, breaking: bool) -> None:
    try:
        trial = Trial(seed, breaking=breaking)
    except SyntaxError:
        pytest.skip("the generator wrote no valid program")
    trial.check()
