"""Captured (torch-level) graph → functional ATen graphs and a thin runtime wrapper.

Place in the pipeline: between capture and code generation. `pipeline.py` lists the steps, which are
in three folders: `tracing/` (captured graph → ATen graph), `rewrites/` (ATen graph → ATen graph),
`training/` (joint graphs, their halves, autograd). Here is what they share:

- the graph: `graph` (the ATen graph), `prepare` (its steps before the compiler), `operators` (facts
  of schemas), `functional_form`, `views`, `symbols`, `data_dependent`, `evaluate` (metadata of
  results);
- graphs in parts: `control_flow`, `wrappers` (and `wrapper_gradients`);
- at run time: `runtime_wrapper`, `python_code`, `global_state`; for checks of numerics:
  `plain_sizes`.
"""
