"""Code generation: ATen graph → loop IR → schedule → kernels and a call sequence.

Core types, in the order data meets them: `loop_ir.Kernel` (the IR), `lowering.*` (ATen operators
as IR), `schedule.py` (which values share a kernel), `memory.py` (buffers and their lifetimes),
`wrapper.py` (the call sequence), `compile.compile_graph` (all of it). Targets: `cpp/`, `triton/`.
"""

from weft.codegen.compile import Artifact, compile_graph

__all__ = ["Artifact", "compile_graph"]
