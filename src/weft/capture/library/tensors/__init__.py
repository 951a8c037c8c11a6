"""Tensors, and what stands for one in the graph.

Captured: operations, run on fakes and recorded (`tensor`, `operations_on_fakes`, `torch_names`),
indices (`tensor_index`), subclasses (`tensor_subclasses`), wrappers (`tensor_wrappers`), sizes
that change (`symbolic_tensors`, `size_tensors`, `ragged_sizes`). What is known of data:
`known_data`, `input_tests`, `finite_tests`. What a tensor's text or place depends on besides:
`print_state`, `device_modes`. Operators whose result's shape or value depends on data break the
graph where it cannot hold them (`data-dependent-shape`, `data-dependent-value`).
"""
