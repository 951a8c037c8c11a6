"""The tool that runs Triton texts without a GPU finds right kernels right, and a wrong one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
from tools.kernel_comparison import examine
from tools.triton_interpreter import comparing
from weft.codegen.triton import spelling
def resnet():
    return examine("resnet", "cpu", True, lambda: comparing(100_000))
print(resnet().splitlines()[0])
spelling._ANY_TYPE["sub"] = "{0} + {1}"
print(resnet().splitlines()[0])
"""


def test_a_planted_fault_is_found() -> None:
    pytest.importorskip("triton")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=600,
        env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True,
    )
    right, wrong = done.stdout.splitlines()
    assert right.endswith(", 0 differ")
    assert wrong.split(": ")[1].split()[2] != "0"
