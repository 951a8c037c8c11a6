"""Which target compiles a kernel.

Place in the pipeline: between the loop IR and `cpp/` (CPU) or `triton/` (GPU). Targets are
imported when first needed: a process that only uses the CPU never loads Triton.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from weft.codegen.ir.loop_ir import Kernel

TARGETS = {"cpu": "weft.codegen.cpp", "cuda": "weft.codegen.triton"}
COMBINES = frozenset({"cpu"})
"""Types of devices on which several points of a kernel may change one element, one after the
other."""


def get_ready(devices: Iterable[str]) -> None:
    """Start preparing for kernels on devices of these types, where that takes long."""
    if "cuda" in devices:
        importlib.import_module(TARGETS["cuda"]).get_ready()


def compile_kernels(
    kernels: Sequence[Kernel], devices: Sequence[torch.device], hints: Mapping[str, int]
) -> list[Callable[..., None]]:
    """One callable for each kernel, taking its buffers, then its sizes; kernel i is on
    `devices[i]`.

    hints: likely values of the symbolic sizes, by name.
    """
    compiled: dict[int, Callable[..., None]] = {}
    for device in dict.fromkeys(devices):
        chosen = [i for i, d in enumerate(devices) if d == device]
        target: Any = importlib.import_module(TARGETS[device.type])
        callables = target.compile_kernels([kernels[i] for i in chosen], device, hints)
        compiled.update(zip(chosen, callables, strict=True))
    return [compiled[i] for i in range(len(kernels))]
