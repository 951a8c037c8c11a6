"""Numbers that change between calls, and numbers read from tensors.

Captured: sizes and Python numbers as symbols, arithmetic, `math`, ranges; numbers of tensors
(`item`, `tolist`, `int(x)`), which stay in the graph. `symbolic_numbers` and `symbolic_ranges` are
the families, `float_operations` and `math_functions` compute with them; `data_numbers` and
`numbers_from_tensors` deal with data, `identities` with `id(x)` and its like, which no graph may
keep. A branch on data breaks the graph (`data-dependent-branch`) where no guess or guard decides
it; a number that Python code needs as it is does too (`data-dependent-value`).
"""
