"""Triton target: loop IR kernels to GPU kernels.

Place in the pipeline: `codegen/compile.py` hands the scheduled `Kernel`s of a graph on a GPU to
`compile_kernels`. Triton itself is imported only by a server process, when a kernel must be
compiled: a warm start loads the compiled binary from the disk cache through the driver.

Core types: `Tiling` (how the iteration domain is cut into tiles), `TritonSource` (text +
signature), and `runtime.cuda_kernel.CudaKernel` (the launchable result).
"""

from weft.codegen.triton.spelling import Unsupported
from weft.codegen.triton.target import compile_kernels
from weft.runtime.triton_build import get_ready

__all__ = ["Unsupported", "compile_kernels", "get_ready"]
