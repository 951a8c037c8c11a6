"""Symbolic values: what the interpreter's stack and variables hold instead of Python objects.

Place in the pipeline: the data of capture. `base` defines `SymbolicValue`, `registry` says which
family of values stands for which Python type; every other file is one family, or serves one:

- `containers/`: sequences, dictionaries, sets, and iterators over them;
- `objects/`: functions, classes, instances, modules, exceptions, generators;
- `numbers/`: sizes and numbers that change, and what is computed from them;
- `tensors/`: tensors, NumPy arrays, random generators, and what depends on their data;
- for all of them: `constant`, `unknown`, `attributes` and `methods` (how a name is looked up),
  `arities`, `lifetimes` (whether freeing an object would be noticed).
"""
