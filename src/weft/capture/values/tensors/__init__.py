"""Tensors and what stands for one in the graph.

`tensor` (``TensorValue``), `symbolic_tensors`, `tensor_subclasses`, `tensor_wrappers`,
`torch_names` (which functions are graph operations), `numpy_arrays` and `numpy_recording`,
`copied_views`, `random_generators`; what is known of tensors' data: `known_arrays`, `known_data`,
`size_tensors`, `input_tests`, `finite_tests`.
"""
