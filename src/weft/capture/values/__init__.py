"""Symbolic values: what the interpreter's stack and variables hold instead of Python objects.

Place in the pipeline: the data of capture. `base` defines `SymbolicValue`, `registry` says which
family of values stands for which Python type; every other file is one family, or serves one:

- plain data: `constant`, `sequences`, `mapping`, `sets`, `deques`, `named_tuples`, `namespaces`,
  `user_keys`, `identities`;
- code and objects: `functions`, `builtins`, `methods`, `getters`, `arities`, `cell`, `classes`,
  `made_classes`, `descriptors`, `objects`, `attributes`, `modules`, `exceptions`, `copy_memo`,
  `reachability`, `unknown`;
- iterators: `iterators`, `lazy_iterators`, `outside_iterators`, `generators`;
- tensors: `tensors`, `tensor_subclasses`, `tensor_wrappers`, `symbolic_tensors`, `torch_names`,
  `numpy_arrays`, `random_generators`;
- sizes and numbers that change: `symbolic_numbers`, `symbolic_ranges`, `symbolic_texts`,
  `math_functions`, `float_operations`;
- what depends on tensors' data: `data_numbers`, `known_data`, `size_tensors`, `input_tests`,
  `finite_tests`.
"""
