"""Programs as users write them: as in eager, in the stated number of graphs, nothing outside."""

from __future__ import annotations

import logging
import sys
from typing import Any

import pytest
import torch

import weft
from tests.capture import user_programs
from tests.capture.harness import compare, run
from tests.capture.outside import compiled_and_watched, outside

X = torch.tensor([1.0, -2.0, 3.0, -0.5])


@pytest.mark.parametrize("case", user_programs.PROGRAMS, ids=lambda case: case[0].__name__)
def test_program(case: Any, caplog: pytest.LogCaptureFixture) -> None:
    function, graphs, breaks, inside = case
    weft.reset()
    compiled = compiled_and_watched(function)
    for _ in range(2):
        with caplog.at_level(logging.WARNING, user_programs.LOGGER.name):
            compare(run(function, (X,), {}), run(compiled, (X,), {}))
    messages = [record.getMessage() for record in caplog.records]
    assert messages[::2] == messages[1::2]
    stats = weft.stats()
    if sys.version_info[:2] == (3, 11):  # later byte code breaks elsewhere in places
        assert (stats["graphs"], stats["graph_breaks"]) == (graphs, breaks)
    assert bool(outside(compiled, X)) is not inside
    assert weft.stats()["graphs"] == stats["graphs"], "compiled again in the third call"
