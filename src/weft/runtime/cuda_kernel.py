"""Loads GPU binaries and gives callables that launch them on torch's current stream.

Place in the pipeline: the last step of the Triton target. The launch itself is C
(`weft._cuda.Kernel`): data pointers are read and the driver is called without Triton's Python
launcher.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

import torch

from weft import _cuda
from weft.runtime.launcher import tensor_offset
from weft.runtime.triton_build import GpuBinary

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
