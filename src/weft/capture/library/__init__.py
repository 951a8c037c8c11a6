"""The subjects of capture: what Python, its library and PyTorch's offer, one folder each.

Place in the pipeline: above `core/` and `guards/`, which know values only as `SymbolicValue`;
`opcodes/` and the interpreter call what is registered here. A folder holds all of its subject:

- *value families*: classes derived from `SymbolicValue` that stand for objects of some types;
- *rules* (`rules.py`, `*_rules.py`): what a call of one very function does;
- *polyfills* (`polyfills.py`, `*_polyfills.py`): plain Python in place of C functions, interpreted
  like the user's own code.

Python's own objects know each other: `operators`, `numbers`, `texts`, `containers`, `functions`,
`classes`, `exceptions`, `modules`, `tensors`. The libraries stand on them and on one another, in
layers that `make lint` checks. `registration` imports all of them.
"""
