"""Ranks of one process group: one compiles, the others load, and none is waited for in vain."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="no torch.distributed")

CAPTURED_AND_LOADED = {
    "evenly": (1, 1),
    "unevenly": (2, 1),  # a size, and any size
    "with_other_code": (2, 0),
    "by_rank": (2, 0),
    "with_offsets": (2, 0),
    "layers": (2, 2),  # a number, and any number
    "training": (1, 1),
    "with_two_results": (1, 1),
    "on_another_disk": (1, 1),
    "not_storable": (2, 0),
}
"""Of both ranks together."""

Line = dict[str, Any]


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> list[Line]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, str(Path(__file__).parent / "ranks_program.py")]
    folder = str(tmp_path_factory.mktemp("ranks"))
    processes = [subprocess.Popen(
        [*command, str(rank), str(port), folder], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"})
        for rank in range(3)]
    try:
        outputs = [process.communicate(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
    written = "".join(error for _, error in outputs)
    assert [process.returncode for process in processes] == [-9, 0, -9], written
    return [json.loads(line) for out, _ in outputs for line in out.splitlines()]


@pytest.mark.parametrize("scenario", CAPTURED_AND_LOADED)
def test_one_rank_compiles_and_the_other_loads(lines: list[Line], scenario: str) -> None:
    own = [line for line in lines if line["scenario"] == scenario]
    assert [line["right"] for line in own] == [True, True]
    counts = sum(line["captures"] for line in own), sum(line["loaded"] for line in own)
    assert counts == CAPTURED_AND_LOADED[scenario]
    assert sum(line["warnings"] for line in own) == 0


def test_sizes_that_differ_between_ranks_are_settled_once(lines: list[Line]) -> None:
    own = [line for line in lines if line["scenario"] == "unevenly"]
    assert [line["late"] for line in own] == [0, 0]


@pytest.mark.parametrize("scenario", ["training", "with_two_results"])
def test_backwards_are_compiled_by_one_rank(lines: list[Line], scenario: str) -> None:
    assert sum(line["backwards"] for line in lines if line["scenario"] == scenario) == 1


def test_a_killed_rank_does_not_hang_the_rest(lines: list[Line]) -> None:
    first, second = [line for line in lines if line["scenario"] == "survive"]
    assert first["right"] and second["right"]
    assert len(first["warnings"]) == len(second["warnings"]) == 1
    assert "rank 2, which compiles dying" in first["warnings"][0]
    assert "ranks cannot agree who compiles" in second["warnings"][0]
