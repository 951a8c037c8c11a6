"""Finds wrong kernels on a GPU: each Triton kernel of a model beside the same kernel in C++.

    PYTHONPATH=src:. python -m tools.gpu_kernels bert,resnet            # inference
    PYTHONPATH=src:. python -m tools.gpu_kernels --train vit,swin

Small transformers models (`benchmarks/small_models.py`). Library calls are not looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from tools.kernel_comparison import Report, compared_kernels, main
from weft.codegen import cpp
from weft.codegen.ir.loop_ir import Kernel


def run_on_cpu(kernel: Kernel, arguments: Sequence[Any]) -> None:
    """The kernel as C++."""
    (call,) = cpp.compile_kernels([kernel], torch.device("cpu"), {})
    call(*arguments)


def comparing(most: int) -> AbstractContextManager[Report]:
    """Within: kernels of at most so many elements are compared."""
    return compared_kernels(run_on_cpu, most, sizes=True)


if __name__ == "__main__":
    main(__doc__, "cuda", 20_000_000, comparing)
