"""The call sequence of a compiled graph: kernels, library calls and memory, as Python source.

`emit` writes it into a `call_sequence`: the memory plan (`memory`), ATen calls
(`library_calls`), matrix products (`gemm_calls`).
"""
