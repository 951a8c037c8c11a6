"""Kernels → something callable: compiled in parallel, cached on disk, launched from C.

Place in the pipeline: below `codegen`. Core types: `DiskCache` (`disk_cache`), the compile pool and
`cpp_build`, `triton_build`, launchers (`launcher`, `cuda_kernel`), `CudaGraphs` (`cuda_graphs`).
"""
