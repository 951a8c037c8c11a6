"""Code generation: ATen graph → loop IR → schedule → kernels and a call sequence.

Place in the pipeline: after the passes; `compile.compile_graph` lists the steps. By role:

- ATen → formulas: `values`, `lowering/`;
- what formulas read and write, and how often: `access`, `domain`, `occupancy`;
- which of them share a kernel: `scheduling/`;
- kernels: `kernels`, `loop_transforms` (in the loop IR: `ir/`), `targets`, `source_text`, `cpp/`,
  `triton/`;
- the call sequence: `calls/`.
"""

from weft.codegen.compile import Artifact, compile_graph

__all__ = ["Artifact", "compile_graph"]
