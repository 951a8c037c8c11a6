"""From scheduled kernels to launchable GPU kernels: the Triton target's entry point.

Place in the pipeline: called by `codegen/targets.py` for kernels on a GPU, as `codegen.cpp.target`
is for those on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

import torch

from weft.codegen.ir.dtypes import to_torch
from weft.codegen.ir.loop_ir import Kernel
from weft.codegen.triton.emit import TritonSource, emit
from weft.codegen.triton.specializations import Specialization, Specializations, SpecializedKernel
from weft.codegen.triton.split_reductions import Split, split_in, split_reduction
from weft.codegen.triton.tiling import choose_tiling
from weft.diagnostics import events
from weft.runtime.cuda_kernel import Grid, Launching, TwoStep
from weft.runtime.triton_build import GpuBinary, TritonRequest, build
from weft.shapes.algebra.printing import python_text


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


def spell(
    kernel: Kernel, choice: Specialization | None = None
) -> tuple[list[Spelled], Split | None]:
    """Write `kernel` as one GPU kernel, or as two if its reduction is split."""
    if choice is not None:
        return _spell_specialized(kernel, choice)
    tiling = choose_tiling(kernel)
    split = split_reduction(kernel, tiling)
    if split is None:
        return [Spelled(kernel, emit(kernel, tiling, kernel.name))], None
    parts = (split.first, split.second)
    return [Spelled(k, emit(k, choose_tiling(k), k.name)) for k in parts], split


def _spell_specialized(
    kernel: Kernel, choice: Specialization
) -> tuple[list[Spelled], Split | None]:
    split = split_in(kernel, choice.chunks, even=choice.even) if choice.chunks > 1 else None
    parts = (kernel,) if split is None else (split.first, split.second)
    return [
        Spelled(k, emit(k, t, k.name, narrow=choice.narrow, multiples=choice.multiples))
        for k, t in zip(parts, choice.tilings, strict=True)
    ], split


def compile_kernels(
    kernels: Sequence[Kernel], device: torch.device | None = None,
    hints: Mapping[str, int] | None = None,
) -> list[Callable[..., None]]:
    """Compile and load `kernels` for a CUDA device; each is called with its buffers, then its
    sizes.

    `hints`: values of symbolic sizes for which the kernels are prepared. Raises `Unsupported` if a
    kernel uses an operator that Triton lacks.
    """
    target = _Target.of(device)
    choices = [Specializations(kernel) if kernel.sizes else None for kernel in kernels]
    first = [f and f.best(_likely(f.names, hints or {})) for f in choices]
    spelled = [spell(k, choice) for k, choice in zip(kernels, first, strict=True)]
    launches = target.launches(kernels, spelled)
    shared: dict[tuple[TritonSource, ...], Callable[..., None]] = {}
    for i, (known, choice) in enumerate(zip(choices, first, strict=True)):
        if known is not None and choice is not None:
            text = tuple(part.source for part in spelled[i][0])
            launch = shared.get(text)  # equal kernels of a model's layers are compiled once
            launches[i] = shared[text] = launch or SpecializedKernel(
                known, {choice: launches[i]}, target.builder(kernels[i])).launch
    return launches


_UNKNOWN_SIZE: Final = 64
"""The assumed value of a data-dependent size before the first call."""


def _likely(names: Sequence[str], hints: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(hints.get(name, _UNKNOWN_SIZE) for name in names)


@final
@dataclass(frozen=True)
class _Target:
    """A GPU for which kernels are compiled and loaded."""

    arch: int
    index: int

    @staticmethod
    def of(device: torch.device | None) -> _Target:
        """The GPU of that number, or the current one."""
        index = device.index if device is not None else None
        index = torch.cuda.current_device() if index is None else index
        major, minor = torch.cuda.get_device_capability(index)
        return _Target(major * 10 + minor, index)

    def launches(
        self, kernels: Sequence[Kernel], spelled: Sequence[tuple[list[Spelled], Split | None]]
    ) -> list[Callable[..., None]]:
        """The launchable form of each kernel; all are compiled in parallel."""
        flat = [part for parts, _ in spelled for part in parts]
        for part in flat:
            events.record("output_code", name=part.kernel.name, source=part.listing)
        binaries = build([_request(part.source, self.arch, aligned=True) for part in flat])
        loaded = iter(_load_each(flat, binaries, self.arch, self.index))
        return [
            next(loaded)
            if split is None
            else _two_step(kernel, split, next(loaded), next(loaded), self.index)
            for kernel, (_, split) in zip(kernels, spelled, strict=True)
        ]

    def builder(self, kernel: Kernel) -> Callable[[Specialization], Callable[..., None]]:
        """A function that compiles further specializations of a kernel."""
        return lambda choice: self.launches([kernel], [spell(kernel, choice)])[0]


def _load_each(
    flat: Sequence[Spelled], binaries: Sequence[GpuBinary], arch: int, index: int
) -> list[Callable[..., None]]:
    """The kernels as callables; those of one binary and one grid are one object."""
    known: dict[tuple[int, str, tuple[str, ...]], Callable[..., None]] = {}
    loaded = []
    for part, binary in zip(flat, binaries, strict=True):
        key = (id(binary), str((part.source.programs, *part.source.divisors)), part.sizes)
        if key not in known:
            known[key] = _load(part, binary, arch, index)
        loaded.append(known[key])
    return loaded


def _load(spelled: Spelled, binary: GpuBinary, arch: int, device: int) -> Callable[..., None]:
    source = spelled.source
    return Launching(
        _request(source, arch, aligned=True), _grid(source, spelled.sizes), device, source.pointers,
        len(spelled.sizes), len(source.divisors)).loaded(binary)


def _two_step(
    kernel: Kernel, split: Split, first: Callable[..., None], second: Callable[..., None],
    device: int,
) -> TwoStep:
    counts = ", ".join(python_text(count) for _, count in split.partials.values())
    names = [b.name for b in kernel.buffers] + [*split.partials] + [*map(str, kernel.sizes)]
    position = {name: i for i, name in enumerate(names)}
    of_first, of_second = (
        [position[n] for n in (*(b.name for b in k.buffers), *map(str, k.sizes))]
        for k in (split.first, split.second)
    )
    return TwoStep(
        first, second, torch.device("cuda", device), len(kernel.buffers),
        [to_torch(dtype) for dtype, _ in split.partials.values()],
        _function_text(kernel.sizes, f"({counts},)"), (of_first, of_second))


def _request(source: TritonSource, arch: int, *, aligned: bool) -> TritonRequest:
    return TritonRequest(
        source.text, source.name, source.signature, source.num_warps, arch, aligned,
        source.multiples,
    )


def _grid(source: TritonSource, sizes: tuple[str, ...]) -> Grid:
    if isinstance(source.programs, int) and not source.divisors:
        return source.programs
    values = ", ".join(map(python_text, (source.programs, *source.divisors)))
    return _function_text(sizes, f"({values},)")


def _function_text(names: Sequence[object], text: str) -> str:
    """The text of a function of the sizes."""
    return f"lambda {', '.join(map(str, names))}: {text}"
