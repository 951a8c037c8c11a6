"""From scheduled kernels to launchable GPU kernels: the Triton target's entry point.

Place in the pipeline: called by `codegen/compile.py` for graphs on a GPU, as
`codegen.cpp.compile_kernels` is for graphs on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import torch

from weft.codegen.dtypes import to_torch
from weft.codegen.loop_ir import Kernel
from weft.codegen.triton.emit import TritonSource, emit
from weft.codegen.triton.split import Split, split_reduction
from weft.codegen.triton.tiling import choose_tiling
from weft.diagnostics import events
from weft.runtime.cuda_kernel import load
from weft.runtime.tensor_calls import empty
from weft.runtime.triton_build import GpuBinary, TritonRequest, build
from weft.shapes.expr import Expr
from weft.shapes.printing import python_text


@final
@dataclass(frozen=True)
class Spelled:
    """One GPU kernel in source form and the loop IR kernel it was written from."""

    kernel: Kernel
    source: TritonSource

    @property
    def listing(self) -> str:
        """The text for a reader: what each buffer is, and which lines it computes."""
        origins = "".join(f"# {origin}\n" for origin in self.kernel.origins)
        names = ", ".join(f"b{i}: {b.name}" for i, b in enumerate(self.kernel.buffers))
        return f"# {self.kernel.name}({names})\n{origins}{self.source.text}"

    @property
    def sizes(self) -> tuple[str, ...]:
        """Names of the size parameters."""
        return tuple(str(s) for s in self.kernel.sizes)


def spell(kernel: Kernel) -> tuple[list[Spelled], Split | None]:
    """Write `kernel` as one GPU kernel, or as two where its reduction is split."""
    tiling = choose_tiling(kernel)
    split = split_reduction(kernel, tiling)
    if split is None:
        return [Spelled(kernel, emit(kernel, tiling, kernel.name))], None
    parts = (split.first, split.second)
    return [Spelled(k, emit(k, choose_tiling(k), k.name)) for k in parts], split


def compile_kernels(
    kernels: Sequence[Kernel], device: torch.device | None = None
) -> list[Callable[..., None]]:
    """Compile and load `kernels` for a CUDA device; each is called with its buffers, then its
    sizes.

    Raises `Unsupported` if a kernel uses an operator that Triton lacks.
    """
    index = torch.cuda.current_device() if device is None or device.index is None else device.index
    major, minor = torch.cuda.get_device_capability(index)
    arch = major * 10 + minor
    spelled = [spell(kernel) for kernel in kernels]
    flat = [one for parts, _ in spelled for one in parts]
    for one in flat:
        events.record("output_code", source=one.listing, path="")
    binaries = build([_request(one.source, arch, aligned=True) for one in flat])
    loaded = iter(_load_each(flat, binaries, arch, index))
    return [
        next(loaded)
        if split is None
        else _TwoStep(kernel, split, next(loaded), next(loaded), index)
        for kernel, (_, split) in zip(kernels, spelled, strict=True)
    ]


def _load_each(
    flat: Sequence[Spelled], binaries: Sequence[GpuBinary], arch: int, index: int
) -> list[Callable[..., None]]:
    """The kernels as callables; those of one binary and one grid are one object."""
    known: dict[tuple[int, str, tuple[str, ...]], Callable[..., None]] = {}
    loaded = []
    for one, binary in zip(flat, binaries, strict=True):
        key = (id(binary), str(one.source.programs), one.sizes)
        if key not in known:
            known[key] = _load(one, binary, arch, index)
        loaded.append(known[key])
    return loaded


def _load(one: Spelled, binary: GpuBinary, arch: int, device: int) -> Callable[..., None]:
    grid = _grid(one.source.programs, one.sizes)
    unaligned = _LazyUnaligned(one.source, arch, grid, device, len(one.sizes))
    return load(
        binary, device=device, buffers=one.source.pointers, sizes=len(one.sizes), grid=grid,
        unaligned=unaligned,
    )  # fmt: skip


@final
class _TwoStep:
    """A split reduction as one callable: allocates the partial results, runs both kernels."""

    def __init__(
        self,
        kernel: Kernel,
        split: Split,
        first: Callable[..., None],
        second: Callable[..., None],
        device: int,
    ) -> None:
        self.first, self.second = first, second
        where = torch.device("cuda", device)
        self.partials = [
            empty(((count,), (1,), 0), to_torch(dtype), where)
            for dtype, count in split.partials.values()
        ]
        position = {b.name: i for i, b in enumerate(kernel.buffers)}
        position |= {name: len(position) + i for i, name in enumerate(split.partials)}
        self.first_buffers = [position[b.name] for b in split.first.buffers]
        self.second_buffers = [position[b.name] for b in split.second.buffers]

    def __call__(self, *buffers: torch.Tensor) -> None:
        every = (*buffers, *[make() for make in self.partials])
        self.first(*[every[i] for i in self.first_buffers])
        self.second(*[every[i] for i in self.second_buffers])


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
    """The variant of a kernel for buffers that are not 16-byte aligned, compiled when first needed.
    """

    source: TritonSource
    arch: int
    grid: int | Callable[..., int]
    device: int
    sizes: int
    kernel: Callable[..., None] | None = None

    def __call__(self, *args: object) -> None:
        if self.kernel is None:
            (binary,) = build([_request(self.source, self.arch, aligned=False)])
            self.kernel = load(
                binary, device=self.device, buffers=self.source.pointers, sizes=self.sizes,
                grid=self.grid,
            )  # fmt: skip
        self.kernel(*args)
