"""Code generation: ATen graph → loop IR → schedule → kernels and a call sequence.

Place in the pipeline: after the passes; `compile.compile_graph` lists the steps. By role:

- the IR: `dtypes`, `scalar_ops`, `loop_ir`, `simplify`, `interpret` (NumPy, the oracle);
- ATen → formulas: `values`, `lowering/`, `access`;
- which formulas share a kernel: `domain`, `groups`, `schedule`, `recomputed`, `step_order`,
  `occupancy`;
- kernels: `kernels`, `loop_transforms`, `targets`, `cpp/`, `triton/`;
- the call sequence: `memory`, `wrapper`, `call_sequence`, `library_calls`, `gemm_calls`.
"""

from weft.codegen.compile import Artifact, compile_graph

__all__ = ["Artifact", "compile_graph"]
