"""The C++/OpenMP target: loop IR kernels → C++ text → callables.

Place in the pipeline: after `codegen/scheduling/`, beside `codegen/triton/`; uses `runtime/` to
compile.

`plan.py` decides (vectorised loop, lanes, loop nests), `emit.py` prints with the writers beside it
(`points.py`, `loop_nests.py`, `nodes.py`, `indices.py`, …), `spelling.py` holds the tables,
`include/*.h` is the code that kernels are written in, `target.py` is the entry point.
"""

from weft.codegen.cpp.target import compile_kernels, source_of

__all__ = ["compile_kernels", "source_of"]
