"""Containers, and iterators over them.

Captured: list, tuple, range, slice (`sequences`), dictionaries and their views (`mapping`),
`sets`, `deques`, `named_tuples`, `namespaces`, and all iterators (`iterators`, `lazy_iterators`,
`itertools_rules`); calls of their types are in `constructors`. Changes of containers from outside
are side effects that the replacement repeats. `user_keys`: keys with a `__hash__` of the program;
`outside_iterators`: iterators that were begun before; `outside_views`: views kept by objects. What
breaks the graph: methods without a model, contents that depend on data.
"""
