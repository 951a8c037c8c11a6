"""Loads GPU binaries and gives callables that launch them on torch's current stream.

Place in the pipeline: the last step of the Triton target. The launch itself is C
(`weft._cuda.Kernel`): data pointers are read and the driver is called without Triton's Python
launcher.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Final, final

import torch

from weft import _cuda
from weft.runtime.launcher import tensor_offset
from weft.runtime.tensor_calls import empty
from weft.runtime.triton_build import GpuBinary, TritonRequest, build
from weft.storable import storable

THREADS_PER_WARP: Final = 32


@cache
def _configure() -> None:
    """Tell the C launcher where to find a tensor's data and torch's current stream (once)."""
    libraries = Path(torch.__file__).parent / "lib"
    cpu = ctypes.CDLL(str(libraries / "libtorch_cpu.so"))
    cuda = ctypes.CDLL(str(libraries / "libtorch_cuda.so"))
    get_data_ptr = ctypes.cast(cpu.aoti_torch_get_data_ptr, ctypes.c_void_p).value
    get_stream = ctypes.cast(cuda.aoti_torch_get_current_cuda_stream, ctypes.c_void_p).value
    assert get_data_ptr is not None and get_stream is not None
    _cuda.configure(tensor_offset(), get_data_ptr, get_stream)


def load(
    binary: GpuBinary, *, device: int, buffers: int, sizes: int, divisors: int,
    grid: int | Callable[..., tuple[int, ...]], unaligned: Callable[..., None] | None = None,
) -> Callable[..., None]:
    """The kernel as a callable: tensors for its `buffers`, then ints for its `sizes`.

    grid: number of programs, or a function of the sizes that gives it and the `divisors` whose
    reciprocals follow the sizes as parameters; unaligned: the callable for buffers whose data is
    not 16-byte aligned.
    """
    _configure()
    kernel: Callable[..., None] = _cuda.Kernel(
        image=binary.image,
        name=binary.entry,
        device=device,
        grid=grid if isinstance(grid, int) else 0,
        block=binary.num_warps * THREADS_PER_WARP,
        shared=binary.shared,
        n_buffers=buffers,
        n_sizes=sizes,
        n_divisors=divisors,
        grid_of=None if isinstance(grid, int) else grid,
        unaligned=unaligned,
    )
    return kernel


Grid = int | str
"""The number of programs, or the text of a function of the sizes: that number, then the divisors.
"""


@storable
@final
@dataclass(frozen=True)
class Launching:
    """All that is known of a kernel before it is loaded: in any process it gives the same."""

    request: TritonRequest
    grid: Grid
    device: int
    buffers: int
    sizes: int
    divisors: int

    def loaded(self, binary: GpuBinary) -> Callable[..., None]:
        """The kernel, given its binary."""
        unaligned = Unaligned(self) if self.request.aligned else None
        return load(
            binary, device=self.device, buffers=self.buffers, sizes=self.sizes,
            divisors=self.divisors, grid=self.grid if isinstance(self.grid, int) else eval(
                self.grid), unaligned=unaligned)

    def built(self) -> Callable[..., None]:
        """The kernel, in a process that may have another GPU: that raises."""
        major, minor = torch.cuda.get_device_capability(self.device)
        if major * 10 + minor != self.request.arch:
            raise ValueError("a kernel of another kind of GPU")
        return self.loaded(build([self.request])[0])


@final
class Unaligned:
    """The variant of a kernel for buffers that are not 16-byte aligned, compiled when first needed.
    """

    def __init__(self, aligned: Launching) -> None:
        self.aligned = aligned
        self.kernel: Callable[..., None] | None = None

    def __call__(self, *args: object) -> None:
        if self.kernel is None:
            request = replace(self.aligned.request, aligned=False)
            self.kernel = replace(self.aligned, request=request).loaded(build([request])[0])
        self.kernel(*args)


Arguments = tuple[Sequence[int], Sequence[int]]
"""Of buffers, partial results and sizes, those that the first kernel takes, and the second."""


@final
class TwoStep:
    """A split reduction as one callable: allocates the partial results, runs both kernels."""

    def __init__(
        self, first: Callable[..., None], second: Callable[..., None], device: torch.device,
        n_buffers: int, partials: Sequence[torch.dtype], counts: str, arguments: Arguments,
    ) -> None:
        self.first, self.second = first, second
        self.device, self.n_buffers, self.dtypes = device, n_buffers, partials
        self.text, self.counts = counts, eval(counts)
        self.makers: dict[tuple[int, ...], list[Callable[[], torch.Tensor]]] = {}
        self.of_first, self.of_second = arguments

    def remade(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """What another process makes it of."""
        return TwoStep, (self.first, self.second, self.device, self.n_buffers, self.dtypes,
                          self.text, (self.of_first, self.of_second))

    def __call__(self, *args: object) -> None:
        sizes = args[self.n_buffers :]
        counts = self.counts(*sizes)
        makers = self.makers.get(counts)
        if makers is None:
            makers = self.makers[counts] = [
                empty(((count,), (1,), 0), dtype, self.device)
                for count, dtype in zip(counts, self.dtypes, strict=True)
            ]
        every = (*args[: self.n_buffers], *[make() for make in makers], *sizes)
        self.first(*[every[i] for i in self.of_first])
        self.second(*[every[i] for i in self.of_second])
