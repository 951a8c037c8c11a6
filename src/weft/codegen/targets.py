"""Which target compiles a kernel.

Place in the pipeline: between the loop IR and `cpp/` (CPU) or `triton/` (GPU). Targets are
imported when first needed: a process that only uses the CPU never loads Triton.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

from weft.codegen.interpret import from_torch_tensor, run_kernel
from weft.codegen.loop_ir import Kernel

TARGETS = {"cpu": "weft.codegen.cpp", "cuda": "weft.codegen.triton"}


def compile_kernels(kernels: Sequence[Kernel], device: str = "cpu") -> list[Callable[..., None]]:
    """One callable a kernel, taking its buffers and then its sizes."""
    if not kernels:
        return []
    if interpret:
        return [interpreted(k) for k in kernels]
    target: Any = importlib.import_module(TARGETS[device])
    compiled: list[Callable[..., None]] = target.compile_kernels(list(kernels))
    return compiled


interpret = False
"""Run kernels by the NumPy interpreter instead (tests: the oracle)."""


def interpreted(kernel: Kernel) -> Callable[..., None]:
    """The kernel as run by `interpret.py`."""
    names = [b.name for b in kernel.buffers]
    sizes = [str(s) for s in kernel.sizes]

    def call(*args: Any) -> None:
        arrays = {n: from_torch_tensor(t) for n, t in zip(names, args, strict=False)}
        run_kernel(kernel, arrays, dict(zip(sizes, args[len(names) :], strict=True)))

    return call
