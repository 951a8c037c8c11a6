"""Numbers that change between calls, and what is computed from them.

`symbolic_numbers`, `symbolic_ranges` and `symbolic_texts` stand for them; `math_functions` and
`float_operations` compute with them. `data_numbers` depend on tensors' data.
"""
