"""Integers of unknown value: sizes that change between calls, and the indices of kernels.

Place in the pipeline: low; capture, aot and codegen all use it. Three parts, from below:

- `algebra/`: expressions, comparisons, facts;
- this folder: the symbols of one capture: `context` (``ShapeContext``), `context_state`, `guard`
  (``ShapeGuard``), `asserts`, `unbacked`, `carried_floats`; what the user and earlier captures say
  of them: `policy` (``DynamicPolicy``), `seen_values`, `named`, `contents`; in PyTorch's eyes:
  `symnode` (``SymNode``), `number_calls`, `graph_nodes`, `tensor_layouts`;
- `fakes/`: fake tensors.
"""

