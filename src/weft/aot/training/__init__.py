"""From a traced graph that needs gradients to a compiled, differentiable callable.

`compile` lists the steps:

- one graph for forward and backward: `joint`, `independent`; its two halves: `partition`,
  `memory_budget`;
- backwards compiled when they run: `backwards`, `absent_tangents`, `requests`, `gradient_sources`,
  `backward_stages`;
- autograd's view of both: `function_spec`, `autograd_function`, `forward_code`, `backward_code`;
  its nodes: `node_plan`, `node_forms`, `layers`;
- gradients of gradients: `double_backward`, `cuts`, `forward_inputs`;
- the memory that is kept in between: `tangents`, `saved_values`, `reference_counts`.
"""
