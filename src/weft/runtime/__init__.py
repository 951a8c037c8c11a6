"""Kernels → something callable: compiled in parallel, cached on disk, launched from C.

Place in the pipeline: below `codegen`. By role:

- CPU kernels: `cpp_build` (the compiler), `compile_pool` (in parallel), `launcher`;
- GPU kernels: `triton_build`, `triton_pool`, `triton_worker`, `cuda_kernel`, `cuda_graphs`;
- `disk_cache`, `file_locks`; `generated_code`, which loads Python source;
- what call sequences call: `tensor_calls`, `strided_views`, `writes`, `data_checks`, `attention`,
  `aligned_matmul`, `cudnn_rnn`;
- `restoring`: graphs that change nothing if they raise;
- which library call is faster on this machine: `gemm_speed`, `image_speed`.
"""
