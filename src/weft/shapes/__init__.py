"""Integers of unknown value: sizes that change between calls, and the indices of kernels.

Place in the pipeline: low; capture, aot and codegen all use it. By role:

- the language: `expr` (``Expr``), `atoms`, `polynomials`, `intervals`, `functions`, `relation`
  (``Condition``), `rendering`, `printing`, `pickling`;
- what is known and asked: `facts` (``Facts``), `solving`, `context` (``ShapeContext``),
  `context_state`, `named`, `policy` (``DynamicPolicy``), `contents`, `guard` (``ShapeGuard``),
  `asserts`, `unbacked`;
- floats: `floats`, `float_domains`, `rounding`, `carried_floats`, `float_trials`, `number_calls`;
- PyTorch's side: `symnode` (``SymNode``), `layout`, `graph_nodes`, `without_sympy`;
- fake tensors: `fake` (``FakeContext``), `fake_mode` (``MemoFakeMode``), `make_fake`,
  `shape_rules`, `view_rules`, `meta_corrections`, `data_dependent`, `wrappers`.
"""

import weft.shapes.pickling  # noqa: F401  registers how expressions are copied
