"""Captured (torch-level) graph → functional ATen graphs and a thin runtime wrapper.

Place in the pipeline: between capture and code generation. `pipeline.py` lists the steps. By role:

- the graph: `graph` (the ATen graph), `operators` (facts of schemas), `symbols`,
  `evaluate` (metadata of results);
- recording: `trace`, `record`, `record_special`, `functionalize`, `views`, `recomputed_random`,
  `attention`, `wrappers`, `data_dependent`;
- rewriting: `prepare`, `expand`, `decompositions`, `complex_pairs`, `complex_rules`,
  `image_layout`, `functional_form`, `recurrent`;
- training: `training`, `joint`, `partition`, `memory_budget`, `independent`, `backwards`,
  `absent_tangents`;
- at run time: `runtime_wrapper`, `control_flow`, `python_code`, `global_state`,
  `autograd_function`, `backward_stages`, `tangents`, `saved_values`, `reference_counts`,
  `double_backward`;
- `plain_sizes`, for checks of numerics.
"""
