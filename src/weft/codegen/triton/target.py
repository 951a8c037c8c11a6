"""From scheduled kernels to launchable GPU kernels: the Triton target's entry point.

Place in the pipeline: called by `codegen/compile.py` for graphs on a GPU, as `codegen.cpp.compile_kernels`
is for graphs on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import torch

from weft.codegen.loop_ir import Kernel
from weft.codegen.triton.emit import TritonSource, emit
from weft.codegen.triton.tiling import choose_tiling
from weft.diagnostics import events
from weft.runtime.cuda_kernel import load
from weft.runtime.triton_build import TritonRequest, build
from weft.shapes.expr import Expr
from weft.shapes.printing import python_text


@final
@dataclass(frozen=True)
class Spelled:
    """A kernel's text under a name that does not depend on where it is used."""

    source: TritonSource
    sizes: tuple[str, ...]


def spell(kernel: Kernel) -> Spelled:
    """Choose the tiling of `kernel` and write it."""
    source = emit(kernel, choose_tiling(kernel), kernel.name)
    return Spelled(source, tuple(str(s) for s in kernel.sizes))


def compile_kernels(
    kernels: Sequence[Kernel], device: torch.device | None = None
) -> list[Callable[..., None]]:
    """Compile and load `kernels` for a CUDA device; each is called with its buffers, then its sizes.

    Raises `Unsupported` if a kernel uses an operator that Triton lacks.
    """
    index = torch.cuda.current_device() if device is None or device.index is None else device.index
    major, minor = torch.cuda.get_device_capability(index)
    arch = major * 10 + minor
    spelled = [spell(kernel) for kernel in kernels]
    for one in spelled:
        events.record("output_code", language="triton", name=one.source.name, text=one.source.text)
    binaries = build([_request(one.source, arch, aligned=True) for one in spelled])
    loaded = []
    for one, binary in zip(spelled, binaries, strict=True):
        grid = _grid(one.source.programs, one.sizes)
        shape = {"device": index, "buffers": one.source.pointers, "sizes": len(one.sizes)}
        unaligned = _LazyUnaligned(one.source, arch, grid, shape)
        loaded.append(load(binary, grid=grid, unaligned=unaligned, **shape))
    return loaded


def _request(source: TritonSource, arch: int, *, aligned: bool) -> TritonRequest:
    return TritonRequest(
        source.text, source.name, source.signature, source.num_warps, arch, aligned
    )


def _grid(programs: Expr | int, sizes: tuple[str, ...]) -> int | Callable[..., int]:
    if isinstance(programs, int):
        return programs
    function: Callable[..., int] = eval(f"lambda {', '.join(sizes)}: {python_text(programs)}")
    return function


@final
@dataclass
class _LazyUnaligned:
    """The variant of a kernel for buffers that are not 16-byte aligned, compiled when first needed."""

    source: TritonSource
    arch: int
    grid: int | Callable[..., int]
    shape: dict[str, int]
    kernel: Callable[..., None] | None = None

    def __call__(self, *args: object) -> None:
        if self.kernel is None:
            (binary,) = build([_request(self.source, self.arch, aligned=False)])
            self.kernel = load(binary, grid=self.grid, **self.shape)
        self.kernel(*args)
