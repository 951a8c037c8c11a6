"""Models wrapped for several processes, in the orders that people use; two processes of Gloo."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="no torch.distributed")

GRAPHS_AND_BREAKS = {
    "compile(DDP)": (1, 0),  # 7 breaks, and slower than eager
    "compile(DDP), unused parameters": (1, 0),
    "compile(DDP), static graph": (1, 0),
    "compile(DDP, fullgraph)": (1, 0),
    "DDP(compile)": (1, 0),
    "compile(FSDP2)": (3, 2),  # around two blocks, which are one graph; there were 5 breaks
    "FSDP2(compile)": (1, 0),  # the class of a compiled module could not be changed
    "FSDP2 of compiled blocks": (1, 0),  # equal code is compiled once
    "compiled blocks of FSDP2": (1, 0),
    "FSDP2 of blocks compiled in place": (1, 0),
    "compile(FSDP1)": (1, 0),  # failed: the storages of what was captured were empty later
    "compile(tensor parallel)": (1, 0),
    "step around DDP": (2, 2),  # DDP, and the backward of what was computed before
}


def test_wrapped_models_train_as_in_eager_without_needless_breaks_and_recompiles() -> None:
    program = Path(__file__).parent / "distributed_training.py"
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True,
                          timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    counts = dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))
    assert counts.pop("functions") == {}
    assert {way: (c["graphs"], c["breaks"]) for way, c in counts.items()} == GRAPHS_AND_BREAKS
    assert not any(c["late recompiles"] or c["failures"] for c in counts.values())
